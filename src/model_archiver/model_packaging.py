"""Packing from a program, as torch-model-archiver 0.12.0 offers it."""

from __future__ import annotations

import logging

from model_archiver.arg_parser import ArgParser
from relight.archive.write import ModelArchiverConfig, ModelArchiverError, create_archive

__all__ = ["ArgParser", "ModelArchiver", "ModelArchiverConfig", "generate_model_archive"]

_log = logging.getLogger("model_archiver")


def generate_model_archive(config: ModelArchiverConfig | None = None) -> None:
    """Write an archive.

    Args:
        config: What to pack; None takes the arguments of the process.

    Raises:
        ModelArchiverError: The archive cannot be written as asked; it is logged as well.
        OSError: A file is missing, or the archive cannot be written.
    """
    if config is None:
        logging.basicConfig(format="%(levelname)s - %(message)s")
        config = ModelArchiverConfig.from_args(ArgParser.export_model_args_parser().parse_args())
    try:
        create_archive(config)
    except ModelArchiverError as error:
        _log.error("%s", error)
        raise


class ModelArchiver:
    """The archiver as an object."""

    @staticmethod
    def generate_model_archive(config: ModelArchiverConfig) -> None:
        """As the function of this name."""
        generate_model_archive(config)
