"""The import path of torch-model-archiver 0.12.0, for programs that pack models without its command line."""

from model_archiver.model_packaging import ModelArchiver, ModelArchiverConfig
from relight.archive.manifest import ARCHIVER_VERSION as __version__  # noqa: N811 its name there

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]
