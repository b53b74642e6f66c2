"""Sequences: requests that belong together, whose state lives in the worker that serves them.

A sequence begins with its first request and takes one of a limited number of places. The worker that gets this first
request gets all others, one after the other and in their order. The sequence ends when a request says so, when the
handler says so, when nothing came for a while, when its time is over, or with its worker. A later request of the same
id begins a new one (batching_and_llm.md §7).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, defaultdict, deque
from itertools import chain, islice
from typing import TYPE_CHECKING

from relight.errors import BadRequestError
from relight.serving.job import DONE, QUEUED
from relight.serving.queue import JobQueue
from relight.serving.refusals import no_worker
from relight.serving.sequence import OpenSequence, SequenceSettings

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from relight.errors import RelightError
    from relight.serving.job import Job, Reply
    from relight.wire.messages import Answer


class SequenceQueue(JobQueue):
    """The waiting requests of a version with sequence batching.

    Args:
        settings: Of the sequences.
        model: Name of the model, for refusals.
    """

    def __init__(self, settings: SequenceSettings, model: str) -> None:
        super().__init__(settings.max_sequences * settings.queue_size)
        self._settings = settings
        self._model = model
        self._sequences: dict[str, OpenSequence] = {}
        self._fresh: deque[OpenSequence] = deque()
        """Those that no worker has, in the order in which they came."""
        self._lines: defaultdict[Hashable, deque[OpenSequence]] = defaultdict(deque)
        """For each worker those of its sequences that wait for it, in the order in which they became ready."""
        self._owned: Counter[Hashable] = Counter()

    # -- requests come -------------------------------------------------------------------------------------------

    def put(self, job: Job) -> bool:
        """Append a job to its sequence; one that runs alone (a description) belongs to none.

        Returns:
            False if there are too many sequences, too many waiting requests of this one, or if it takes no more.

        Raises:
            BadRequestError: the job names no sequence, and does not begin one.
        """
        if job.alone:
            return super().put(job)
        if not job.sequence_id:
            if not job.sequence_start:
                raise BadRequestError("Parameter sequenceId is required.")
            job.sequence_id = f"ts-seq-{uuid.uuid4()}"
        sequence = self._sequences.get(job.sequence_id)
        if sequence is None:
            if len(self._sequences) >= self._settings.max_sequences:
                return False
            sequence = self._open(job.sequence_id)
        elif sequence.closing or len(sequence.jobs) >= self._settings.queue_size:
            return False
        self._tell_handler(job, job.sequence_id)
        job.reply = _WatchedReply(job.reply, self)
        self._append(sequence, job)
        self._line_up(sequence)
        return True

    def _open(self, sequence_id: str) -> OpenSequence:
        sequence = self._sequences[sequence_id] = OpenSequence(sequence_id, time.monotonic())
        self._check(sequence)
        return sequence

    def _append(self, sequence: OpenSequence, job: Job) -> None:
        job.on_cancel = self._given_up
        sequence.jobs.append(job)
        self.waiting += 1

    def _tell_handler(self, job: Job, sequence_id: str) -> None:
        """Add the headers that a handler reads, as far as the client has not sent them by these names."""
        settings = self._settings
        wanted = {settings.id_header: sequence_id}
        if job.sequence_start:
            wanted[settings.start_header] = "true"
        if job.sequence_end:
            wanted[settings.end_header] = "true"
        sent = {name for name, _ in job.headers}
        job.added = job.added | {name: value for name, value in wanted.items() if name.encode() not in sent}

    def _line_up(self, sequence: OpenSequence) -> None:
        """Have a sequence wait for its worker, if it has something for it and the worker has nothing of it."""
        if sequence.jobs and not sequence.running and not sequence.lined_up:
            sequence.lined_up = True
            (self._fresh if sequence.owner is None else self._lines[sequence.owner]).append(sequence)

    # -- requests go to workers ----------------------------------------------------------------------------------

    def owned_by(self, owner: Hashable) -> int:
        """How many sequences a worker has."""
        return self._owned[owner]

    def ready(self, owner: Hashable, limit: int) -> tuple[int, float]:
        """How many requests a worker could take now, `limit` at most, and when the oldest of them arrived."""
        arrived = [line[0].arrived for line in self._ready_lines(owner, limit)]
        return len(arrived), min(arrived, default=0.0)

    def _ready_lines(self, owner: Hashable, limit: int) -> list[deque[Job]]:
        lines = (sequence.jobs for sequence in chain(self._lines[owner], self._fresh) if sequence.jobs)
        return list(islice(lines, limit))

    def take_for(self, owner: Hashable, going_on: list[Job], size: int, *, fresh: bool = True) -> list[Job]:
        """Remove the jobs that a worker gets with its next batch, one of each sequence at most.

        With continuous batching a sequence whose request goes on may have one more in the batch: that may tell the
        handler to end the other (batching_and_llm.md §9).

        Args:
            owner: The worker.
            going_on: Requests that it has, and that are in this batch as well.
            size: Most sequences in the batch.
            fresh: Whether it may get new sequences.
        """
        taken = []
        active = {job.sequence_id: None for job in going_on if job.sequence_id is not None}
        for sequence_id in active:
            sequence = self._sequences.get(sequence_id)
            if sequence is not None and sequence.running == 1 and sequence.jobs and not sequence.ended:
                taken.append(self._take(sequence, owner))
        for _ in range(size - len(active)):
            ready = self._next(owner, fresh=fresh)
            if ready is None:
                break
            taken.append(self._take(ready, owner))
        self._tell_if_empty()
        return taken

    def _next(self, owner: Hashable, *, fresh: bool) -> OpenSequence | None:
        """Remove from its line the sequence whose turn it is."""
        own, new = _pruned(self._lines[owner]), _pruned(self._fresh)
        if own and not (fresh and new and new[0].jobs[0].arrived < own[0].jobs[0].arrived):
            line = own
        elif fresh and new:
            line = new
        else:
            return None
        sequence = line.popleft()
        sequence.lined_up = False
        return sequence

    def _take(self, sequence: OpenSequence, owner: Hashable) -> Job:
        if sequence.owner is None:
            sequence.owner = owner
            self._owned[owner] += 1
        job = sequence.jobs.popleft()
        job.on_cancel = None
        sequence.running += 1
        self.waiting -= 1
        return job

    # -- requests end --------------------------------------------------------------------------------------------

    def done(self, job: Job) -> None:
        """A worker has answered a job that it had from here."""
        sequence = self._sequences.get(job.sequence_id or "")
        if sequence is not None:
            sequence.running -= 1
            sequence.answered = True
            sequence.ended = sequence.ended or job.sequence_end
            self._settle(sequence)

    def _given_up(self, job: Job) -> None:
        sequence = self._sequences[job.sequence_id or ""]
        sequence.jobs.remove(job)
        self.waiting -= 1
        self._settle(sequence)
        self._tell_if_empty()

    def end(self, sequence_id: str) -> None:
        """The handler says that a sequence is over; what is running is still answered."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.ended = True
            self._settle(sequence)

    def heed(self, answer: Answer) -> None:
        """End the sequences that the handler names in an answer's header."""
        value = (answer.headers or {}).get(self._settings.end_header)
        for sequence_id in value.split(";") if value else ():
            self.end(sequence_id.strip())

    def _settle(self, sequence: OpenSequence) -> None:
        """Decide what a sequence does next, if its worker is doing nothing for it."""
        if sequence.running:
            return
        if sequence.ended:
            self._renew(sequence)
        elif sequence.jobs:
            self._line_up(sequence)
        elif sequence.closing or sequence.owner is None:
            self._forget(sequence)
        else:
            sequence.idle_since = time.monotonic()

    def _renew(self, sequence: OpenSequence, *, first: bool = False) -> None:
        """Give up a sequence and its worker; what waits goes on as a new one of the same id."""
        self._forget(sequence)
        if sequence.jobs:
            new = self._open(sequence.id)
            new.jobs, sequence.jobs = sequence.jobs, deque()
            new.lined_up = True
            (self._fresh.appendleft if first else self._fresh.append)(new)

    def _forget(self, sequence: OpenSequence) -> None:
        del self._sequences[sequence.id]
        if sequence.owner is not None:
            self._owned[sequence.owner] -= 1
        if sequence.timer is not None:
            sequence.timer.cancel()

    # -- time passes ---------------------------------------------------------------------------------------------

    def _check(self, sequence: OpenSequence) -> None:
        """Forget a sequence that has been idle for too long, or is over; else look again when it may be."""
        now = time.monotonic()
        idle_ms, timeout_ms = self._settings.max_idle_ms, self._settings.timeout_ms
        busy = sequence.running or sequence.jobs
        due = (now if busy else sequence.idle_since) + idle_ms / 1000
        if timeout_ms:
            over = sequence.opened + timeout_ms / 1000
            if over <= now:
                self._expire(sequence)
                return
            due = min(due, over)
        if due <= now:
            self._forget(sequence)
        else:
            sequence.timer = asyncio.get_running_loop().call_later(due - now, self._check, sequence)

    def _expire(self, sequence: OpenSequence) -> None:
        """The time of a sequence is over: what is running is answered, what waits is refused."""
        if sequence.ended:
            return
        refused, sequence.jobs = sequence.jobs, deque()
        sequence.closing = True
        self._settle(sequence)
        self._refuse(refused)

    def _refuse(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        self.waiting -= len(jobs)
        for job in jobs:
            job.on_cancel = None
            job.fail(no_worker(self._model, job))
        self._tell_if_empty()

    # -- workers end ---------------------------------------------------------------------------------------------

    def retire(self, owner: Hashable) -> None:
        """A worker takes nothing new: its sequences end with what they have."""
        for sequence in self._of(owner):
            sequence.closing = True
            self._settle(sequence)

    def lose(self, owner: Hashable, untouched: Sequence[Job]) -> list[Job]:
        """A worker has ended, and with it the state of its sequences. What of them waits is refused.

        A sequence that the worker had not begun goes to another one.

        Args:
            owner: The worker.
            untouched: What it was given and had not begun.

        Returns:
            Those of `untouched` that cannot go to another worker.
        """
        self.put_back(job for job in untouched if job.alone)
        lost: list[Job] = []
        refused: list[Job] = []
        for sequence in self._of(owner):
            mine = [job for job in untouched if job.sequence_id == sequence.id]
            if len(mine) == sequence.running and not sequence.answered:
                for job in mine:
                    if job.state != DONE:
                        job.state = QUEUED
                        job.on_cancel = self._given_up
                        sequence.jobs.appendleft(job)
                        self.waiting += 1
                self._renew(sequence, first=True)
            else:
                lost += mine
                refused += sequence.jobs
                sequence.jobs = deque()
                self._forget(sequence)
        del self._owned[owner]
        self._lines.pop(owner, None)
        self._refuse(refused)
        return lost

    def _of(self, owner: Hashable) -> list[OpenSequence]:
        return [sequence for sequence in self._sequences.values() if sequence.owner is owner]

    def take_all(self) -> list[Job]:
        """Remove all waiting jobs; no sequence goes on."""
        jobs: list[Job] = []
        for sequence in list(self._sequences.values()):
            jobs += sequence.jobs
            sequence.jobs = deque()
            sequence.closing = True
            self._settle(sequence)
        for job in jobs:
            job.on_cancel = None
        return jobs + super().take_all()


class _WatchedReply:
    """The Reply of a job in a sequence: the handler may end sequences with an answer."""

    __slots__ = ("_queue", "_reply")

    def __init__(self, reply: Reply, queue: SequenceQueue) -> None:
        self._reply = reply
        self._queue = queue

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:
        """Write an intermediate result."""
        self._queue.heed(answer)
        return self._reply.chunk(answer, body)

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Write the result."""
        self._queue.heed(answer)
        self._reply.finish(answer, body)

    def fail(self, error: RelightError) -> None:
        """Answer with an error."""
        self._reply.fail(error)


def _pruned(line: deque[OpenSequence]) -> deque[OpenSequence]:
    """A line without those at its head whose requests were given up."""
    while line and not line[0].jobs:
        line.popleft().lined_up = False
    return line
