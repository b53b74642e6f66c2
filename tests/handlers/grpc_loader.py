"""Comes up when the test opens the gate named like the model, and never if the file `<model>.broken` lies beside it."""

# ruff: noqa: ARG002 - the signatures are those of a handler

import os
from pathlib import Path

from gates import pass_gate


class Loader:
    """Loads late, or never."""

    def initialize(self, context):
        pass_gate(context.model_name)
        broken = Path(os.environ["RELIGHT_TEST_GATES"]) / f"{context.model_name}.broken"
        if broken.exists():
            raise ValueError("broken on purpose")

    def handle(self, data, context):
        return ["loaded"] * len(data)
