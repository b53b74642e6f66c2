"""The end of a worker's process: what is lost, what is not, and what is told about it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest
from tests.unit.serving.support import Rig, on_loop, until

from relight.serving.launchers.base import ExitStatus
from relight.serving.worker import State
from relight.wire.messages import Kind
from relight.wire.progress import Phase

if TYPE_CHECKING:
    from tests.unit.serving.support import Peer


# -- death -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ExitStatus(1, None), 500),
        (ExitStatus(0, None), 500),
        (ExitStatus(None, signal.SIGSEGV), 500),
        (ExitStatus(None, signal.SIGKILL), 507),
        (ExitStatus(137, None), 507),
    ],
)
@on_loop
async def test_death_while_handling(status: ExitStatus, expected: int) -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    await peer.batch()
    peer.print("about to\ndie")
    peer.print("for this reason\n", err=True)

    peer.exit(status)
    await until(lambda: reply.ended)

    assert reply.error == (expected, "Worker died.")
    (worker,) = rig.pool.workers
    failure = worker.failure
    assert failure is not None
    assert (failure.phase, failure.exit, failure.lost) == ("handle", status, [job.request_id])
    assert sorted(failure.output) == ["about to", "die", "for this reason"]
    await rig.launcher.next()
    await until(lambda: worker.state is State.READY)
    assert worker.restarts == 1
    assert worker.failure is failure
    await rig.close()


@on_loop
async def test_batches_that_were_not_begun_go_elsewhere_and_first() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 3
    begun, ahead_1, ahead_2 = (rig.submit(b"%d" % number) for number in range(3))
    queued = rig.submit(b"3")
    await peer.batch()
    assert (rig.queue.waiting, rig.queue.ahead) == (1, 2)

    peer.exit(ExitStatus(1, None))
    await until(lambda: begun.ended)

    assert begun.error == (500, "Worker died.")
    assert (rig.queue.waiting, rig.queue.ahead) == (3, 0)
    fresh = await rig.launcher.next()
    assert [(await _body(fresh)) for _ in range(3)] == [b"1", b"2", b"3"]
    await until(lambda: queued.ended)
    assert [reply.body for reply in (ahead_1, ahead_2, queued)] == [b"1", b"2", b"3"]
    await rig.close()


async def _body(peer: Peer) -> bytes:
    batch, payload = await peer.batch()
    peer.answer(batch, payload)
    return payload


@on_loop
async def test_another_worker_takes_over_at_once() -> None:
    rig = Rig()
    peers = await rig.start(2)
    for worker in rig.pool.workers:
        worker.depth = 2
    replies = [rig.submit(b"%d" % number) for number in range(4)]
    held, _ = await peers[0].batch()
    await peers[1].batch()

    peers[1].exit(ExitStatus(1, None))
    await until(lambda: replies[1].ended)
    peers[0].answer(held, b"0")
    assert await _body(peers[0]) == b"2"
    assert await _body(peers[0]) == b"3"
    await until(lambda: replies[3].ended)

    assert replies[1].error == (500, "Worker died.")
    assert [reply.body for reply in (replies[0], replies[2], replies[3])] == [b"0", b"2", b"3"]
    await rig.close()


@pytest.mark.parametrize("lost", [0, 1])
@on_loop
async def test_without_a_shared_page_the_oldest_batch_counts_as_begun(lost: int) -> None:
    rig = Rig(with_page=False)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 3
    replies = [rig.submit(b"%d" % number) for number in range(3)]
    for _ in range(lost):
        batch, _ = await peer.batch()
        peer.answer(batch, b"")
    await until(lambda: sum(reply.ended for reply in replies) == lost)

    peer.exit(ExitStatus(1, None))
    fresh = await rig.launcher.next()
    for number in range(lost + 1, 3):
        assert await _body(fresh) == b"%d" % number
    await until(lambda: all(reply.ended for reply in replies))

    assert replies[lost].error == (500, "Worker died.")
    await rig.close()


@on_loop
async def test_death_while_idle_loses_nothing() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)

    peer.exit(ExitStatus(None, signal.SIGTERM))
    fresh = await rig.launcher.next()
    reply = rig.submit()
    await fresh.serve()
    await until(lambda: reply.ended)

    failure = rig.pool.workers[0].failure
    assert failure is not None
    assert (failure.phase, failure.lost, failure.own_doing) == ("idle", [], False)
    await rig.close()


@on_loop
async def test_an_answer_sent_just_before_the_death_counts() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()

    peer.answer(batch, b"last words")
    peer.exit(ExitStatus(1, None))
    await until(lambda: reply.ended)

    assert reply.body == b"last words"
    await rig.close()


@pytest.mark.parametrize(
    ("phase", "name"), [(Phase.START, "start"), (Phase.IMPORT, "import"), (Phase.INITIALIZE, "initialize")]
)
@on_loop
async def test_death_before_the_model_is_loaded(phase: int, name: str) -> None:
    rig = Rig()
    (worker,) = await rig.pool.scale(1, 1)
    peer = await rig.launcher.next(load=False)
    await peer.ordered()

    peer.enter(phase)
    peer.exit(ExitStatus(3, None))
    diagnosis = await rig.pool.loaded([worker])

    assert diagnosis is not None
    assert (diagnosis.phase, diagnosis.cause, diagnosis.exit) == (name, "the process ended", ExitStatus(3, None))
    assert worker.state is State.BACKING_OFF


@pytest.mark.parametrize(("status", "exhausted"), [(500, False), (507, True)])
@on_loop
async def test_a_model_that_cannot_be_loaded(status: int, exhausted: bool, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    (worker,) = await rig.pool.scale(1, 1)

    await (await rig.launcher.next(load=False)).fail_to_load("ValueError: no weights", status)
    diagnosis = await rig.pool.loaded([worker])

    assert diagnosis is not None
    assert diagnosis.exhausted is exhausted
    assert diagnosis.as_json()["exception"] == "ValueError: no weights"
    assert diagnosis.as_json()["traceback"] == "Traceback\nValueError: no weights\n"
    (record,) = [record for record in caplog.records if "died" in record.message]
    assert record.message.startswith("W-9000-m_1.0 died. phase: initialize; cause: ValueError: no weights")


# -- timeouts ----------------------------------------------------------------------------------------------------


@on_loop
async def test_a_silent_worker_is_killed() -> None:
    rig = Rig(response_timeout=0.05)
    (peer,) = await rig.start(1)
    reply = rig.submit()
    await peer.batch()

    await until(lambda: reply.ended)

    assert peer.kills > 0
    assert reply.error == (500, "Worker died.")
    failure = rig.pool.workers[0].failure
    assert failure is not None
    assert failure.cause == "no response within response_timeout of 0.05 s"
    assert failure.own_doing
    await rig.close()


@on_loop
async def test_without_any_time_every_request_fails() -> None:
    rig = Rig(response_timeout=0)
    await rig.start(1)
    reply = rig.submit()

    await until(lambda: rig.pool.workers[0].restarts)

    assert reply.error == (500, "Worker died.")
    await rig.close()


@on_loop
async def test_chunks_and_answers_rearm_the_timeout() -> None:
    now = 100.0
    rig = Rig(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    worker.depth = 2
    first, second = rig.submit(), rig.submit()
    batch, _ = await peer.batch()

    for number in range(3):
        now += 29
        peer.answer(batch, b"", kind=Kind.CHUNK)
        await until(lambda number=number: len(first.chunks) == number + 1)  # type: ignore[misc]
        worker._check_silence()
    now += 29
    peer.answer(batch, b"")
    await until(lambda: first.ended)
    now += 29
    worker._check_silence()
    assert peer.kills == 0
    await peer.batch()
    now += 2
    worker._check_silence()

    assert peer.kills == 1
    await until(lambda: second.ended)
    await rig.close()


@on_loop
async def test_an_idle_worker_may_be_silent() -> None:
    now = 100.0
    rig = Rig(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    reply = rig.submit()
    await peer.serve()
    await until(lambda: reply.ended)

    now += 1000
    rig.pool.workers[0]._check_silence()

    assert peer.kills == 0
    await rig.close()


@on_loop
async def test_a_model_that_takes_too_long_to_load() -> None:
    rig = Rig(startup_timeout=0.02)
    (worker,) = await rig.pool.scale(1, 1)
    peer = await rig.launcher.next(load=False)
    peer.enter(Phase.INITIALIZE)

    diagnosis = await rig.pool.loaded([worker])

    assert diagnosis is not None
    assert peer.kills > 0
    assert diagnosis.cause == "model not loaded within startup_timeout of 0.02 s"
    assert (diagnosis.phase, diagnosis.own_doing, diagnosis.exhausted) == ("initialize", True, False)


@on_loop
async def test_a_loaded_model_has_met_its_startup_timeout() -> None:
    rig = Rig(startup_timeout=0.02)
    (peer,) = await rig.start(1)

    await asyncio.sleep(0.03)

    assert peer.kills == 0
    await rig.close()
