"""Back-pressure of streams: a client that reads slowly slows its handler down, not the server's memory up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
