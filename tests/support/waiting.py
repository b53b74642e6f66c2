"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_POLL_S = 0.01


def wait_for(what: str, condition: Callable[[], T | None], timeout: float = 60.0) -> T:
    """Return the condition's first true value.

    Args:
        what: Names the condition in the error.
        condition: Asked again until its value is true.
        timeout: Seconds.

    Raises:
        TimeoutError: It did not come true in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout} s (last value {value!r})")
        time.sleep(_POLL_S)
