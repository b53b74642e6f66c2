"""Whatever clients and workers do: sequences keep their order, their workers and their places."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.serving.support import make_job

from relight.serving.job import DONE, RUNNING
from relight.serving.sequence import SequenceSettings
from relight.serving.sequences import SequenceQueue
from relight.wire.messages import Answer

if TYPE_CHECKING:
    from relight.serving.job import Job

PLACES, ROOM, SIZE, WORKERS = 3, 3, 2, 2

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("work"), st.integers(0, WORKERS - 1), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("die"), st.integers(0, WORKERS - 1), st.booleans()),
        st.tuples(st.just("retire"), st.integers(0, WORKERS - 1), st.booleans()),
    ),
    max_size=60,
)


class World:
    """A queue, its workers, and what has to be true of them."""

    def __init__(self, *, continuous: bool) -> None:
        self.queue = SequenceQueue(SequenceSettings(3600_000, 3600_000, PLACES, ROOM), "m")
        self.continuous = continuous
        self.jobs: list[Job] = []
        self.held: dict[int, list[Job]] = defaultdict(list)
        self.begun: dict[str, list[int]] = defaultdict(list)

    def put(self, number: int, ends: bool) -> None:
        job, _ = make_job()
        job.sequence_id, job.sequence_end = f"s{number}", ends
        if self.queue.put(job):
            self.jobs.append(job)

    def cancel(self, number: int, _: bool) -> None:
        waiting = [job for job in self.jobs if job.state != DONE]
        if waiting:
            waiting[number % len(waiting)].cancel()

    def work(self, worker: int, goes_on: bool) -> None:
        """A worker answers what it has, or a part of it, and gets more."""
        going_on = []
        for job in self.held[worker]:
            if goes_on and self.continuous and job.state != DONE:
                going_on.append(job)
            else:
                job.finish(Answer(0), b"")
                self.queue.done(job)
        taken = self.queue.take_for(worker, going_on, SIZE)
        self.held[worker] = going_on + taken
        for job in taken:
            assert job.state != DONE
            job.state = RUNNING
            self.begun[job.sequence_id or ""].append(self.jobs.index(job))

    def end(self, number: int, _: bool) -> None:
        self.queue.end(f"s{number}")

    def die(self, worker: int, begun: bool) -> None:
        held = self.held.pop(worker, [])
        self.queue.retire(worker)
        lost = self.queue.lose(worker, [] if begun else held)
        for job in held if begun else lost:
            job.cancel()
        for job in held:
            if job.state not in {DONE, RUNNING}:
                self.begun[job.sequence_id or ""].remove(self.jobs.index(job))

    def retire(self, worker: int, _: bool) -> None:
        self.queue.retire(worker)

    def check(self) -> None:
        held = [job for jobs in self.held.values() for job in jobs]
        open_sequences = self.queue._sequences
        waiting = [job for sequence in open_sequences.values() for job in sequence.jobs]
        assert self.queue.waiting == len(waiting)
        assert len(open_sequences) <= PLACES
        assert {job.sequence_id for job in held + waiting} <= set(open_sequences)
        for name, sequence in open_sequences.items():
            running = [worker for worker, jobs in self.held.items() for job in jobs if job.sequence_id == name]
            assert len(running) == sequence.running <= (2 if self.continuous else 1)
            assert len(set(running)) <= 1
            assert self.begun[name] == sorted(self.begun[name]), "out of order"
            assert all(job.state != DONE for job in sequence.jobs)
            assert sequence.jobs or sequence.running or sequence.owner is not None
        for worker, jobs in self.held.items():
            assert len({job.sequence_id for job in jobs}) <= SIZE
            assert self.queue.owned_by(worker) == sum(each.owner == worker for each in open_sequences.values())

    def drain(self) -> None:
        """All that waits is served in the end."""
        for _ in range(len(self.jobs) + 1):
            for worker in range(WORKERS):
                self.work(worker, goes_on=False)
                self.check()
        assert self.queue.waiting == 0
        assert not any(self.held.values())
        assert all(job.state == DONE for job in self.jobs)


@settings(max_examples=200, deadline=None)
@given(steps, st.booleans())
def test_sequences(actions: list[tuple[str, int, bool]], continuous: bool) -> None:
    async def run() -> None:
        world = World(continuous=continuous)
        for name, number, flag in actions:
            getattr(world, name)(number, flag)
            world.check()
        world.drain()
        world.queue.take_all()

    asyncio.run(run())
