"""Jobs are answered exactly once; ids are UUIDs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from tests.unit.serving.support import make_job, on_loop

from relight.errors import InternalServerError
from relight.serving.job import DONE, QUEUED, RequestIds
from relight.wire.messages import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.serving.job import Job

ENDINGS: dict[str, Callable[[Job], None]] = {
    "finish": lambda job: job.finish(Answer(1), b"x"),
    "fail": lambda job: job.fail(InternalServerError("no")),
    "cancel": lambda job: job.cancel(),
    "expire": lambda job: job.expire("late"),
}


@pytest.mark.parametrize("second", ENDINGS)
@pytest.mark.parametrize("first", ENDINGS)
def test_a_job_ends_once(first: str, second: str) -> None:
    job, reply = make_job()
    told: list[Job] = []
    job.on_cancel = told.append

    ENDINGS[first](job)
    count = len(reply.answers) + len(reply.errors)
    ENDINGS[second](job)

    assert job.state == DONE
    assert len(reply.answers) + len(reply.errors) == count == (0 if first == "cancel" else 1)
    assert len(told) == (first in ("cancel", "expire"))


def test_an_expired_job_is_answered_with_a_timeout() -> None:
    job, reply = make_job()

    job.expire("too late")

    assert reply.error == (408, "too late")
    assert reply.errors[0].wire_type == "RequestTimeoutException"


def test_a_cancelled_job_is_still_queued_when_its_holder_hears_of_it() -> None:
    job, _ = make_job()
    states: list[int] = []
    job.on_cancel = lambda job: states.append(job.state)

    job.cancel()

    assert states == [QUEUED]


@on_loop
async def test_the_end_of_a_job_stops_its_timer() -> None:
    import asyncio

    job, _ = make_job()
    job.timer = timer = asyncio.get_running_loop().call_later(60, lambda: None)

    job.finish(Answer(0), b"")

    assert timer.cancelled()
    assert job.timer is None


def test_request_ids_are_random_uuids() -> None:
    ids = RequestIds()
    made = [ids.next() for _ in range(RequestIds._BATCH * 4 + 3)]
    parsed = [uuid.UUID(text) for text in made]

    assert [str(each) for each in parsed] == made
    assert {each.version for each in parsed} == {4}
    assert {each.variant for each in parsed} == {uuid.RFC_4122}
    assert len(set(made)) == len(made)
    # All four of the variant digits, and all of the version's other bits: 122 random ones are left.
    assert {text[19] for text in made} == set("89ab")
    for position in (0, 7, 9, 15, 17, 20, 35):
        assert len({text[position] for text in made}) == 16, position
