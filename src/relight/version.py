"""The versions that relight reports."""

__version__ = "0.1.0"

TORCHSERVE_VERSION = "0.12.0"
"""The TorchServe release whose clients and archives relight accepts; what `--version` and the API report."""
