"""The bounded queue of a version."""

from __future__ import annotations

import pytest
from tests.unit.serving.support import make_job

from relight.errors import ServiceUnavailableError
from relight.serving.job import DONE, QUEUED, RUNNING, Job
from relight.serving.queue import JobQueue
from relight.wire.messages import Answer


def filled(count: int, capacity: int = 100) -> tuple[JobQueue, list[Job]]:
    queue = JobQueue(capacity)
    jobs = [make_job()[0] for _ in range(count)]
    for job in jobs:
        assert queue.put(job)
    return queue, jobs


def test_first_in_first_out() -> None:
    queue, jobs = filled(5)

    assert queue.take(2) == jobs[:2]
    assert queue.take(10) == jobs[2:]
    assert queue.take(1) == []
    assert queue.waiting == 0


def test_full() -> None:
    queue, _ = filled(3, capacity=3)

    assert not queue.put(make_job()[0])

    queue.take(1)
    assert queue.put(make_job()[0])
    assert not queue.put(make_job()[0])
    assert queue.pending == queue.capacity == 3


def test_jobs_sent_ahead_take_places() -> None:
    queue, _ = filled(2, capacity=4)
    queue.ahead = 2

    assert queue.pending == 4
    assert not queue.put(make_job()[0])

    queue.ahead = 1
    assert queue.put(make_job()[0])


@pytest.mark.parametrize("ending", ["cancel", "expire"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_job_given_up_frees_its_place_at_once(ending: str, position: int) -> None:
    queue, jobs = filled(3, capacity=3)
    given_up = jobs.pop(position)

    given_up.cancel() if ending == "cancel" else given_up.expire("late")

    assert queue.waiting == 2
    late, _ = make_job()
    assert queue.put(late)
    assert not queue.put(make_job()[0])
    assert queue.take(9) == [*jobs, late]
    assert queue.waiting == 0


def test_a_job_that_was_taken_frees_nothing_more() -> None:
    queue, _ = filled(2)
    (taken,) = queue.take(1)

    taken.cancel()

    assert queue.waiting == 1


def test_jobs_put_back_come_first_and_in_order() -> None:
    queue, jobs = filled(4)
    taken = queue.take(3)
    for job in taken:
        job.state = RUNNING
    taken[1].finish(Answer(0), b"")

    queue.put_back(taken)

    assert queue.waiting == 3
    assert jobs[0].state == QUEUED
    assert queue.take(9) == [jobs[0], jobs[2], jobs[3]]


def test_jobs_are_put_back_beyond_the_bound() -> None:
    queue, _ = filled(2, capacity=2)
    taken = queue.take(2)
    assert queue.put(make_job()[0])
    assert queue.put(make_job()[0])

    queue.put_back(taken)

    assert queue.waiting == 4
    assert not queue.put(make_job()[0])


def test_a_job_that_was_put_back_can_be_given_up() -> None:
    queue, jobs = filled(2)
    taken = queue.take(2)
    queue.put_back(taken)

    jobs[0].cancel()

    assert queue.waiting == 1
    assert queue.take(9) == [jobs[1]]


def test_jobs_that_run_alone() -> None:
    queue = JobQueue(10)
    jobs = [make_job(alone=alone)[0] for alone in (False, True, True, False, False)]
    for job in jobs:
        queue.put(job)

    assert not queue.head_is_alone()
    assert queue.take(4) == jobs[:1]
    assert queue.head_is_alone()
    assert queue.take(4) == [jobs[1]]
    assert queue.take(4) == [jobs[2]]
    assert not queue.head_is_alone()
    assert queue.take(4) == jobs[3:]
    assert not queue.head_is_alone()


def test_the_oldest_is_the_first_that_is_still_wanted() -> None:
    queue = JobQueue(10)
    jobs = [make_job(arrived=arrived)[0] for arrived in (1.0, 2.0, 3.0)]
    for job in jobs:
        queue.put(job)
    assert queue.oldest() == 1.0

    jobs[0].cancel()
    jobs[1].expire("late")

    assert queue.oldest() == 3.0


def test_a_queue_head_that_was_given_up_is_not_alone() -> None:
    queue = JobQueue(10)
    describe, _ = make_job(alone=True)
    queue.put(describe)
    queue.put(make_job()[0])

    describe.cancel()

    assert not queue.head_is_alone()


def test_given_up_jobs_do_not_pile_up() -> None:
    queue, (first,) = filled(1, capacity=4)
    for _ in range(10_000):
        job, _ = make_job()
        assert queue.put(job)
        job.cancel()

    assert queue.waiting == 1
    assert len(queue._jobs) < 100
    assert queue.take(9) == [first]


def test_compaction_keeps_the_order() -> None:
    queue = JobQueue(1000)
    jobs = [make_job()[0] for _ in range(400)]
    for job in jobs:
        queue.put(job)

    for index, job in enumerate(jobs):
        if index % 10:
            job.cancel()

    assert queue.waiting == 40
    assert queue.take(1000) == jobs[::10]


def test_failing_all() -> None:
    queue = JobQueue(10)
    made = [make_job() for _ in range(3)]
    for job, _ in made:
        queue.put(job)
    made[1][0].cancel()

    queue.fail_all(ServiceUnavailableError("gone"))

    assert [reply.errors for _, reply in made[1:2]] == [[]]
    assert [reply.error for _, reply in made[::2]] == [(503, "gone")] * 2
    assert {job.state for job, _ in made} == {DONE}
    assert queue.waiting == 0
    assert queue.put(make_job()[0])
