"""Scaling, health and devices of the workers of one version."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.serving.support import Rig, on_loop, settle, until, within

from relight.serving.launchers.base import ExitStatus, LaunchError
from relight.serving.worker import State, Worker


def ids(rig: Rig) -> list[int]:
    return [worker.worker_id for worker in rig.pool.workers]


# -- scaling -----------------------------------------------------------------------------------------------------


@on_loop
async def test_scaling_up_and_down() -> None:
    rig = Rig()
    assert [worker.worker_id for worker in await rig.pool.scale(2, 2)] == [9000, 9001]
    assert [worker.worker_id for worker in await rig.pool.scale(4, 4)] == [9002, 9003]
    assert (rig.pool.alive, rig.pool.ready) == (4, 0)
    peers = [await rig.launcher.next() for _ in range(4)]
    await until(lambda: rig.pool.ready == 4)

    assert await rig.pool.scale(1, 2) == []
    assert ids(rig) == [9000, 9001]
    assert [peer.exited.done() for peer in peers] == [False, False, True, True]
    assert (rig.settings.min_workers, rig.settings.max_workers) == (1, 2)

    await rig.pool.scale(0, 0)
    assert ids(rig) == []
    assert (rig.pool.alive, rig.pool.ready) == (0, 0)
    assert [peer.kills for peer in peers] == [0, 0, 0, 0]

    assert [worker.worker_id for worker in await rig.pool.scale(1, 1)] == [9004]
    await rig.close()


@on_loop
async def test_between_minimum_and_maximum_nothing_changes() -> None:
    rig = Rig()
    await rig.start(3)

    assert await rig.pool.scale(1, 5) == []

    assert rig.pool.ready == 3
    await rig.close()


@on_loop
async def test_scalings_follow_one_after_the_other() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()

    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    up = asyncio.ensure_future(rig.pool.scale(1, 1))
    await settle()
    assert rig.launcher.launches == 1

    peer.answer(batch, b"")
    await down
    assert reply.ended
    assert [worker.worker_id for worker in await up] == [9001]
    await rig.close()


@on_loop
async def test_surplus_workers_finish_what_they_run() -> None:
    rig = Rig()
    peers = await rig.start(2)
    replies = [rig.submit(), rig.submit()]
    batches = [(await peer.batch())[0] for peer in peers]

    down = asyncio.ensure_future(rig.pool.scale(1, 1))
    await settle()
    assert [worker.state for worker in rig.pool.workers] == [State.READY, State.DRAINING]
    third = rig.submit()
    peers[1].answer(batches[1], b"done")
    await within(down)

    assert replies[1].body == b"done"
    assert not replies[0].ended
    assert peers[1].kills == 0
    peers[0].answer(batches[0], b"")
    await peers[0].serve()
    await until(lambda: third.ended)
    await rig.close()


@on_loop
async def test_what_was_sent_ahead_to_a_surplus_worker_is_served_by_it() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    replies = [rig.submit(), rig.submit()]
    first, _ = await peer.batch()
    second, _ = await peer.batch(begin=False)

    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()
    peer.answer(first, b"1")
    await settle()
    assert not down.done()
    peer.answer(second, b"2")
    await within(down)

    assert [reply.body for reply in replies] == [b"1", b"2"]


@pytest.mark.parametrize("timeout", [0, 0.02])
@on_loop
async def test_surplus_workers_that_take_too_long_are_killed(timeout: float) -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    await peer.batch()

    await within(rig.pool.scale(0, 0, timeout=timeout))

    assert reply.error == (503, "Worker scaled down.")
    assert peer.kills > 0
    assert rig.pool.workers == []


@on_loop
async def test_the_last_workers_serve_what_is_queued_and_take_nothing_new() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    replies = [rig.submit(b"%d" % number) for number in range(4)]

    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()
    assert rig.pool.alive == 0
    assert sum(await peer.serve(4)) == 4
    await within(down)

    assert [reply.body for reply in replies] == [b"0", b"1", b"2", b"3"]


@on_loop
async def test_what_is_queued_is_answered_when_the_last_worker_is_stopped_at_once() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    replies = [rig.submit() for _ in range(4)]
    await peer.batch()

    await within(rig.pool.scale(0, 0, timeout=0))

    assert [reply.error[0] for reply in replies] == [503] * 4
    assert replies[3].error[1] == 'Model "m" has no worker left.'


@on_loop
async def test_scaling_to_none_ends_when_the_queued_clients_leave() -> None:
    rig = Rig()
    await rig.pool.scale(1, 1)
    peer = await rig.launcher.next(load=False)
    job, _ = rig.job()

    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()
    job.cancel()
    await peer.load()

    await asyncio.wait([down], timeout=5.0)
    assert down.done()


@on_loop
async def test_scaling_to_none_ends_when_the_last_queued_request_kills_its_worker() -> None:
    rig = Rig()
    await rig.pool.scale(1, 1)
    peer = await rig.launcher.next(load=False)
    _, reply = rig.job()

    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()
    await peer.load()
    await peer.batch()
    peer.exit(ExitStatus(3, None))
    await asyncio.wait([down], timeout=5.0)

    assert down.done()
    assert reply.error == (500, "Worker died.")
    assert rig.launcher.launches == 1


@on_loop
async def test_a_worker_that_is_starting_is_stopped() -> None:
    rig = Rig()
    (worker,) = await rig.pool.scale(1, 1)
    peer = await rig.launcher.next(load=False)
    await peer.ordered()

    await within(rig.pool.scale(0, 0))

    assert peer.kills > 0
    assert rig.pool.workers == []
    diagnosis = await rig.pool.loaded([worker])
    assert diagnosis is not None
    assert diagnosis.cause == "stopped before the model was loaded"


@on_loop
async def test_a_worker_that_is_being_launched_is_stopped() -> None:
    rig = Rig()
    rig.launcher.hold = asyncio.Event()
    await rig.pool.scale(1, 1)
    await until(lambda: rig.launcher.launches)

    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()
    rig.launcher.hold.set()
    await within(down)

    (peer,) = rig.launcher.all
    assert peer.kills > 0
    assert rig.pool.workers == []


async def backing_off(rig: Rig) -> Worker:
    """A worker that waits for its restart, for a second at least."""
    (worker,) = await rig.pool.scale(1, 1)
    await (await rig.launcher.next(load=False)).fail_to_load()
    await until(lambda: worker.state is State.BACKING_OFF)
    return worker


@on_loop
async def test_a_worker_that_waits_for_its_restart_is_stopped() -> None:
    rig = Rig()
    await backing_off(rig)

    await within(rig.pool.scale(0, 0))

    assert rig.pool.workers == []
    assert rig.launcher.launches == 1


@on_loop
async def test_a_model_whose_worker_was_stopped_in_its_back_off_can_be_scaled_up() -> None:
    rig = Rig()
    await backing_off(rig)
    await rig.pool.scale(0, 0)

    started = await rig.pool.scale(1, 1)

    assert len(started) == 1
    await rig.close()


# -- health ------------------------------------------------------------------------------------------------------


@on_loop
async def test_loading_is_reported_with_the_first_failure() -> None:
    rig = Rig()
    workers = await rig.pool.scale(3, 3)
    peers = [await rig.launcher.next(load=False) for _ in range(3)]
    waiting = asyncio.ensure_future(rig.pool.loaded(workers))
    await peers[0].load()
    await peers[2].fail_to_load("ImportError: nothing", phase="import")

    diagnosis = await within(waiting)

    assert diagnosis is not None
    assert (diagnosis.phase, diagnosis.exception) == ("import", "ImportError: nothing")
    await rig.close()


@on_loop
async def test_abandoned_workers_are_replaced_when_scaling() -> None:
    rig = Rig(max_retry_timeout=0)
    (worker,) = await rig.pool.scale(1, 1)
    await (await rig.launcher.next(load=False)).fail_to_load()
    await until(lambda: worker.state is State.ABANDONED)
    assert rig.pool.workers == [worker]
    assert rig.pool.alive == 0

    (fresh,) = await rig.pool.scale(1, 1)
    await rig.launcher.next()

    await until(lambda: fresh.state is State.READY)
    assert rig.pool.workers == [fresh]
    assert (rig.pool.alive, rig.pool.ready) == (1, 1)
    await rig.close()


@on_loop
async def test_queued_requests_fail_when_nobody_is_left() -> None:
    rig = Rig(max_retry_timeout=0)
    await rig.pool.scale(2, 2)
    peers = [await rig.launcher.next(load=False) for _ in range(2)]
    replies = [rig.submit() for _ in range(3)]

    await peers[0].fail_to_load()
    await until(lambda: rig.pool.alive == 1)
    assert not any(reply.ended for reply in replies)
    await peers[1].fail_to_load()
    await until(lambda: rig.pool.alive == 0)

    assert [reply.error for reply in replies] == [(503, 'Model "m" has no worker left.')] * 3
    await rig.close()


@on_loop
async def test_scaling_to_none_ends_when_the_last_worker_is_abandoned() -> None:
    rig = Rig(max_retry_timeout=0)
    await rig.pool.scale(1, 1)
    peer = await rig.launcher.next(load=False)
    reply = rig.submit()
    down = asyncio.ensure_future(rig.pool.scale(0, 0))
    await settle()

    await peer.fail_to_load()
    await asyncio.wait([down], timeout=5.0)

    assert down.done()
    assert reply.error[0] == 503


@on_loop
async def test_a_launch_that_fails_is_tried_again() -> None:
    rig = Rig()
    rig.launcher.failures = [LaunchError("no more processes")]
    (worker,) = await rig.pool.scale(1, 1)

    diagnosis = await rig.pool.loaded([worker])

    assert diagnosis is not None
    assert (diagnosis.phase, diagnosis.cause, diagnosis.exit) == ("start", "no more processes", None)
    assert worker.state is State.BACKING_OFF
    assert rig.pool.alive == 1


# -- devices and threads -----------------------------------------------------------------------------------------


@on_loop
async def test_devices_are_spread() -> None:
    rig = Rig(devices=[0, 1, 2])
    await rig.pool.scale(5, 5)
    assert [worker.gpu_id for worker in rig.pool.workers] == [0, 1, 2, 0, 1]

    await rig.pool.scale(2, 2, timeout=0)
    await rig.pool.scale(4, 4)

    assert [worker.gpu_id for worker in rig.pool.workers] == [0, 1, 2, 0]
    await rig.close()


@pytest.mark.parametrize(("gpus", "expected"), [(0, [None] * 4), (1, [0, None, None, None]), (3, [0, 1, 0, None])])
@on_loop
async def test_the_number_of_gpu_workers_can_be_limited(gpus: int, expected: list[int | None]) -> None:
    rig = Rig(devices=[0, 1])

    await rig.pool.scale(4, 4, gpus=gpus)

    assert [worker.gpu_id for worker in rig.pool.workers] == expected
    await rig.close()


@pytest.mark.parametrize(("cores", "workers", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 4, 1)])
@on_loop
async def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, threads: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    rig = Rig(batch_size=3, max_response_size=77, decode_input=False, config={"a": 1}, environment={"X": "y"})
    await rig.pool.scale(workers, workers)

    loads = [await (await rig.launcher.next(load=False)).ordered() for _ in range(workers)]

    assert {load.threads for load in loads} == {threads}
    load = loads[0]
    assert (load.model_name, load.model_version, load.handler, load.batch_size) == ("m", "1.0", "h", 3)
    assert (load.config, load.environment, load.max_response_size, load.decode_input) == (
        {"a": 1},
        {"X": "y"},
        77,
        False,
    )
    await rig.close()
