"""A Job: one request on its way to a handler, and the Reply it is answered through."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from relight.errors import RelightError, RequestTimeoutError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from relight.wire.messages import Answer

QUEUED, RUNNING, DONE = range(3)
"""States of a job: waiting in a queue; sent to a worker; answered, or given up by its client."""


class Reply(Protocol):
    """Writes the answer to one request in the protocol that it came by.

    Exactly one of `finish` and `fail` is called, once, after any number of calls of `chunk`. None blocks or raises.
    """

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:
        """Write an intermediate result.

        Returns:
            Whether the client keeps up. If not, more may come all the same, and `Job.drained` is called when the client
            has taken what was written.
        """

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Write the result, the last one where there were chunks."""

    def fail(self, error: RelightError) -> None:
        """Answer with an error, or break the answer off where a part of it is written."""


class Job:
    """One request.

    Args:
        request_id: A UUID; clients see it as `x-request-id`, handlers as `context.get_request_id`.
        headers: The client's headers, as received.
        added: Headers that the server adds for the handler.
        parts: Name, content type and length in bytes of each input.
        body: The inputs' bytes, one after the other, in any number of pieces.
        size: Bytes in `body`.
        reply: How to answer.
        arrived: When the request arrived, on the monotonic clock, in seconds.
        alone: Never batched with others (describe, streams over gRPC).
    """

    __slots__ = (
        "added",
        "alone",
        "arrived",
        "body",
        "headers",
        "on_cancel",
        "on_drain",
        "parts",
        "reply",
        "request_id",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "size",
        "state",
        "timer",
    )

    def __init__(
        self,
        request_id: str,
        headers: list[tuple[bytes, bytes]],
        added: dict[str, str],
        parts: list[tuple[str, str, int]],
        body: list[bytes],
        size: int,
        reply: Reply,
        arrived: float,
        alone: bool = False,
    ) -> None:
        self.request_id = request_id
        self.headers = headers
        self.added = added
        self.parts = parts
        self.body = body
        self.size = size
        self.reply = reply
        self.arrived = arrived
        self.alone = alone
        self.sequence_id: str | None = None
        """The sequence that the request belongs to, for models with sequence batching; others ignore it."""
        self.sequence_start = False
        """Whether it opens a sequence; without an id the core invents one (`ts-seq-` and a UUID) and sets it here."""
        self.sequence_end = False
        """Whether it is the last of its sequence."""
        self.state = QUEUED
        self.timer: asyncio.TimerHandle | None = None
        self.on_cancel: Callable[[Job], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Answer with a result, unless the job is done already."""
        if self.state != DONE:
            self._done()
            self.reply.finish(answer, body)

    def fail(self, error: RelightError) -> None:
        """Answer with an error, unless the job is done already."""
        if self.state != DONE:
            self._done()
            self.reply.fail(error)

    def cancel(self) -> None:
        """The client is gone: nobody wants the answer any more."""
        if self.state != DONE:
            on_cancel = self.on_cancel
            if on_cancel is not None:
                on_cancel(self)
            self._done()

    def expire(self, message: str) -> None:
        """The job's deadline has passed."""
        if self.state != DONE:
            on_cancel = self.on_cancel
            if on_cancel is not None:
                on_cancel(self)
            self.fail(RequestTimeoutError(message))

    def drained(self) -> None:
        """The client has taken what `Reply.chunk` could not write at once."""
        if self.on_drain is not None:
            self.on_drain()

    def _done(self) -> None:
        self.state = DONE
        self.on_cancel = None
        self.drained()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class RequestIds:
    """Makes random UUIDs (version 4), many from one read of the kernel's random numbers."""

    _BATCH = 64

    def __init__(self) -> None:
        self._ids: list[str] = []

    def next(self) -> str:
        """A new id, in the canonical form of 36 characters."""
        if not self._ids:
            digits = os.urandom(16 * self._BATCH).hex()
            self._ids = [_canonical(digits[at : at + 32]) for at in range(0, len(digits), 32)]
        return self._ids.pop()


def _canonical(digits: str) -> str:
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
