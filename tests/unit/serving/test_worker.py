"""What a worker sends, and what becomes of it: replies, chunks, failures, nonsense."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.unit.serving.support import Rig, on_loop, settle, until

from relight.serving.worker import State
from relight.wire.frames import HEADER, PROTOCOL_VERSION, encode_head
from relight.wire.messages import Answer, Kind, Loaded
from relight.wire.messages import Reply as ReplyMessage

if TYPE_CHECKING:
    from tests.unit.serving.support import Peer


# -- replies -----------------------------------------------------------------------------------------------------


@on_loop
async def test_answers_go_to_their_requests() -> None:
    rig = Rig(batch_size=3)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    first = rig.submit(b"x")
    held, _ = await peer.batch()
    replies = [rig.submit(b"a"), rig.submit(b"bb"), rig.submit(b"")]
    peer.answer(held, b"")
    batch, payload = await peer.batch()
    assert payload == b"abb"

    peer.send(
        Kind.REPLY,
        ReplyMessage(batch.seq, [Answer(2, 201, "Made", {"k": "v"}), Answer(0), Answer(3, 500, error=True)]),
        b"okbad",
    )
    await until(lambda: all(reply.ended for reply in replies))

    assert first.ended
    assert replies[0].answers == [(Answer(2, 201, "Made", {"k": "v"}), b"ok")]
    assert replies[1].answers == [(Answer(0), b"")]
    assert replies[2].error == (500, "bad")
    assert rig.pool.workers[0].state is State.READY
    await rig.close()


@on_loop
async def test_large_bodies_arrive_whole() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    body = bytes(range(256)) * 8192
    reply = rig.submit(body)

    batch, payload = await peer.batch()
    assert payload == body
    # More than a socket holds: the peer's own socket would block, so that it is sent in the background.
    sending = asyncio.get_running_loop().sock_sendall
    head = encode_head(Kind.REPLY, ReplyMessage(batch.seq, [Answer(len(body))]), len(body))
    await sending(peer._theirs, head + body)
    await until(lambda: reply.ended)

    assert reply.body == body
    await rig.close()


@on_loop
async def test_frames_cut_anywhere() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit(b"x")
    batch, _ = await peer.batch()
    for byte in encode_head(Kind.REPLY, ReplyMessage(batch.seq, [Answer(5)]), 5) + b"hello":
        peer.send_raw(bytes([byte]))
        await asyncio.sleep(0)
    await until(lambda: reply.ended)

    assert reply.body == b"hello"
    await rig.close()


@on_loop
async def test_chunks_go_to_their_requests() -> None:
    rig = Rig(batch_size=2)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    rig.submit()
    held, _ = await peer.batch()
    (_, one), (gone, two) = rig.job(), rig.job()
    peer.answer(held, b"")
    batch, _ = await peer.batch()

    peer.answer(batch, b"1a", b"2a", kind=Kind.CHUNK)
    await until(lambda: one.chunks)
    gone.cancel()
    peer.answer(batch, b"1b", b"2b", kind=Kind.CHUNK)
    peer.answer(batch, b"1c", b"2c")
    await until(lambda: one.ended)

    assert (one.chunks, one.body) == ([b"1a", b"1b"], b"1c")
    assert (two.chunks, two.ended) == ([b"2a"], False)
    await rig.close()


@pytest.mark.parametrize(("sent", "status"), [(500, 500), (503, 503), (507, 507), (413, 507), (418, 418), (700, 700)])
@on_loop
async def test_failures_of_the_handler(sent: int, status: int) -> None:
    rig = Rig(batch_size=2)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    rig.submit()
    held, _ = await peer.batch()
    replies = [rig.submit(), rig.submit()]
    peer.answer(held, b"")
    batch, _ = await peer.batch()

    peer.fail(batch, sent, "because")
    await until(lambda: replies[0].ended)

    assert [reply.error for reply in replies] == [(status, "because")] * 2
    assert {reply.errors[0].wire_type for reply in replies} == {"InternalServerException"}
    assert rig.pool.workers[0].state is State.READY
    await rig.close()


@on_loop
async def test_a_failure_amid_a_stream_ends_the_requests() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()

    peer.answer(batch, b"part", kind=Kind.CHUNK)
    peer.fail(batch, 513, "no more", kind=Kind.CHUNK)
    peer.answer(batch, b"ignored")
    await until(lambda: not rig.pool.workers[0].outstanding)

    assert (reply.chunks, reply.error) == ([b"part"], (513, "no more"))
    await rig.close()


@on_loop
async def test_the_handler_can_see_who_is_gone() -> None:
    rig = Rig(batch_size=2)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 2
    rig.submit()
    held, _ = await peer.batch()
    (_, stays), (gone, _) = rig.job(), rig.job()
    peer.answer(held, b"")
    batch, _ = await peer.batch()
    assert peer.page is not None
    assert not peer.page.cancelled(batch.seq, 1)

    gone.cancel()

    assert peer.page.cancelled(batch.seq, 1)
    assert not peer.page.cancelled(batch.seq, 0)
    peer.answer(batch, b"1", b"2")
    await until(lambda: stays.ended)
    await rig.close()


# -- broken protocol ---------------------------------------------------------------------------------------------


def _wrong_seq(peer: Peer, seq: int) -> None:
    peer.send(Kind.REPLY, ReplyMessage(seq + 1, [Answer(0)]))


def _wrong_version(peer: Peer, seq: int) -> None:
    peer.send_raw(HEADER.pack(Kind.REPLY, PROTOCOL_VERSION + 1, 0, 0, 0))


def _too_large(peer: Peer, seq: int) -> None:
    peer.send_raw(HEADER.pack(Kind.REPLY, PROTOCOL_VERSION, 0, 0, 1 << 40))


def _unknown_kind(peer: Peer, seq: int) -> None:
    peer.send(99, Loaded(1))


def _no_struct(peer: Peer, seq: int) -> None:
    peer.send_raw(HEADER.pack(Kind.REPLY, PROTOCOL_VERSION, 0, 3, 0) + b"\xc1\xc1\xc1")


def _too_many_answers(peer: Peer, seq: int) -> None:
    peer.send(Kind.REPLY, ReplyMessage(seq, [Answer(0), Answer(0)]))


def _too_short(peer: Peer, seq: int) -> None:
    peer.send(Kind.REPLY, ReplyMessage(seq, [Answer(5)]), b"four")


@pytest.mark.parametrize(
    "nonsense",
    [
        _wrong_seq,
        _wrong_version,
        _too_large,
        _unknown_kind,
        _no_struct,
        _too_many_answers,
        _too_short,
    ],
)
@on_loop
async def test_a_worker_that_breaks_the_protocol_is_replaced(nonsense: object) -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()

    assert callable(nonsense)
    nonsense(peer, batch.seq)
    fresh = await rig.launcher.next()

    await settle()
    assert reply.error == (500, "Worker died.")
    assert peer.at_end.is_set()
    again = rig.submit()
    await fresh.serve()
    await until(lambda: again.ended)
    await rig.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        _wrong_seq,
        _unknown_kind,
        _wrong_version,
        _no_struct,
    ],
)
@on_loop
async def test_the_diagnosis_says_that_the_protocol_was_broken(nonsense: object) -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    rig.submit()
    batch, _ = await peer.batch()

    assert callable(nonsense)
    nonsense(peer, batch.seq)
    await rig.launcher.next()

    failure = rig.pool.workers[0].failure
    assert failure is not None
    assert failure.cause.startswith("broken channel: ")
    await rig.close()


@on_loop
async def test_an_error_that_is_no_text_is_told_as_well_as_it_can_be() -> None:
    rig = Rig()
    (peer,) = await rig.start(1)
    reply = rig.submit()
    batch, _ = await peer.batch()

    peer.send(Kind.REPLY, ReplyMessage(batch.seq, [Answer(4, 500, error=True)]), b"bad\xff")
    await until(lambda: reply.ended)

    assert reply.error == (500, "bad\ufffd")
    await rig.close()


@on_loop
async def test_a_process_that_does_not_end_with_its_channel_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relight.serving.process._EXIT_GRACE", 0.01)
    rig = Rig()
    (peer,) = await rig.start(1)
    peer.lingers = True
    peer.close_channel()

    await rig.launcher.next()

    assert peer.kills > 0
    await rig.close()


@on_loop
async def test_a_cancelled_request_that_was_sent_ahead_frees_its_place_at_once() -> None:
    rig = Rig(queue_size=2)
    (peer,) = await rig.start(1)
    rig.pool.workers[0].depth = 3
    rig.submit()
    running, _ = await peer.batch()
    (first, _), (second, _) = rig.job(), rig.job()
    assert (rig.queue.ahead, rig.queue.pending) == (2, 2)

    first.cancel()
    first.cancel()
    assert rig.queue.pending == 1
    third = rig.submit()

    peer.answer(running, b"")
    batch, _ = await peer.batch()
    assert peer.progress is not None
    assert peer.progress.any_cancelled(batch.seq)
    peer.answer(batch, b"")
    batch, _ = await peer.batch()
    second.cancel()
    peer.answer(batch, b"")
    batch, _ = await peer.batch()
    peer.answer(batch, b"3")
    await until(lambda: third.ended)
    assert (rig.queue.ahead, rig.queue.pending) == (0, 0)
    await rig.close()
