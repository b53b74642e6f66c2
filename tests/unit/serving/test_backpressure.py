"""Streams to clients that do not keep up."""

from __future__ import annotations

from tests.unit.serving.support import Rig, on_loop, settle, until

from relight.wire.messages import Kind


@on_loop
async def test_a_handler_waits_for_its_only_client() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    batch, _ = await peer.batch()
    reply.slow = True

    peer.answer(batch, b"1", kind=Kind.CHUNK)
    await until(lambda: reply.chunks)
    peer.answer(batch, b"2", kind=Kind.CHUNK)
    await settle()
    assert reply.chunks == [b"1"]

    reply.slow = False
    job.drained()
    await until(lambda: len(reply.chunks) == 2)
    peer.answer(batch, b"3")
    await until(lambda: reply.ended)
    assert reply.body == b"3"
    await rig.close()


@on_loop
async def test_a_client_that_gives_up_does_not_leave_its_handler_waiting() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    job, reply = rig.job()
    batch, _ = await peer.batch()
    reply.slow = True
    peer.answer(batch, b"1", kind=Kind.CHUNK)
    await until(lambda: reply.chunks)

    job.cancel()
    peer.answer(batch, b"2")
    second = rig.submit()
    batch, _ = await peer.batch()
    peer.answer(batch, b"next")

    await until(lambda: second.ended)
    assert second.body == b"next"
    await rig.close()


@on_loop
async def test_a_client_that_never_reads_is_given_up_and_the_worker_is_kept() -> None:
    now = 100.0
    rig = Rig(response_timeout=30)
    rig.pool.clock = lambda: now
    (peer,) = await rig.start(1)
    (worker,) = rig.pool.workers
    reply = rig.submit()
    batch, _ = await peer.batch()
    reply.slow = True
    peer.answer(batch, b"1", kind=Kind.CHUNK)
    await until(lambda: reply.chunks)

    now += 31
    worker._check_silence()

    assert reply.error == (408, "The client has read nothing for 30 s.")
    assert peer.kills == 0
    assert peer.progress is not None
    assert peer.progress.cancelled(batch.seq, 0)
    peer.answer(batch, b"2")
    await until(lambda: not worker.outstanding)
    await rig.close()


@on_loop
async def test_neighbours_in_a_batch_do_not_wait_for_a_slow_client() -> None:
    rig = Rig(batch_size=2)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    rig.submit()
    held, _ = await peer.batch()
    lazy, eager = rig.submit(), rig.submit()
    peer.answer(held, b"")
    batch, _ = await peer.batch()
    lazy.slow = True

    peer.answer(batch, b"1", b"1", kind=Kind.CHUNK)
    peer.answer(batch, b"2", b"2")

    await until(lambda: eager.ended)
    assert lazy.chunks == [b"1"]
    await rig.close()


@on_loop
async def test_a_waiting_worker_can_be_stopped() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()
    reply.slow = True
    peer.answer(batch, b"1", kind=Kind.CHUNK)
    await until(lambda: reply.chunks)

    await rig.pool.scale(0, 0, timeout=0)

    assert reply.ended
    await rig.close()
