"""Which worker gets which jobs, and when."""

from __future__ import annotations

import pytest
from tests.unit.serving.support import Rig, on_loop, settle, until

from relight.serving.batching import FixedBatching
from relight.wire.messages import Kind


class Always(FixedBatching):
    """Sends full batches ahead, and waits for ever otherwise."""

    pipelines = True

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size, 3600.0)


@on_loop
async def test_a_request_goes_to_an_idle_worker_at_once() -> None:
    rig = Rig(batch_size=8, max_batch_delay_ms=5000)
    (peer,) = await rig.start(1)

    reply = rig.submit(b"hello")
    batch, payload = await peer.batch()
    peer.answer(batch, b"good bye")
    await until(lambda: reply.ended)

    assert payload == b"hello"
    assert [item.parts for item in batch.items] == [[("body", "", 5)]]
    assert reply.body == b"good bye"
    await rig.close()


@on_loop
async def test_idle_workers_take_turns() -> None:
    rig = Rig()
    peers = await rig.start(3)
    order = []

    for _ in range(6):
        reply = rig.submit()
        (peer,) = await until(lambda: [peer for peer in peers if not peer.frames.empty()])
        order.append(peers.index(peer))
        await peer.serve()
        await until(lambda reply=reply: reply.ended)  # type: ignore[misc]

    assert order == [0, 1, 2, 0, 1, 2]
    await rig.close()


@on_loop
async def test_the_queue_builds_the_next_batch_while_the_worker_is_busy() -> None:
    rig = Rig(batch_size=4)
    (peer,) = await rig.start(1)
    replies = [rig.submit(b"%d" % number) for number in range(6)]

    # The first goes alone, for nothing suggests more; four of the rest are a full batch, and are sent ahead at most.
    assert await peer.serve(3) in ([1, 4, 1], [4, 2])
    await until(lambda: all(reply.ended for reply in replies))

    assert [reply.body for reply in replies] == [b"%d" % number for number in range(6)]
    await rig.close()


@pytest.mark.parametrize(("waiting", "ahead"), [(3, 0), (4, 4), (7, 4), (8, 4)])
@on_loop
async def test_only_full_batches_are_sent_ahead(waiting: int, ahead: int) -> None:
    rig = Rig(batch_size=4)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    rig.submit()
    await peer.batch()

    for _ in range(waiting):
        rig.submit()

    assert rig.queue.ahead == ahead
    assert rig.queue.pending == waiting
    assert rig.queue.waiting == waiting - ahead
    await rig.close()


@on_loop
async def test_a_fresh_worker_holds_one_batch() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)

    for _ in range(5):
        rig.submit()

    assert len(rig.pool.workers[0].outstanding) == 1
    assert rig.queue.waiting == 4
    await peer.batch()
    await settle()
    assert peer.frames.empty()
    await rig.close()


@on_loop
async def test_the_depth_falls_with_the_time_that_a_batch_takes() -> None:
    now = 100.0
    rig = Rig()
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    worker = rig.pool.workers[0]
    depths = []
    for seconds in (0.0, 0.0001, 0.02, 1.0):
        reply = rig.submit()
        batch, _ = await peer.batch()
        now += seconds
        peer.answer(batch, b"")
        await until(lambda reply=reply: reply.ended)  # type: ignore[misc]
        depths.append(worker.depth)

    assert depths[0] == 64
    assert depths == sorted(depths, reverse=True)
    # One that is alone always has its next batch at hand: nobody else could take it.
    assert depths[-1] == 2
    await rig.close()


@on_loop
async def test_slow_workers_get_nothing_ahead_when_there_are_several() -> None:
    now = 100.0
    rig = Rig()
    rig.pool.clock = lambda: now
    peers = await rig.start(2)
    for peer in peers:
        reply = rig.submit()
        batch, _ = await peer.batch()
        now += 1.0
        peer.answer(batch, b"")
        await until(lambda reply=reply: reply.ended)  # type: ignore[misc]

    assert [worker.depth for worker in rig.pool.workers] == [1, 1]
    for _ in range(5):
        rig.submit()
    assert rig.queue.ahead == 0
    await rig.close()


