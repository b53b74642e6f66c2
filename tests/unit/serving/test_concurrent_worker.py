"""Workers that run many batches at a time (batching_and_llm.md §10)."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.serving.support import KILLED, Rig, on_loop, settle, until

from relight.serving.concurrent import ConcurrentWorker
from relight.serving.launchers.base import ExitStatus
from relight.serving.worker import State
from relight.wire.messages import Answer, Batch, Kind, Notice
from relight.wire.messages import Reply as ReplyMessage

if TYPE_CHECKING:
    from tests.unit.serving.support import Peer, RecordedReply


def concurrent(**version: Any) -> Rig:
    return Rig(async_communication=True, **version)


async def batches(peer: Peer, count: int) -> list[Batch]:
    return [(await peer.batch())[0] for _ in range(count)]


async def notice(peer: Peer) -> tuple[int, int, int]:
    """The next frame, which is no batch: its kind, sequence number and index."""
    frame = await peer.frames.get()
    told = msgspec.msgpack.decode(frame.meta, type=Notice)
    return frame.kind, told.seq, told.index


@on_loop
async def test_requests_do_not_wait_for_each_other() -> None:
    rig = concurrent(queue_size=1)
    (peer,) = await rig.start(1)

    replies = [rig.submit(b"%d" % number) for number in range(500)]
    begun = await batches(peer, 500)

    assert (rig.queue.waiting, rig.queue.ahead) == (0, 0)
    for number in (499, 0, 250):
        peer.answer(begun[number], b"answer %d" % number)
        await until(lambda number=number: replies[number].ended)  # type: ignore[misc]
        assert replies[number].body == b"answer %d" % number
    assert sum(reply.ended for reply in replies) == 3
    await rig.close()


@on_loop
async def test_the_number_of_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConcurrentWorker, "capacity", 3)
    rig = concurrent()
    (peer,) = await rig.start(1)
    replies = [rig.submit(b"%d" % number) for number in range(7)]

    begun = await batches(peer, 3)
    assert rig.queue.waiting == 4
    for _ in range(4):
        peer.answer(begun.pop(), b"")
        begun += await batches(peer, 1)
    for batch in begun:
        peer.answer(batch, b"")

    await until(lambda: all(reply.ended for reply in replies))
    again = [rig.submit() for _ in range(3)]
    await peer.serve(3)
    await until(lambda: all(reply.ended for reply in again))
    await rig.close()


@on_loop
async def test_the_worker_that_has_least_gets_the_next() -> None:
    rig = concurrent()
    one, two = await rig.start(2)
    for _ in range(4):
        rig.submit()
    first = await batches(one, 2)
    await batches(two, 2)

    for batch in first:
        peer_answered = rig.pool.workers[0].held
        one.answer(batch, b"")
        await until(lambda held=peer_answered: rig.pool.workers[0].held < held)  # type: ignore[misc]
    for _ in range(2):
        rig.submit()

    await batches(one, 2)
    assert two.frames.empty()
    await rig.close()


@on_loop
async def test_finished_batches_are_forgotten() -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    known = weakref.ref(rig.submit(b"x"))
    (batch,) = await batches(peer, 1)
    peer.answer(batch, b"part", kind=Kind.CHUNK)
    assert known() is not None

    peer.answer(batch, b"")
    await until(lambda: not rig.pool.workers[0].held)
    gc.collect()

    assert known() is None
    await rig.close()


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.CHUNK])
@on_loop
async def test_a_failure_concerns_its_batch_alone(kind: int) -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    good, bad, stream = rig.submit(), rig.submit(), rig.submit()
    begun = await batches(peer, 3)
    peer.answer(begun[2], b"1", kind=Kind.CHUNK)

    peer.fail(begun[1], 503, "because", kind)
    await until(lambda: bad.ended)

    assert bad.error == (503, "because")
    assert not good.ended
    peer.answer(begun[2], b"2")
    peer.answer(begun[0], b"good")
    await until(lambda: good.ended and stream.ended)
    assert (good.body, stream.chunks, stream.body) == (b"good", [b"1"], b"2")
    await rig.close()


@on_loop
async def test_what_comes_after_the_end_of_a_batch_is_dropped() -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    first, second = rig.submit(), rig.submit()
    begun = await batches(peer, 2)

    peer.answer(begun[0], b"1")
    peer.answer(begun[0], b"late", kind=Kind.CHUNK)
    peer.answer(begun[0], b"late")
    peer.answer(begun[1], b"2")
    await until(lambda: second.ended)

    assert (first.body, second.body) == (b"1", b"2")
    assert rig.pool.workers[0].state is State.READY
    await rig.close()


@on_loop
async def test_an_answer_to_what_was_never_sent_breaks_the_protocol() -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    (batch,) = await batches(peer, 1)

    peer.send(Kind.REPLY, ReplyMessage(batch.seq + 1, [Answer(0)]))
    await rig.launcher.next()

    assert reply.error == (500, "Worker died.")
    await rig.close()


# -- batches -----------------------------------------------------------------------------------------------------


@on_loop
async def test_partial_batches_wait_for_more_as_the_policy_says() -> None:
    from relight.serving.batching import FixedBatching

    rig = Rig(FixedBatching(2, 3600.0), batch_size=2, async_communication=True)
    (peer,) = await rig.start(1)

    for _ in range(5):
        rig.submit()

    assert [len(batch.items) for batch in await batches(peer, 2)] == [2, 2]
    assert rig.queue.waiting == 1
    await rig.close()


# -- cancellation ------------------------------------------------------------------------------------------------


@on_loop
async def test_the_worker_is_told_who_has_gone() -> None:
    from relight.serving.batching import FixedBatching

    rig = Rig(FixedBatching(2, 3600.0), batch_size=2, async_communication=True)
    (peer,) = await rig.start(1)
    rig.submit()
    gone, reply = rig.job()
    (batch,) = await batches(peer, 1)

    gone.cancel()

    assert await notice(peer) == (Kind.CANCEL, batch.seq, 1)
    peer.answer(batch, b"1", b"2")
    await until(lambda: not rig.pool.workers[0].held)
    assert not reply.ended
    await rig.close()


# -- slow clients ------------------------------------------------------------------------------------------------


@on_loop
async def test_a_slow_client_is_waited_for_and_nobody_else() -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    lazy_job, lazy = rig.job()
    eager = rig.submit()
    slow, quick = await batches(peer, 2)
    lazy.slow = True

    peer.answer(slow, b"1", kind=Kind.CHUNK)
    assert await notice(peer) == (Kind.HOLD, slow.seq, 0)
    peer.answer(slow, b"2", kind=Kind.CHUNK)
    peer.answer(quick, b"done")
    await until(lambda: eager.ended)
    assert lazy.chunks == [b"1", b"2"]

    lazy.slow = False
    lazy_job.drained()
    assert await notice(peer) == (Kind.RELEASE, slow.seq, 0)
    peer.answer(slow, b"3")
    await until(lambda: lazy.ended)
    await rig.close()


@on_loop
async def test_what_waits_for_a_slow_client_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relight.serving.backpressure.MOST_UNREAD", 1000)
    rig = concurrent()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    (batch,) = await batches(peer, 1)
    reply.slow = True

    for _ in range(3):
        peer.answer(batch, b"x" * 500, kind=Kind.CHUNK)
    await until(lambda: reply.ended)

    assert reply.error == (408, "The client does not keep up: it was sent 1500 bytes since it fell behind.")
    assert [await notice(peer) for _ in range(3)] == [
        (Kind.HOLD, batch.seq, 0),
        (Kind.CANCEL, batch.seq, 0),
        (Kind.RELEASE, batch.seq, 0),
    ]
    peer.answer(batch, b"")
    await until(lambda: not rig.pool.workers[0].held)
    await rig.close()


@on_loop
async def test_a_client_that_never_reads_is_given_up() -> None:
    now = 100.0
    rig = concurrent(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    reply = rig.submit()
    (batch,) = await batches(peer, 1)
    reply.slow = True
    peer.answer(batch, b"1", kind=Kind.CHUNK)
    await until(lambda: reply.chunks)

    now += 29
    worker._check_silence()
    assert not reply.ended
    now += 2
    worker._check_silence()

    assert reply.error == (408, "The client has read nothing for 30 s.")
    assert [(await notice(peer))[0] for _ in range(3)] == [Kind.HOLD, Kind.CANCEL, Kind.RELEASE]
    now += 29
    worker._check_silence()
    await settle()
    assert peer.frames.empty()
    assert peer.kills == 0
    await rig.close()


# -- timeouts ----------------------------------------------------------------------------------------------------


@on_loop
async def test_a_batch_that_is_silent_is_stopped_and_no_other() -> None:
    now = 100.0
    rig = concurrent(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    silent, stream = rig.submit(), rig.submit()
    first, second = await batches(peer, 2)
    now += 29
    peer.answer(second, b"1", kind=Kind.CHUNK)
    await until(lambda: stream.chunks)
    now += 2

    worker._check_silence()

    assert silent.error == (500, "No response within response_timeout of 30 s.")
    assert await notice(peer) == (Kind.STOP, first.seq, 0)
    assert not stream.ended
    peer.fail(first, 500, "stopped")
    await until(lambda: worker.held == 1)
    now += 27
    worker._check_silence()
    assert not stream.ended
    now += 2
    worker._check_silence()
    assert stream.error[0] == 500
    assert peer.kills == 0
    await rig.close()


@on_loop
async def test_a_worker_that_does_not_stop_a_batch_is_killed() -> None:
    now = 100.0
    rig = concurrent(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    rig.submit()
    await batches(peer, 1)
    now += 31
    worker._check_silence()
    other = rig.submit()
    await notice(peer)
    await peer.batch(begin=False)
    now += 4
    worker._check_silence()
    assert peer.kills == 0
    now += 2

    worker._check_silence()

    assert peer.kills == 1
    fresh = await rig.launcher.next()
    assert worker.failure is not None
    assert worker.failure.cause == "batch not stopped within 5 s after its response_timeout"
    # The one that it had not begun goes to the next process.
    await fresh.serve()
    await until(lambda: other.ended)
    assert other.answers
    await rig.close()


@on_loop
async def test_the_timer_finds_every_batch() -> None:
    rig = concurrent(response_timeout=0.02)
    (peer,) = await rig.start(1)
    first = rig.submit()
    await until(lambda: first.ended)
    second = rig.submit()
    await until(lambda: second.ended)

    assert first.error == second.error == (500, "No response within response_timeout of 0.02 s.")
    assert peer.kills == 0
    await rig.close()


@on_loop
async def test_a_request_that_comes_while_others_time_out_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    rig = concurrent(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    reply = rig.submit()
    (batch,) = await batches(peer, 1)
    later: list[RecordedReply] = []
    monkeypatch.setattr(reply, "fail", lambda _: later.append(rig.submit()))
    now += 31

    worker._check_silence()

    assert worker._silence is not None
    peer.fail(batch, 500, "stopped")
    await until(lambda: worker.held == 1)
    now += 29
    worker._check_silence()
    assert not later[0].errors
    now += 2
    worker._check_silence()
    assert len(later[0].errors) == 1
    assert peer.kills == 0
    await rig.close()


# -- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "expected"), [(ExitStatus(1, None), 500), (KILLED, 507)])
@on_loop
async def test_death_fails_what_was_begun_and_puts_back_the_rest(status: ExitStatus, expected: int) -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    begun = [rig.job() for _ in range(3)]
    await batches(peer, 3)
    rest = [rig.submit(b"%d" % number) for number in range(2)]

    peer.exit(status)
    await until(lambda: all(reply.ended for _, reply in begun))

    assert [reply.error for _, reply in begun] == [(expected, "Worker died.")] * 3
    failure = rig.pool.workers[0].failure
    assert failure is not None
    assert (failure.phase, failure.lost) == ("handle", [job.request_id for job, _ in begun])
    fresh = await rig.launcher.next()
    await fresh.serve(2)
    await until(lambda: all(reply.ended for reply in rest))
    assert [reply.body for reply in rest] == [b"0", b"1"]
    await rig.close()


@on_loop
async def test_without_a_shared_page_everything_counts_as_begun() -> None:
    rig = Rig(async_communication=True, with_page=False)
    (peer,) = await rig.start(1)
    replies = [rig.submit() for _ in range(3)]
    await peer.batch()

    peer.exit(ExitStatus(1, None))
    await until(lambda: all(reply.ended for reply in replies))

    assert {reply.error for reply in replies} == {(500, "Worker died.")}
    await rig.close()


@on_loop
async def test_a_worker_finishes_what_it_has_before_it_is_stopped() -> None:
    import asyncio

    rig = concurrent()
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    replies = [rig.submit() for _ in range(2)]
    begun = await batches(peer, 2)

    stopping = asyncio.create_task(rig.pool.scale(0, 0))
    await until(lambda: worker.state is State.DRAINING)
    peer.answer(begun[1], b"")
    await until(lambda: replies[1].ended)
    assert not stopping.done()
    peer.answer(begun[0], b"")
    await stopping

    assert all(reply.answers for reply in replies)
    await rig.close()


@on_loop
async def test_a_client_that_lags_at_the_end_of_the_process() -> None:
    rig = concurrent()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    (batch,) = await batches(peer, 1)
    reply.slow = True
    peer.answer(batch, b"1", kind=Kind.CHUNK)
    await until(lambda: reply.chunks)

    await rig.pool.scale(0, 0, timeout=0)

    assert reply.ended
    job.drained()
