"""What to pack."""

from relight.archive.write import ModelArchiverConfig

__all__ = ["ModelArchiverConfig"]
