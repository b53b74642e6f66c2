"""The import paths of TorchServe's Python package; everything is re-exported from `relight`."""

from ts.version import __version__

__all__ = ["__version__"]
