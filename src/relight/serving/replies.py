"""What a worker has answered, on its way to the jobs of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from relight.errors import InternalServerError
from relight.serving.job import DONE
from relight.wire.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.serving.job import Job

decode_reply: Callable[[bytes | memoryview], Reply] = msgspec.msgpack.Decoder(Reply).decode
"""The reply that a frame carries."""


def check_reply(reply: Reply, count: int, size: int) -> None:
    """Refuse a reply that does not fit its batch, before anything of it counts.

    Raises:
        ValueError: it has other than `count` answers, or they have other than `size` bytes.
    """
    if len(reply.answers) != count:
        raise ValueError(f"{len(reply.answers)} answers to a batch of {count}")
    if sum(answer.length for answer in reply.answers) != size:
        raise ValueError(f"answers that do not add up to the {size} bytes that came with them")


def deliver(
    reply: Reply,
    jobs: list[Job],
    payload: bytes | memoryview,
    *,
    last: bool,
    on_slow: Callable[[Job, int, int], None],
) -> None:
    """Answer the jobs of a batch, or pass on what it has sent in between.

    Args:
        reply: The reply, which fits.
        jobs: The jobs, in the order of its answers.
        payload: The answers' bytes.
        last: Whether the batch is answered with it.
        on_slow: Given a job whose client does not keep up, the batch's number, and the bytes that were written.
    """
    if reply.failure is not None:
        for job in jobs:
            job.fail(InternalServerError(reply.failure.message, reply.failure.status))
        return
    at = 0
    for job, answer in zip(jobs, reply.answers, strict=True):
        end = at + answer.length
        part = payload if at == 0 and end == len(payload) else payload[at:end]
        at = end
        if answer.error:
            job.fail(InternalServerError(str(part, "utf-8", "replace"), answer.status))
        elif last and not answer.more:
            job.finish(answer, part)
        elif job.state != DONE and not job.reply.chunk(answer, part):
            on_slow(job, reply.seq, answer.length)
