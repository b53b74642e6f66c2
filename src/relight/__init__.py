"""relight: a model server that takes over where TorchServe stopped."""

from relight.version import __version__

__all__ = ["__version__"]
