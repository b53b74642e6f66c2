"""One system call for all that a connection writes in one turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Writer(Protocol):
    """A connection that keeps what it writes until the turn is over."""

    def send_written(self) -> None:
        """Send what has been written so far."""


class Turn:
    """The connections of a listener that have written something in this turn of the event loop.

    uvloop makes a system call of each write, and many answers to one client, or many parts of one stream, are ready in
    the same turn.
    """

    def __init__(self) -> None:
        self._writers: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """Have a connection send what it has written when the turn is over."""
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._end)
        self._writers.append(writer)

    def _end(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.send_written()
