"""The access log: recorded in a word on the hot path, formatted and written in bulk a moment later."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from relight.telemetry.logs import timestamp

if TYPE_CHECKING:
    from relight.telemetry.sinks import Sink

_INTERVAL = 0.1
"""Seconds between two writes."""
_MOST_RECORDS = 4096
"""Records that are kept at most before they are written."""

_Record = tuple[float, str, str, bytes, str, int, float]


class Answered(Protocol):
    """What the log wants to know of an answered request."""

    @property
    def method(self) -> str:
        """`GET`, `POST` ..., or `gRPC`."""

    @property
    def target(self) -> bytes:
        """What was asked for."""

    @property
    def version(self) -> str:
        """The protocol."""

    @property
    def status(self) -> int:
        """The status that was answered."""

    @property
    def arrived(self) -> float:
        """When, on the monotonic clock, in seconds; 0 if that does not count."""


class AccessLog:
    """Writes one line for each answered request: `/ip:port "METHOD target HTTP/1.1" status milliseconds`.

    Args:
        access: Sink of the access log itself; its lines have no level and no thread.
        others: Sinks of everything.
    """

    def __init__(self, access: Sink, others: list[Sink]) -> None:
        self._access = access
        self._others = others
        self._records: list[_Record] = []
        self._timer: asyncio.TimerHandle | None = None
        self._clock = time.monotonic
        self._wall_clock = time.time

    def record(self, request: Answered, peer: str) -> None:
        """A request has been answered."""
        self._records.append(
            (self._clock(), peer, request.method, request.target, request.version, request.status, request.arrived)
        )
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self.flush)
        elif len(self._records) >= _MOST_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Write what has been recorded."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        records, self._records = self._records, []
        short, long = [], []
        # Of one offset, so that the lines are in the order of the answers; taken anew, as clocks are set.
        offset = self._wall_clock() - self._clock()
        last, stamp = 0, ""
        for ended, peer, method, target, version, status, arrived in records:
            wall = ended + offset
            if int(wall * 1000) != last:
                last, stamp = int(wall * 1000), timestamp(wall)
            milliseconds = int((ended - arrived) * 1000) if arrived else 0
            line = f'{peer} "{method} {target.decode("latin-1")} {version}" {status} {milliseconds}\n'
            short.append(f"{stamp} - {line}")
            long.append(f"{stamp} [INFO ] http ACCESS_LOG - {line}")
        if short:
            self._access.write("".join(short))
            text = "".join(long)
            for sink in self._others:
                sink.write(text)
