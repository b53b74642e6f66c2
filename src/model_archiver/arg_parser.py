"""The command line's parser, under the name that existing programs patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.cli.model_archiver import build_parser

if TYPE_CHECKING:
    import argparse


class ArgParser:
    """Where torch-model-archiver keeps its parser."""

    @staticmethod
    def export_model_args_parser() -> argparse.ArgumentParser:
        """A parser of torch-model-archiver's flags."""
        return build_parser()
