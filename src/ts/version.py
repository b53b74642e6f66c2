"""The TorchServe version whose interfaces these are."""

from relight.version import TORCHSERVE_VERSION

__version__ = TORCHSERVE_VERSION

__all__ = ["__version__"]
