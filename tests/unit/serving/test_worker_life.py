"""A worker through its processes: restarts, states, the end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
from tests.unit.serving.support import Rig, on_loop, settle, until, within

from relight.serving import restart
from relight.serving import worker as worker_module
from relight.serving.launchers.base import ExitStatus
from relight.serving.worker import State


class Clock:
    """The time that a worker sees: back-offs pass at once, and move it on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds >= 1:
            made.sleeps.append(seconds)
            made.now += seconds
            seconds = 0
        await real(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(worker_module, "time", made)
    return made


@on_loop
async def test_back_off(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(max_retry_timeout=60)
    (worker,) = await rig.pool.scale(1, 1)
    states = []

    while worker.state is not State.ABANDONED:
        await (await rig.launcher.next(load=False)).fail_to_load()
        states.append(await until(lambda: worker.state if rig.launcher.peers.qsize() or dead(worker) else None))

    # 1 + 1 + 2 + 3 + 5 + 8 + 13 + 21 = 54, and 34 more would be too many.
    assert clock.sleeps == [1, 1, 2, 3, 5, 8, 13, 21]
    assert [record.message for record in caplog.records if record.message.startswith("Retry")][:3] == [
        "Retry worker: 9000 in 1 seconds.",
        "Retry worker: 9000 in 1 seconds.",
        "Retry worker: 9000 in 2 seconds.",
    ]
    assert "is not restarted: it kept failing for " in caplog.text
    assert worker.restarts == rig.launcher.launches - 1 == 8
    assert rig.pool.alive == 0
    assert rig.pool.workers == [worker]


def dead(worker: worker_module.Worker) -> bool:
    return worker.state is State.ABANDONED


@on_loop
async def test_a_worker_that_served_restarts_at_once(clock: Clock) -> None:
    rig = Rig(max_retry_timeout=1000)
    (peer,) = await rig.start(1)

    for _ in range(restart._SHORT_LIVES):
        peer.exit(ExitStatus(1, None))
        peer = await rig.launcher.next()
    assert clock.sleeps == []

    # A worker of many short lives does not help, so that it does not stay at once.
    for _ in range(3):
        peer.exit(ExitStatus(1, None))
        peer = await rig.launcher.next()
    assert clock.sleeps == [1, 1, 2]
    await rig.close()


@on_loop
async def test_a_worker_that_served_for_a_while_begins_anew(clock: Clock) -> None:
    rig = Rig(max_retry_timeout=1000)
    await rig.pool.scale(1, 1)
    for _ in range(3):
        await (await rig.launcher.next(load=False)).fail_to_load()
    peer = await rig.launcher.next()
    assert clock.sleeps == [1, 1, 2]
    await until(lambda: rig.pool.ready)
    clock.now += 100

    peer.exit(ExitStatus(1, None))
    await rig.launcher.next()

    assert clock.sleeps == [1, 1, 2]
    await rig.close()


@on_loop
async def test_the_states_of_a_worker() -> None:
    rig = Rig()
    (worker,) = await rig.pool.scale(1, 1)
    seen = [(worker.state, worker.pid)]
    peer = await rig.launcher.next()
    await until(lambda: rig.pool.ready)
    seen.append((worker.state, worker.pid))
    reply = rig.submit()
    batch, _ = await peer.batch()
    stopping = asyncio.ensure_future(worker.stop(None))
    await settle()
    seen.append((worker.state, worker.pid))
    peer.answer(batch, b"")
    await within(stopping)
    seen.append((worker.state, worker.pid))

    assert seen == [(State.STARTING, None), (State.READY, 4711), (State.DRAINING, 4711), (State.STOPPED, None)]
    assert reply.ended


@on_loop
async def test_death_while_draining_is_told() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    await peer.batch()
    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()

    peer.exit(ExitStatus(None, signal.SIGKILL))
    await asyncio.wait([down], timeout=5)

    assert reply.error == (507, "Worker died.")
    assert down.done()
    assert rig.pool.workers == []
    assert rig.launcher.launches == 1


@on_loop
async def test_nothing_is_left_open() -> None:
    rig = Rig()
    before = 0

    for turn in range(3):
        peers = await rig.start(2)
        peers[0].exit(ExitStatus(1, None))
        await rig.launcher.next()
        await rig.pool.scale(0, 0)
        await settle()
        count = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one list to count
        # The loop opens some of its own when it first needs them.
        before = before if turn else count
        assert count == before


@on_loop
async def test_a_process_that_cannot_be_connected_to_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def attach(fd: int, protocol: object) -> None:
        raise OSError(24, "Too many open files")

    rig = Rig(max_retry_timeout=0)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one list to count
    monkeypatch.setattr("relight.serving.process.attach", attach)

    (worker,) = await rig.pool.scale(1, 1)
    diagnosis = await rig.pool.loaded([worker])

    assert diagnosis is not None
    assert (diagnosis.phase, diagnosis.cause) == ("start", "[Errno 24] Too many open files")
    assert rig.launcher.all[0].kills == 1
    await rig.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
