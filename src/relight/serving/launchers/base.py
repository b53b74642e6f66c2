"""The interface of launchers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    import socket

    from relight.wire.progress import ProgressPage


class LaunchError(Exception):
    """No worker process could be started."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a worker process ended.

    Attributes:
        code: Exit code, if it exited by itself.
        signal: Signal number, if it was killed. Where both are None nobody knows.
        peak_memory: Peak resident memory in bytes; 0 where unknown.
    """

    code: int | None
    signal: int | None
    peak_memory: int = 0

    @classmethod
    def from_wait(cls, status: int, peak_memory: int = 0) -> ExitStatus:
        """From a status as `waitpid` gives it."""
        if status & 0x7F:
            return cls(None, status & 0x7F, peak_memory)
        return cls(status >> 8, None, peak_memory)

    @property
    def killed(self) -> bool:
        """Whether it was killed as the kernel or a container does it when memory runs out: SIGKILL, or code 137."""
        return self.signal == signal.SIGKILL or self.code == 128 + signal.SIGKILL

    def __str__(self) -> str:
        """For people: `exit code 3`, `signal 11 (SIGSEGV)`."""
        if self.signal is None:
            return "an unknown cause" if self.code is None else f"exit code {self.code}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal}"


class Launched(Protocol):
    """A worker process that has just been started, and what belongs to it."""

    channel: socket.socket
    """Connected to the worker; speaks the frames of `relight.wire`."""
    pid: int | None
    """Process id where it runs on this host."""
    stdout: int
    stderr: int
    """Descriptors to read what the worker prints."""
    progress: ProgressPage | None
    """Memory shared with it, where it runs on this host."""
    exited: asyncio.Future[ExitStatus]
    """Done when the process has ended."""

    def kill(self) -> None:
        """End the process at once; nothing happens when it has ended."""


class Launcher(Protocol):
    """Starts worker processes."""

    async def launch(self, *, torch: bool) -> Launched:
        """Start one.

        Args:
            torch: Whether the handler is expected to use torch, so that a process which has it is the better start.

        Raises:
            LaunchError: it cannot be started.
        """

    async def close(self) -> None:
        """End what the launcher itself runs."""
