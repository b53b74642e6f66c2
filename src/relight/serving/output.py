"""What a worker prints: cut into lines, copied to the model log, the last of them kept."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO

model_log = logging.getLogger("MODEL_LOG")
metrics_log = logging.getLogger("MODEL_METRICS")

_LONGEST_LINE = 64 * 1024
_LAST_LINES = 40
METRICS_MARK = "[METRICS]"


class WorkerOutput(asyncio.Protocol):
    """Reads one pipe of a worker.

    Args:
        name: Thread name for the log lines, such as `W-9000-noop_1.0-stdout`.
        level: Level of the records: INFO for stdout, WARNING for stderr.
        last_lines: Where the last lines are kept for a diagnosis.
    """

    def __init__(self, name: str, level: int, last_lines: deque[str]) -> None:
        self._name = name
        self._level = level
        self._last_lines = last_lines
        self._rest = b""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @staticmethod
    def new_last_lines() -> deque[str]:
        """A bounded store for the last lines of both pipes."""
        return deque(maxlen=_LAST_LINES)

    def data_received(self, data: bytes) -> None:
        """Log the lines that are complete; a line beyond 64 KiB is cut into several."""
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
            rest = b""
        self._rest = rest
        for line in lines:
            for at in range(0, len(line) or 1, _LONGEST_LINE):
                self._write(line[at : at + _LONGEST_LINE])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The worker, and whatever else held the pipe, has closed it."""
        if self._rest:
            self._write(self._rest)
            self._rest = b""
        if not self.closed.done():
            self.closed.set_result(None)

    def _write(self, raw: bytes) -> None:
        line = raw.rstrip(b"\r").decode("utf-8", "replace")
        if line.startswith(METRICS_MARK):
            metrics_log.info("%s", line[len(METRICS_MARK) :], extra={"worker": self._name})
            return
        self._last_lines.append(line)
        model_log.log(self._level, "%s", line, extra={"worker": self._name})


async def attach(pipe: FileIO, protocol: WorkerOutput) -> asyncio.ReadTransport:
    """Read `pipe` into `protocol`; it is the transport's from now on.

    Raises:
        OSError: it cannot be read without blocking.
    """
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    return transport
