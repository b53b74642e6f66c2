"""Which accelerators there are, and which of them each worker gets."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_QUERY_TIMEOUT = 10.0


def count_gpus(environ: Mapping[str, str] | None = None) -> int:
    """How many GPUs workers can use.

    `CUDA_VISIBLE_DEVICES` decides where it is set: as many as it names, and none from the first impossible id on, as
    CUDA itself reads it. Otherwise nvidia-smi is asked. The frontend must never initialise CUDA by itself.
    """
    environ = os.environ if environ is None else environ
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        names = [name.strip() for name in visible.split(",")]
        possible = []
        for name in names:
            if not (name.isdigit() or name.startswith(("GPU-", "MIG-"))):
                break
            possible.append(name)
        return len(dict.fromkeys(possible))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listing = subprocess.run(
            [tool, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.strip().isdigit() for line in listing.splitlines())


class DeviceAssigner:
    """Hands out devices to the workers of one model version: the least used first, the lowest id among equals.

    Args:
        devices: Ids to choose from; empty for the CPU.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices = list(devices)

    def next(self, in_use: Iterable[int | None]) -> int | None:
        """The device of one more worker.

        Args:
            in_use: Devices of the workers there are.
        """
        if not self.devices:
            return None
        load = dict.fromkeys(self.devices, 0)
        for device in in_use:
            if device in load:
                load[device] += 1
        return min(load, key=lambda device: (load[device], self.devices.index(device)))
