"""The single steps of packing, under the names that torch-model-archiver has for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from relight.archive.write import (
    ARCHIVE_FORMATS,
    ModelArchiverConfig,
    check_export_path,
    check_model_name,
    export_target,
    manifest_of,
)

if TYPE_CHECKING:
    import argparse

__all__ = ["ModelExportUtils"]

archiving_options = dict(ARCHIVE_FORMATS)
"""Archive formats, each with its suffix."""


class ModelExportUtils:
    """Static helpers; `ModelArchiver.generate_model_archive` needs none of them."""

    @staticmethod
    def get_archive_export_path(export_path: str, model_name: str, archive_format: str) -> str:
        """The path of the archive that would be written."""
        return os.path.join(export_path, model_name + ARCHIVE_FORMATS[archive_format])  # noqa: PTH118 a text, as there

    @staticmethod
    def check_mar_already_exists(
        model_name: str, export_path: str | None, overwrite: bool, archive_format: str = "default"
    ) -> str:
        """The path of the archive to write.

        Raises:
            ModelArchiverError: The directory is missing, or the archive exists and `overwrite` is off.
        """
        return str(export_target(model_name, export_path or str(Path.cwd()), archive_format, force=overwrite))

    @staticmethod
    def check_model_name_regex_or_exit(model_name: str) -> None:
        """Refuse a name with special characters.

        Raises:
            ModelArchiverError: The name holds special characters.
        """
        check_model_name(model_name)

    @staticmethod
    def validate_inputs(model_name: str, export_path: str) -> None:
        """Refuse a bad name or a missing directory.

        Raises:
            ModelArchiverError: One of them is wrong.
        """
        check_model_name(model_name)
        check_export_path(export_path)

    @staticmethod
    def generate_manifest_json(args: ModelArchiverConfig | argparse.Namespace) -> str:
        """The text of the manifest that would be written."""
        config = args if isinstance(args, ModelArchiverConfig) else ModelArchiverConfig.from_args(args)
        return manifest_of(config)