@on_loop
async def test_the_next_batch_goes_to_the_worker_that_holds_least() -> None:
    rig = Rig()
    await rig.start(2)
    first, second = rig.pool.workers
    first.depth = second.depth = 3

    for _ in range(6):
        rig.submit()
        assert abs(len(first.outstanding) - len(second.outstanding)) <= 1

    assert (len(first.outstanding), len(second.outstanding)) == (3, 3)
    rig.submit()
    assert rig.queue.waiting == 1
    await rig.close()


@on_loop
async def test_nothing_is_sent_ahead_to_a_handler_that_streams() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()
    peer.answer(batch, b"part", kind=Kind.CHUNK)
    peer.answer(batch, b"last")
    await until(lambda: reply.ended)

    assert reply.chunks == [b"part"]
    assert rig.pool.workers[0].depth == 1
    for _ in range(3):
        rig.submit()
    assert rig.queue.ahead == 0
    await rig.close()


@on_loop
async def test_nothing_is_sent_ahead_when_the_policy_forbids_it() -> None:
    policy = FixedBatching(1, 0.0)
    rig = Rig(policy)
    (peer,) = await rig.start(1)
    reply = rig.submit()
    await peer.serve()
    await until(lambda: reply.ended)

    for _ in range(3):
        rig.submit()

    assert rig.pool.workers[0].depth == 1
    assert rig.queue.ahead == 0
    await rig.close()


@on_loop
async def test_a_describe_request_is_never_batched() -> None:
    rig = Rig(Always(4))
    (peer,) = await rig.start(1)
    kinds = [rig.submit(b"a"), rig.submit(b"b"), rig.submit(b"describe", alone=True), rig.submit(b"c")]

    batch, payload = await peer.batch()
    assert payload == b"ab"
    peer.answer(batch, b"1", b"2")
    batch, payload = await peer.batch()
    assert payload == b"describe"
    peer.answer(batch, b"3")
    await until(lambda: kinds[2].ended)

    assert rig.queue.waiting == 1
    await rig.close()


@on_loop
async def test_a_describe_request_waits_for_no_others() -> None:
    rig = Rig(Always(4))
    (peer,) = await rig.start(1)

    rig.submit(b"describe", alone=True)

    assert (await peer.batch())[1] == b"describe"
    await rig.close()


@on_loop
async def test_a_batch_that_is_not_full_is_sent_when_its_delay_has_passed() -> None:
    rig = Rig(FixedBatching(4, 0.02))
    (peer,) = await rig.start(1)

    rig.submit(b"a")
    rig.submit(b"b")
    await settle()
    assert rig.queue.waiting == 2

    assert (await peer.batch())[1] == b"ab"
    await rig.close()


@on_loop
async def test_the_last_request_of_a_batch_ends_the_wait() -> None:
    rig = Rig(Always(3))
    (peer,) = await rig.start(1)
    rig.submit(b"a")
    rig.submit(b"b")
    assert rig.queue.waiting == 2

    rig.submit(b"c")

    assert (await peer.batch())[1] == b"abc"
    await rig.close()


@on_loop
async def test_requests_wait_for_a_worker_that_is_still_loading() -> None:
    rig = Rig()
    await rig.pool.scale(1, 1)
    reply = rig.submit()
    peer = await rig.launcher.next(load=False)
    await settle()
    assert not reply.ended

    await peer.load()
    await peer.serve()

    await until(lambda: reply.ended)
    await rig.close()


@on_loop
async def test_an_idle_worker_counts_for_tickets_only_beyond_the_queue() -> None:
    rig = Rig(Always(4))
    seen = [rig.pool.has_idle_worker]
    await rig.start(2)
    for _ in range(2):
        seen.append(rig.pool.has_idle_worker)
        rig.submit()
    seen.append(rig.pool.has_idle_worker)

    assert seen == [False, True, True, False]
    await rig.close()
