"""What holds a handler in the middle of its work until the test lets it go; lies beside the handler in its archive."""

import asyncio
import os
import time
from pathlib import Path

WAIT_LIMIT_S = 60


def _arrive(name):
    folder = Path(os.environ["RELIGHT_TEST_GATES"])
    (folder / f"{name}.arrived.{os.getpid()}.{time.monotonic_ns()}").touch()
    deadline = time.monotonic() + WAIT_LIMIT_S
    return lambda: (folder / name).exists() or time.monotonic() > deadline


def pass_gate(name):
    """Tell the test that somebody has come, then wait for it to open the gate."""
    is_open = _arrive(name)
    while not is_open():
        time.sleep(0.005)


async def pass_gate_async(name):
    """Do the same, and let others run meanwhile."""
    is_open = _arrive(name)
    while not is_open():  # noqa: ASYNC110 - the test opens it from another process
        await asyncio.sleep(0.005)
