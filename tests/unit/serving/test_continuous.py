"""Continuous batching: who is in a worker's next step, and what becomes of those who cannot go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.serving.support import Peer, Rig, make_job, on_loop, settle, until

from relight.serving.batching import FixedBatching
from relight.serving.worker import State

if TYPE_CHECKING:
    from tests.unit.serving.support import RecordedReply

    from relight.serving.job import Job


def rig_of(size: int = 3, **version: Any) -> Rig:
    return Rig(continuous_batching=True, batch_size=size, **version)


def describe(rig: Rig) -> RecordedReply:
    job, reply = make_job(arrived=rig.pool.clock(), alone=True)
    job.added = {"describe": "True"}
    assert rig.queue.put(job)
    rig.pool.dispatch()
    return reply


async def next_step(peer: Peer) -> list[str]:
    """Receive a step and leave it; the ids in it."""
    batch, _ = await peer.batch()
    return [item.request_id for item in batch.items]


def ids(*jobs: Job) -> list[str]:
    return [job.request_id for job in jobs]


@on_loop
async def test_a_request_goes_on_until_it_is_done() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    job, reply = rig.job(b"hello")

    batch, payload = await peer.batch()
    assert payload == b"hello"
    for part in (b"a", b"b"):
        peer.step(batch, part, more=[True])
        batch, payload = await peer.batch()
        assert [(item.request_id, item.headers, item.parts) for item in batch.items] == [
            (job.request_id, job.headers, [])
        ]
        assert payload == b""
    peer.step(batch, b"c", more=[False])
    await until(lambda: reply.ended)

    assert (reply.chunks, reply.body) == ([b"a", b"b"], b"c")
    assert rig.pool.has_idle_worker
    await rig.close()


@on_loop
async def test_others_join_between_steps_as_far_as_there_is_room() -> None:
    rig = rig_of(2)
    (peer,) = await rig.start(1)
    first, _ = rig.job()
    batch, _ = await peer.batch()
    second, second_reply = rig.job()
    third, _ = rig.job()

    peer.step(batch, b"", more=[True])
    batch, _ = await peer.batch()
    assert [item.request_id for item in batch.items] == ids(first, second)
    peer.step(batch, b"", b"done", more=[True, False])
    assert await next_step(peer) == ids(first, third)

    assert second_reply.body == b"done"
    assert rig.queue.waiting == 0
    await rig.close()


@on_loop
async def test_an_idle_worker_is_preferred() -> None:
    rig = rig_of()
    one, two = await rig.start(2)
    rig.submit()
    await one.batch()

    rig.submit()

    await two.batch()
    await rig.close()


@on_loop
async def test_nobody_joins_a_worker_that_has_not_answered() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    for _ in range(5):
        rig.submit()

    await peer.batch()
    await settle()

    assert peer.frames.empty()
    assert rig.queue.ahead == 0
    await rig.close()


@on_loop
async def test_who_is_given_up_is_not_in_the_next_step() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    gone, reply = rig.job()
    batch, _ = await peer.batch()
    peer.step(batch, b"a", more=[True])
    batch, _ = await peer.batch()
    stays, _ = rig.job()

    gone.cancel()
    assert peer.page is not None
    assert peer.page.cancelled(batch.seq, 0)
    peer.step(batch, b"b", more=[True])

    assert await next_step(peer) == ids(stays)
    assert reply.chunks == [b"a"]
    await rig.close()


@on_loop
async def test_the_last_one_given_up_leaves_an_idle_worker() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    job, _ = rig.job()
    batch, _ = await peer.batch()

    job.cancel()
    peer.step(batch, b"a", more=[True])

    await until(lambda: rig.pool.has_idle_worker)
    await rig.close()


@on_loop
async def test_an_error_ends_all_of_the_step() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    replies = [rig.submit()]
    batch, _ = await peer.batch()
    replies.append(rig.submit())
    peer.step(batch, b"a", more=[True])
    batch, _ = await peer.batch()

    peer.fail(batch, 503, "Prediction failed")
    await until(lambda: all(reply.ended for reply in replies))

    assert [reply.error for reply in replies] == [(503, "Prediction failed")] * 2
    assert rig.pool.has_idle_worker
    await rig.close()


@on_loop
async def test_a_description_runs_alone_between_steps() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    batch, _ = await peer.batch()
    described = describe(rig)
    later, _ = rig.job()

    peer.step(batch, b"a", more=[True])
    batch, _ = await peer.batch()
    assert [item.added for item in batch.items] == [{"describe": "True"}]
    peer.step(batch, b"{}", more=[False])

    assert await next_step(peer) == ids(job, later)
    assert described.body == b"{}"
    assert reply.chunks == [b"a"]
    await rig.close()


@on_loop
async def test_an_idle_worker_waits_as_the_policy_says_and_a_busy_one_does_not() -> None:
    rig = Rig(FixedBatching(3, 3600.0), continuous_batching=True, batch_size=3)
    (peer,) = await rig.start(1)
    jobs = [rig.job()[0] for _ in range(2)]
    await settle()
    assert peer.frames.empty()

    jobs.append(rig.job()[0])
    batch, _ = await peer.batch()
    jobs.append(rig.job()[0])
    peer.step(batch, b"", b"", b"", more=[True, False, True])

    assert await next_step(peer) == ids(jobs[0], jobs[2], jobs[3])
    await rig.close()


@on_loop
async def test_a_slow_client_that_is_alone_is_waited_for() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    reply.slow = True
    batch, _ = await peer.batch()
    peer.step(batch, b"a", more=[True])
    batch, _ = await peer.batch()
    await until(lambda: job.on_drain)

    peer.step(batch, b"b", more=[True])
    await settle()
    assert reply.chunks == [b"a"]

    job.drained()
    await until(lambda: reply.chunks == [b"a", b"b"])
    await rig.close()


@on_loop
async def test_others_do_not_wait_for_a_slow_client() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    reply.slow = True
    batch, _ = await peer.batch()
    peer.step(batch, b"a", more=[True])
    batch, _ = await peer.batch()
    await until(lambda: job.on_drain)

    other, _ = rig.job()
    peer.step(batch, b"b", more=[True])

    assert await next_step(peer) == ids(job, other)
    await rig.close()


# -- death and drain ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [True, False])
@on_loop
async def test_what_a_dead_worker_knew_is_lost(begun: bool) -> None:
    """Whether or not it had begun the step: nobody else can go on."""
    rig = rig_of()
    peer, other = await rig.start(2)
    first_reply = rig.submit()
    rig.submit(b"keeps the other one busy")
    batch, _ = await peer.batch()
    await other.batch()
    second_reply = rig.submit(b"second")
    peer.step(batch, b"a", more=[True])
    await peer.batch(begin=begun)

    peer.kill()
    await until(lambda: first_reply.ended)

    assert first_reply.error == (507, "Worker died.")
    assert second_reply.ended is begun
    assert rig.queue.waiting == (0 if begun else 1)
    await rig.close()


@on_loop
async def test_death_during_a_description_ends_what_went_on() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()
    described = describe(rig)
    peer.step(batch, b"a", more=[True])
    await peer.batch()

    peer.kill()
    await until(lambda: reply.ended and described.ended)

    assert reply.error == described.error == (507, "Worker died.")
    await rig.close()


@on_loop
async def test_a_worker_that_is_stopped_ends_what_it_has_and_takes_nothing_new() -> None:
    rig = rig_of()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()
    worker = rig.pool.workers[0]
    closing = asyncio.ensure_future(rig.pool.scale(0, 0))
    await until(lambda: worker.state is State.DRAINING)

    peer.step(batch, b"a", more=[True])
    batch, _ = await peer.batch()
    peer.step(batch, b"b", more=[False])
    await closing

    assert (reply.chunks, reply.body) == ([b"a"], b"b")


@on_loop
async def test_a_surplus_worker_takes_nothing_new() -> None:
    rig = rig_of()
    one, two = await rig.start(2)
    for _ in range(2):
        rig.submit()
    batch, _ = await one.batch()
    last, _ = await two.batch()
    scaling = asyncio.ensure_future(rig.pool.scale(1, 1))
    await until(lambda: rig.pool.workers[1].state is State.DRAINING)
    waiting, _ = rig.job()

    two.step(last, b"a", more=[True])
    last, _ = await two.batch()
    assert len(last.items) == 1
    two.step(last, b"b", more=[False])
    await scaling

    one.step(batch, b"", more=[True])
    assert waiting.request_id in await next_step(one)
    await rig.close()
