"""What a demo says while it runs."""

from __future__ import annotations

import math
import time


class DemoError(Exception):
    """Something went wrong; the message says what."""


class Progress:
    """Says what begins, and when.

    Args:
        steps: How many steps there will be.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """Say what begins now."""
        self._step += 1
        number = f"{self._step:{len(str(self._steps))}}/{self._steps}"
        print(f"[{number}] {self.seconds:5.1f} s  {text}", flush=True)


def note(text: str) -> None:
    """Say how it went."""
    print(f"      {text}", flush=True)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
