"""The error of the archiver."""

from relight.archive.write import ModelArchiverError

__all__ = ["ModelArchiverError"]
