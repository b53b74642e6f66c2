"""The torch-model-archiver release that this package stands in for."""

from relight.archive.manifest import ARCHIVER_VERSION as __version__  # noqa: N811 its name there

__all__ = ["__version__"]
