"""One process of a worker, from its launch to its end: channel, output, exit status."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from relight.serving.channel import WorkerChannel
from relight.serving.output import WorkerOutput, attach

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.serving.launchers.base import ExitStatus, Launched, Launcher
    from relight.wire.frames import Frame
    from relight.wire.progress import ProgressPage

_EXIT_GRACE = 2.0
"""Seconds that a process whose channel was closed has to end by itself."""
_CHANNEL_GRACE = 0.1
"""Seconds to read what a process wrote before it ended; children of it may hold the channel open."""
_OUTPUT_GRACE = 0.2


class End(NamedTuple):
    """The end of a process.

    Attributes:
        status: How it ended; None if it would not.
        error: What broke its channel, if that came first.
        lines: The last lines that it wrote.
        forced: Whether it had to be killed, as it did not end by itself.
    """

    status: ExitStatus | None
    error: Exception | None
    lines: list[str]
    forced: bool


class WorkerProcess:
    """A running process. Made by `launch`.

    Args:
        launched: What the launcher gave.
        channel: Connected to it.
        lost: Done when the channel is closed.
        outputs: The readers of its pipes, with their transports.
        lines: The last lines that it wrote.
    """

    def __init__(
        self,
        launched: Launched,
        channel: WorkerChannel,
        lost: asyncio.Future[Exception | None],
        outputs: list[tuple[WorkerOutput, asyncio.ReadTransport]],
        lines: Any,
    ) -> None:
        self.channel = channel
        self.progress: ProgressPage | None = launched.progress
        self._launched = launched
        self._lost = lost
        self._outputs = outputs
        self._lines = lines

    @classmethod
    async def launch(
        cls, launcher: Launcher, *, torch: bool, name: str, max_payload: int, on_frame: Callable[[Frame], None]
    ) -> WorkerProcess:
        """Start a process and connect to it.

        Args:
            launcher: Starts it.
            torch: Whether its handler is expected to use torch.
            name: Of the worker, for its log lines.
            max_payload: Largest payload accepted from it, in bytes.
            on_frame: Called with each frame that it sends.

        Raises:
            LaunchError: it cannot be started.
            OSError: it cannot be connected to.
        """
        launched = await launcher.launch(torch=torch)
        loop = asyncio.get_running_loop()
        lines = WorkerOutput.new_last_lines()
        pipes = [os.fdopen(launched.stdout, "rb", buffering=0), os.fdopen(launched.stderr, "rb", buffering=0)]
        try:
            outputs = []
            for pipe, suffix, level in zip(pipes, ("stdout", "stderr"), (logging.INFO, logging.WARNING), strict=True):
                output = WorkerOutput(f"{name}-{suffix}", level, lines)
                outputs.append((output, await attach(pipe, output)))
            lost: asyncio.Future[Exception | None] = loop.create_future()
            channel = WorkerChannel(max_payload, on_frame, lost.set_result)
            await loop.connect_accepted_socket(lambda: channel, launched.channel)
        except BaseException:
            launched.kill()
            for resource in (*pipes, launched.channel, launched.progress):
                if resource is not None:
                    resource.close()
            raise
        return cls(launched, channel, lost, outputs, lines)

    @property
    def pid(self) -> int | None:
        """Its process id, where it runs on this host."""
        return self._launched.pid

    def kill(self) -> None:
        """End it at once."""
        self._launched.kill()

    async def closed(self) -> None:
        """Wait until it has ended or closed its channel, and everything that it had sent is read."""
        ends: list[asyncio.Future[Any]] = [self._lost, self._launched.exited]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._lost.done():
            await asyncio.wait([self._lost], timeout=_CHANNEL_GRACE)
        self.channel.abort()

    async def end(self, *, told: bool) -> End:
        """Wait for the end of a process whose channel is closed; end it if it does not.

        Args:
            told: Whether it was told to end, by closing the channel, and may want a moment for that.
        """
        status, forced = None, False
        for grace in (_EXIT_GRACE if told else _CHANNEL_GRACE, _EXIT_GRACE):
            done, _ = await asyncio.wait([self._launched.exited], timeout=grace)
            if done:
                status = self._launched.exited.result()
                break
            forced = True
            self.kill()
        await asyncio.wait([output.closed for output, _ in self._outputs], timeout=_OUTPUT_GRACE)
        for _, transport in self._outputs:
            transport.close()
        return End(status, self._lost.result() if self._lost.done() else None, list(self._lines), forced)

    def release(self) -> None:
        """Give back the shared memory."""
        if self.progress is not None:
            self.progress.close()
