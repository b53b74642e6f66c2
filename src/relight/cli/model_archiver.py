"""torch-model-archiver: the command line. The work is relight.archive.write's."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Pack what the command line asks for.

    Args:
        argv: Arguments, those of the process by default.

    Returns:
        The exit code: 0, or 1 after an error, which is written to stderr as `ERROR - <message>`. Usage errors exit 2.
    """
    args = build_parser().parse_args(argv)
    # Imported here: `--help` and usage errors need none of it.
    from relight.archive.write import ModelArchiverConfig, ModelArchiverError, create_archive

    logging.basicConfig(stream=sys.stderr, format="%(levelname)s - %(message)s")
    try:
        create_archive(ModelArchiverConfig.from_args(args))
    except (ModelArchiverError, OSError, ValueError) as error:
        print(f"ERROR - {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of torch-model-archiver's flags (archives_and_handlers.md §1.5)."""
    parser = argparse.ArgumentParser(
        prog="torch-model-archiver", description="Pack a model, its handler and its files into one archive."
    )
    add = parser.add_argument
    add("--model-name", required=True, help="Name of the model; the archive is called <name>.mar or <name>.tar.gz.")
    add("--serialized-file", help="The model's weights: a state_dict (.pt, .pth), TorchScript, ONNX or any other file.")
    add("--model-file", help="Python file with the one class of the model's architecture, for eager mode.")
    add(
        "--handler",
        required=True,
        help="A built-in handler such as image_classifier, or a Python file, with or without :function.",
    )
    add(
        "--extra-files",
        help="Files to add, separated by commas. A directory adds its contents; * ? and [..] are expanded.",
    )
    add(
        "--runtime", choices=["python", "python3", "LSP"], default="python", help="What runs the handler (%(default)s)."
    )
    add("--export-path", default=os.getcwd(), help="Existing directory to write to (the current one).")  # noqa: PTH109
    add(
        "--archive-format",
        choices=["tgz", "no-archive", "zip-store", "default"],
        default="default",
        help="default: a compressed .mar; zip-store: an uncompressed one; tgz: a .tar.gz; no-archive: a directory.",
    )
    add("-f", "--force", action="store_true", help="Overwrite an existing archive.")
    add("-v", "--version", required=True, help="Version of the model.")
    add("-r", "--requirements-file", help="pip requirements of the model (server property install_py_dep_per_model).")
    add("-c", "--config-file", help="The model's YAML configuration.")
    add(
        "--reproducible",
        action="store_true",
        help="Same input, same bytes: fixed times and order (also on when SOURCE_DATE_EPOCH is set).",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
