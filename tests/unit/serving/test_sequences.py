"""Sequences: their order, their places, their workers and their ends."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.serving.support import Peer, Rig, make_job, on_loop, settle, until

from relight.errors import BadRequestError
from relight.serving.batching import FixedBatching
from relight.serving.sequence import SequenceSettings
from relight.serving.worker import State
from relight.wire.messages import Answer, Kind
from relight.wire.messages import Reply as ReplyMessage

if TYPE_CHECKING:
    from tests.unit.serving.support import RecordedReply

    from relight.serving.job import Job
    from relight.wire.messages import Batch

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
HOUR = 3600_000


class SequenceRig(Rig):
    """A pool of a version with sequence batching."""

    def __init__(
        self,
        size: int = 4,
        *,
        idle_ms: int = HOUR,
        timeout_ms: int = 0,
        places: int = 4,
        room: int = 10,
        **version: Any,
    ) -> None:
        settings = SequenceSettings(idle_ms, timeout_ms, places, room)
        super().__init__(sequence_batching=True, sequences=settings, batch_size=size, **version)

    def offer(self, sequence: str | None, body: bytes = b"", **flags: bool) -> tuple[Job, RecordedReply, bool]:
        """Put a request into its sequence, if there is room."""
        job, reply = make_job(body, arrived=self.pool.clock())
        job.sequence_id = sequence
        for name, value in flags.items():
            setattr(job, f"sequence_{name}", value)
        accepted = self.queue.put(job)
        if accepted:
            self.pool.dispatch()
        return job, reply, accepted

    def add(self, sequence: str | None, body: bytes = b"", **flags: bool) -> RecordedReply:
        _, reply, accepted = self.offer(sequence, body, **flags)
        assert accepted
        return reply

    def is_full(self) -> bool:
        """Whether there is no place for another sequence."""
        job, _, accepted = self.offer("one more")
        if accepted:
            job.cancel()
        return not accepted


async def bodies(peer: Peer) -> tuple[Batch, list[bytes]]:
    """Receive a batch; what its requests say."""
    batch, payload = await peer.batch()
    found, at = [], 0
    for item in batch.items:
        size = sum(length for _, _, length in item.parts)
        found.append(payload[at : at + size])
        at += size
    return batch, found


async def answer(peer: Peer, batch: Batch, *replies: RecordedReply, headers: dict[str, str] | None = None) -> None:
    answers = [Answer(0, headers=headers) for _ in batch.items]
    peer.send(Kind.REPLY, ReplyMessage(batch.seq, answers))
    await until(lambda: all(reply.ended for reply in replies))


# -- order and batches -------------------------------------------------------------------------------------------


@on_loop
async def test_one_request_of_a_sequence_at_a_time_and_in_order() -> None:
    rig = SequenceRig()
    (peer,) = await rig.start(1)
    replies = [rig.add("a", b"%d" % number) for number in range(3)]

    for number, reply in enumerate(replies):
        batch, said = await bodies(peer)
        assert said == [b"%d" % number]
        await settle()
        assert peer.frames.empty()
        await answer(peer, batch, reply)

    assert rig.queue.waiting == 0
    await rig.close()


@on_loop
async def test_a_batch_has_one_request_of_each_sequence() -> None:
    rig = SequenceRig()
    (peer,) = await rig.start(1)
    first = rig.add("a", b"a1")
    batch, _ = await bodies(peer)
    for body in (b"a2", b"b1", b"b2", b"c1"):
        rig.add(body.decode()[0], body)

    await answer(peer, batch, first)
    batch, said = await bodies(peer)
    assert sorted(said) == [b"a2", b"b1", b"c1"]
    await answer(peer, batch)
    assert (await bodies(peer))[1] == [b"b2"]
    await rig.close()


@on_loop
async def test_a_batch_is_not_larger_than_it_may_be() -> None:
    rig = SequenceRig(2)
    (peer,) = await rig.start(1)
    rig.add("a")
    batch, _ = await bodies(peer)
    for name in "bcd":
        rig.add(name, name.encode())

    await answer(peer, batch)

    assert (await bodies(peer))[1] == [b"b", b"c"]
    await rig.close()


@on_loop
async def test_nobody_is_passed_over() -> None:
    """Sequences that the worker has, and new ones, get their turn by age."""
    rig = SequenceRig(1)
    (peer,) = await rig.start(1)
    for body in (b"a1", b"b1", b"a2", b"c1", b"b2"):
        rig.add(body.decode()[0], body)

    seen = []
    for _ in range(5):
        batch, said = await bodies(peer)
        seen += said
        await answer(peer, batch)

    assert seen == [b"a1", b"b1", b"a2", b"c1", b"b2"]
    await rig.close()


@on_loop
async def test_what_the_handler_is_told() -> None:
    rig = SequenceRig(1)
    (peer,) = await rig.start(1)
    rig.add("a")
    rig.add("b", start=True)
    rig.add("c", end=True)
    invented, _, _ = rig.offer(None, start=True)
    own, reply = make_job()
    own.headers = [(b"ts_request_sequence_id", b"b"), (b"ts_request_sequence_end", b"TRUE")]
    own.sequence_id, own.sequence_end = "b", True
    assert rig.queue.put(own)

    seen = []
    for _ in range(5):
        batch, _ = await peer.batch()
        seen.append(batch.items[0].added)
        await answer(peer, batch)

    assert re.fullmatch(f"ts-seq-{UUID}", invented.sequence_id or "")
    assert sorted(seen, key=str) == sorted(
        [
            {"ts_request_sequence_id": "a"},
            {"ts_request_sequence_id": "b", "ts_request_sequence_start": "true"},
            {"ts_request_sequence_id": "c", "ts_request_sequence_end": "true"},
            {"ts_request_sequence_id": invented.sequence_id, "ts_request_sequence_start": "true"},
            {},
        ],
        key=str,
    )
    assert reply.ended
    await rig.close()


@on_loop
async def test_a_request_must_name_a_sequence_or_begin_one() -> None:
    rig = SequenceRig()

    for sequence in (None, ""):
        with pytest.raises(BadRequestError, match=r"^Parameter sequenceId is required\.$"):
            rig.offer(sequence)
    assert rig.queue.waiting == 0


@on_loop
async def test_a_description_belongs_to_no_sequence() -> None:
    rig = SequenceRig()
    (peer,) = await rig.start(1)
    running = rig.add("a")
    batch, _ = await bodies(peer)
    rig.add("a", b"later")
    described = rig.submit(alone=True)

    await answer(peer, batch, running)
    batch, said = await bodies(peer)
    assert (said, batch.items[0].added) == ([b""], {})
    await answer(peer, batch, described)

    assert (await bodies(peer))[1] == [b"later"]
    await rig.close()


@on_loop
async def test_a_worker_waits_for_more_as_the_policy_says() -> None:
    rig = SequenceRig(2)
    rig.pool.policy = FixedBatching(2, HOUR)
    one, two = await rig.start(2)
    rig.add("a")
    rig.add("a")
    await settle()
    assert one.frames.empty()
    assert two.frames.empty()

    rig.add("b", b"b")
    _, said = await bodies(one)

    assert said == [b"", b"b"]
    await settle()
    assert two.frames.empty()
    await rig.close()


@on_loop
async def test_workers_wait_each_for_itself() -> None:
    now = 100.0
    rig = SequenceRig(2)
    rig.pool.policy = FixedBatching(2, 10.0)
    rig.pool.clock = lambda: now
    one, two = await rig.start(2)
    for name in "ab":
        rig.add(name)
        rig.add(name)
    first, _ = await bodies(one)
    assert len(first.items) == 2
    await settle()
    assert two.frames.empty()
    rig.add("c")
    now += 9.0
    rig.add("d")
    second, _ = await bodies(two)
    assert len(second.items) == 2

    await answer(one, first)
    assert len((await bodies(one))[0].items) == 2
    await rig.close()


# -- workers -----------------------------------------------------------------------------------------------------


@on_loop
async def test_a_sequence_stays_with_its_worker() -> None:
    rig = SequenceRig()
    peers = await rig.start(2)
    for name in "abcd":
        reply = rig.add(name, name.encode())
        (peer,) = await until(lambda: [peer for peer in peers if not peer.frames.empty()])
        batch, _ = await bodies(peer)
        await answer(peer, batch, reply)

    seen: list[set[bytes]] = []
    for peer in peers:
        seen.append(set())
        for name in "abcd":
            rig.add(name, name.encode())
        await settle()
        while not peer.frames.empty():
            batch, said = await bodies(peer)
            seen[-1] |= set(said)
            await answer(peer, batch)
            await settle()

    # Each got two of the four, and kept them.
    assert [len(found) for found in seen] == [2, 2]
    assert not seen[0] & seen[1]
    await rig.close()


@on_loop
async def test_a_busy_worker_keeps_what_is_its_own() -> None:
    rig = SequenceRig()
    one, two = await rig.start(2)
    rig.add("a", b"a1")
    batch, _ = await bodies(one)
    rig.add("a", b"a2")
    rig.add("b", b"b1")

    assert (await bodies(two))[1] == [b"b1"]
    await settle()
    assert two.frames.empty()
    await answer(one, batch)
    assert (await bodies(one))[1] == [b"a2"]
    await rig.close()


@on_loop
async def test_the_sequences_of_a_dead_worker_end() -> None:
    rig = SequenceRig(places=3)
    peer, other = await rig.start(2)
    idle = rig.add("idle")
    batch, _ = await bodies(peer)
    await answer(peer, batch, idle)
    elsewhere = rig.add("elsewhere")
    held, _ = await bodies(other)
    running, waiting = rig.add("a"), rig.add("a")
    await bodies(peer)
    assert rig.is_full()

    peer.kill()
    await until(lambda: waiting.ended)

    assert running.error == (507, "Worker died.")
    assert waiting.error[0] == 503
    assert 'Model "m" has no worker to serve inference request.' in waiting.error[1]
    assert rig.queue.waiting == 0
    await answer(other, held, elsewhere)
    # Both places are free, and the sequence of the other worker goes on.
    for name in ("b", "c"):
        rig.add(name)
    assert rig.is_full()
    await rig.close()


@pytest.mark.parametrize("has_state", [False, True])
@on_loop
async def test_a_sequence_that_was_not_begun_goes_to_another_worker(has_state: bool) -> None:
    rig = SequenceRig()
    survivor, victim = await rig.start(2)
    busy = rig.add("busy")
    held, _ = await bodies(survivor)
    if has_state:
        first = rig.add("a")
        batch, _ = await bodies(victim)
        await answer(victim, batch, first)
    replies = [rig.add("a", b"a1"), rig.add("a", b"a2")]
    await victim.batch(begin=False)

    victim.kill()
    if has_state:
        await until(lambda: all(reply.ended for reply in replies))
        assert [reply.error[0] for reply in replies] == [507, 503]
    else:
        await answer(survivor, held, busy)
        for reply, body in zip(replies, (b"a1", b"a2"), strict=True):
            batch, said = await bodies(survivor)
            assert said == [body]
            await answer(survivor, batch, reply)
    await rig.close()


@on_loop
async def test_a_request_given_up_is_not_put_back() -> None:
    rig = SequenceRig(places=1)
    (peer,) = await rig.start(1)
    job, _, _ = rig.offer("a")
    await peer.frames.get()

    job.cancel()
    peer.kill()

    await until(lambda: not rig.is_full())
    assert rig.queue.waiting == 0
    await rig.close()


@on_loop
async def test_a_surplus_worker_serves_what_its_sequences_have() -> None:
    rig = SequenceRig()
    one, two = await rig.start(2)
    rig.add("keeps one busy")
    replies = [rig.add("a", b"a1"), rig.add("a", b"a2")]
    batch, said = await bodies(two)
    assert said == [b"a1"]
    scaling = asyncio.ensure_future(rig.pool.scale(1, 1))
    await until(lambda: rig.pool.workers[1].state is State.DRAINING)

    assert not rig.offer("a")[2]
    rig.add("new", b"new")
    await answer(two, batch, replies[0])
    batch, said = await bodies(two)
    assert said == [b"a2"]
    await answer(two, batch, replies[1])
    await scaling

    batch, _ = await bodies(one)
    await answer(one, batch)
    assert (await bodies(one))[1] == [b"new"]
    rig.add("a", b"again")
    await rig.close()


@on_loop
async def test_without_workers_all_that_waits_is_refused() -> None:
    rig = SequenceRig(places=2)
    (peer,) = await rig.start(1)
    reply, waiting = rig.add("a"), rig.add("a")
    await bodies(peer)

    await rig.pool.scale(0, 0, timeout=0)

    assert reply.error[0] == 503
    assert waiting.error[0] == 503
    assert not rig.is_full()


# -- places and ends ---------------------------------------------------------------------------------------------


@on_loop
async def test_places() -> None:
    rig = SequenceRig(places=2)
    (peer,) = await rig.start(1)
    reply = rig.add("a")
    batch, _ = await bodies(peer)
    await answer(peer, batch, reply)
    rig.add("b")

    assert not rig.offer("c")[2]
    assert rig.offer("a")[2]
    await rig.close()


@on_loop
async def test_room_of_one_sequence() -> None:
    rig = SequenceRig(room=2)
    (peer,) = await rig.start(1)
    rig.add("a")
    await bodies(peer)

    assert [rig.offer("a")[2] for _ in range(4)] == [True, True, False, False]
    assert rig.offer("b")[2]
    assert (rig.queue.capacity, rig.queue.pending) == (8, 3)
    await rig.close()


@on_loop
async def test_who_is_given_up_makes_room() -> None:
    rig = SequenceRig(room=1, places=2)
    (peer,) = await rig.start(1)
    rig.add("a")
    batch, _ = await bodies(peer)
    waiting, _, _ = rig.offer("a")
    never, _, _ = rig.offer("b")

    waiting.cancel()
    never.expire("too late")

    assert rig.queue.waiting == 0
    assert rig.offer("a", b"a2")[2]
    assert rig.offer("c")[2]
    assert not rig.offer("d")[2]
    await answer(peer, batch)
    assert (await bodies(peer))[1] == [b"a2", b""]
    await rig.close()


@pytest.mark.parametrize("how", ["answer", "error", "gone", "header"])
@on_loop
async def test_the_end_of_a_sequence_frees_its_place(how: str) -> None:
    rig = SequenceRig(places=1)
    (peer,) = await rig.start(1)
    job, reply, _ = rig.offer("a", end=how != "header")
    batch, _ = await bodies(peer)
    assert rig.is_full()

    if how == "error":
        peer.fail(batch, 503, "no")
        await until(lambda: reply.ended)
    elif how == "gone":
        job.cancel()
        assert rig.is_full()
        await answer(peer, batch)
    else:
        await answer(peer, batch, reply, headers={"ts_request_sequence_end": "x; a"} if how == "header" else None)

    await until(lambda: not rig.is_full())
    await rig.close()


@on_loop
async def test_a_handler_may_end_another_sequence() -> None:
    rig = SequenceRig(places=2)
    (peer,) = await rig.start(1)
    for name, headers in (("a", None), ("b", {"ts_request_sequence_end": "a"})):
        reply = rig.add(name)
        batch, _ = await bodies(peer)
        assert len(batch.items) == 1
        await answer(peer, batch, reply, headers=headers)

    rig.add("c")
    assert rig.is_full()
    await rig.close()


@on_loop
async def test_what_comes_after_the_end_is_a_new_sequence() -> None:
    rig = SequenceRig(places=1)
    one, two = await rig.start(2)
    last = rig.add("a", b"last", end=True)
    batch, _ = await bodies(one)
    rig.add("a", b"first")
    assert two.frames.empty()

    await answer(one, batch, last)

    # Whose it is now is decided anew: both workers have none.
    (peer,) = await until(lambda: [peer for peer in (one, two) if not peer.frames.empty()])
    assert (await bodies(peer))[1] == [b"first"]
    assert rig.is_full()
    await rig.close()


@on_loop
async def test_an_idle_sequence_is_forgotten() -> None:
    rig = SequenceRig(places=1, idle_ms=20)
    (peer,) = await rig.start(1)
    reply, later = rig.add("a"), rig.add("a")
    batch, _ = await bodies(peer)
    for _ in range(40):
        await asyncio.sleep(0.001)
    assert rig.is_full()  # it is running
    await answer(peer, batch, reply)
    batch, _ = await bodies(peer)
    await answer(peer, batch, later)

    await until(lambda: not rig.is_full())
    await rig.close()


@on_loop
async def test_a_sequence_that_is_over_refuses_what_waits_and_answers_what_runs() -> None:
    rig = SequenceRig(places=1, timeout_ms=20)
    (peer,) = await rig.start(1)
    running, waiting = rig.add("a"), rig.add("a")
    batch, _ = await bodies(peer)

    await until(lambda: waiting.ended)
    assert waiting.error[0] == 503
    assert rig.queue.waiting == 0
    assert not rig.offer("a")[2]
    await answer(peer, batch, running)

    assert running.answers
    assert not rig.is_full()
    await rig.close()


@on_loop
async def test_a_sequence_that_is_over_while_idle() -> None:
    rig = SequenceRig(places=1, timeout_ms=20)
    (peer,) = await rig.start(1)
    reply = rig.add("a")
    batch, _ = await bodies(peer)
    await answer(peer, batch, reply)

    await until(lambda: not rig.is_full())
    await rig.close()


# -- with continuous batching ------------------------------------------------------------------------------------


@on_loop
async def test_a_request_that_goes_on_may_have_one_more_of_its_sequence_beside_it() -> None:
    rig = SequenceRig(1, continuous_batching=True)
    (peer,) = await rig.start(1)
    streams = rig.add("a", b"a1")
    batch, _ = await bodies(peer)
    cancels, later = rig.add("a", b"a2"), rig.add("a", b"a3")
    rig.add("b", b"b1")

    peer.step(batch, b"x", more=[True])
    batch, said = await bodies(peer)
    assert said == [b"", b"a2"]
    peer.step(batch, b"y", b"", more=[True, True])
    batch, said = await bodies(peer)
    assert said == [b"", b""]
    peer.step(batch, b"z", b"done", more=[False, True])
    batch, said = await bodies(peer)
    assert said == [b"", b"a3"]
    peer.step(batch, b"over", b"", more=[False, False])

    assert (await bodies(peer))[1] == [b"b1"]
    assert (streams.chunks, streams.body) == ([b"x", b"y"], b"z")
    assert (cancels.chunks, cancels.body) == ([b"", b"done"], b"over")
    assert later.body == b""
    await rig.close()


@on_loop
async def test_a_sequence_ends_when_nothing_of_it_goes_on() -> None:
    rig = SequenceRig(1, continuous_batching=True, places=1)
    (peer,) = await rig.start(1)
    rig.add("a", b"a1")
    batch, _ = await bodies(peer)
    rig.add("a", b"a2", end=True)
    peer.step(batch, b"", more=[True])
    batch, _ = await bodies(peer)
    peer.step(batch, b"", b"", more=[True, False])
    batch, _ = await bodies(peer)
    assert rig.is_full()

    peer.step(batch, b"", more=[False])

    await until(lambda: not rig.is_full())
    await rig.close()


@on_loop
async def test_one_more_is_enough() -> None:
    rig = SequenceRig(2, continuous_batching=True)
    (peer,) = await rig.start(1)
    rig.add("a", b"a1")
    batch, _ = await bodies(peer)
    for body in (b"a2", b"a3", b"b1", b"c1"):
        rig.add(body.decode()[0], body)

    peer.step(batch, b"", more=[True])

    assert (await bodies(peer))[1] == [b"", b"a2", b"b1"]
    await rig.close()


@on_loop
async def test_what_comes_after_the_end_waits_until_nothing_goes_on() -> None:
    """Even if the time of the sequence that ends is over meanwhile."""
    rig = SequenceRig(2, continuous_batching=True, timeout_ms=20, places=1)
    (peer,) = await rig.start(1)
    rig.add("a", b"a1")
    batch, _ = await bodies(peer)
    rig.add("a", b"a2", end=True)
    peer.step(batch, b"", more=[True])
    batch, said = await bodies(peer)
    assert said == [b"", b"a2"]
    later = rig.add("a", b"later")
    peer.step(batch, b"", b"", more=[True, False])
    batch, said = await bodies(peer)
    assert said == [b""]

    for _ in range(40):
        await asyncio.sleep(0.001)
    assert not later.ended
    peer.step(batch, b"", more=[False])

    assert (await bodies(peer))[1] == [b"later"]
    await rig.close()


@on_loop
async def test_steps_of_a_dead_worker_are_lost() -> None:
    rig = SequenceRig(1, continuous_batching=True, places=1)
    (peer,) = await rig.start(1)
    first = rig.add("a")
    batch, _ = await bodies(peer)
    second = rig.add("a")
    peer.step(batch, b"", more=[True])
    await peer.frames.get()

    peer.kill()
    await until(lambda: first.ended and second.ended)

    assert first.error == second.error == (507, "Worker died.")
    assert not rig.is_full()
    await rig.close()
