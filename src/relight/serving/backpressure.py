"""Back-pressure of streams: a client that reads slowly slows its handler down, not the server's memory up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.serving.channel import WorkerChannel
    from relight.serving.job import Job


class Backpressure:
    """Stops reading what a worker sends while the client that it is for does not take it.

    The worker then waits in its own send, when the socket between is full.
    """

    def __init__(self) -> None:
        self.stalled: Job | None = None
        """The job whose client is waited for."""
        self._channel: WorkerChannel | None = None

    def stall(self, job: Job, channel: WorkerChannel) -> None:
        """Read nothing more from `channel` until `job` is drained, or done."""
        if self.stalled is None:
            self.stalled = job
            self._channel = channel
            job.on_drain = self.release
            channel.pause()

    def release(self) -> None:
        """Go on reading."""
        job, self.stalled = self.stalled, None
        channel, self._channel = self._channel, None
        if job is not None and channel is not None:
            job.on_drain = None
            channel.resume()


MOST_UNREAD = 64 * 1024 * 1024
"""Bytes that may wait for one slow client of a concurrent worker, whose handler should wait and does not."""


@dataclass(slots=True)
class _Lag:
    since: float
    unread: int = 0


class SlowClients:
    """The clients of a concurrent worker that do not keep up. The worker's channel stays open, for the others.

    What is sent to them all the same is counted, so that it has a bound.
    """

    def __init__(self) -> None:
        self._lags: dict[Job, _Lag] = {}

    def lags(self, job: Job, size: int, now: float, on_drain: Callable[[], None]) -> bool:
        """A client has been sent a part and did not take it.

        Args:
            job: Its job.
            size: Bytes of the part.
            now: The time, on any monotonic clock, in seconds.
            on_drain: Called once, when the client has taken everything or the job is done.

        Returns:
            Whether it begins to lag with this part.
        """
        lag = self._lags.get(job)
        if lag is None:
            self._lags[job] = _Lag(now, size)
            job.on_drain = partial(self._drained, job, on_drain)
            return True
        lag.unread += size
        if lag.unread > MOST_UNREAD:
            job.expire(f"The client does not keep up: it was sent {lag.unread} bytes since it fell behind.")
        return False

    def since(self, job: Job) -> float | None:
        """Since when its client has read nothing; None where it keeps up."""
        lag = self._lags.get(job)
        return None if lag is None else lag.since

    def clear(self) -> None:
        """Forget all of them."""
        for job in self._lags:
            job.on_drain = None
        self._lags.clear()

    def _drained(self, job: Job, on_drain: Callable[[], None]) -> None:
        job.on_drain = None
        del self._lags[job]
        on_drain()
