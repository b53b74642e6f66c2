"""Its initialization waits until the test opens the gate named like the model."""

# ruff: noqa: ARG002 - the signatures are those of a handler

import os
import time
from pathlib import Path

WAIT_LIMIT_S = 60


class Slow:
    """Comes up when it is let."""

    def initialize(self, context):
        folder = Path(os.environ["RELIGHT_TEST_GATES"])
        (folder / f"{context.model_name}.arrived.{os.getpid()}").touch()
        deadline = time.monotonic() + WAIT_LIMIT_S
        while not (folder / context.model_name).exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def handle(self, data, context):
        return ["at last"] * len(data)
