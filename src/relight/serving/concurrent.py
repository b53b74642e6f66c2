"""A worker that runs many batches at a time (`asyncCommunication`), as the frontend sees it.

Batches begin as they are sent and are answered in any order. What happens to one concerns no other: its error, its
timeout, its slow client. Only the end of the process concerns them all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from relight.errors import InternalServerError
from relight.serving.backpressure import SlowClients
from relight.serving.replies import check_reply, deliver
from relight.serving.worker import Sent, Worker
from relight.wire.messages import Kind, Notice

if TYPE_CHECKING:
    from relight.serving.job import Job
    from relight.serving.pool import WorkerPool
    from relight.wire.messages import Reply

_STOP_GRACE = 5.0
"""Seconds that a worker may take to say that it has stopped a batch. Beyond that it can do nothing for any other."""


class _Running:
    """A batch that is under way, since `sent_at`, and was heard of at `heard` last."""

    __slots__ = ("heard", "sent", "sent_at", "stopped")

    def __init__(self, sent: Sent, now: float) -> None:
        self.sent = sent
        self.sent_at = now
        self.heard = now
        self.stopped = False


class ConcurrentWorker(Worker):
    """One worker of a version whose handler is asynchronous.

    Args:
        worker_id: Its id.
        pool: The pool it works for.
        gpu_id: The device it is assigned, if any.
    """

    capacity = 10_000

    def __init__(self, worker_id: int, pool: WorkerPool, gpu_id: int | None) -> None:
        super().__init__(worker_id, pool, gpu_id)
        self._running: dict[int, _Running] = {}
        self._slow_clients = SlowClients()

    @property
    def held(self) -> int:
        """Batches that it has not answered."""
        return len(self._running)

    def send(self, jobs: list[Job], now: float) -> None:
        """Send a batch; the worker is READY and holds fewer than `capacity` batches."""
        seq = self._post(jobs)
        for index, job in enumerate(jobs):
            job.on_cancel = partial(self._on_cancel, seq, index)
        self._running[seq] = _Running(Sent(seq, jobs), now)
        if self._silence is None:
            self._watch(self._pool.response_timeout)

    def _on_reply(self, reply: Reply, payload: bytes | memoryview, last: bool) -> None:
        running = self._running.get(reply.seq)
        if running is None:
            if reply.seq > self._seq:
                raise ValueError(f"reply to batch {reply.seq}, which was not sent")
            # A thread of the handler may still send parts of an answer that is over.
            return
        jobs = running.sent.jobs
        if reply.failure is None:
            check_reply(reply, len(jobs), len(payload))
        now = self._pool.clock()
        if last:
            del self._running[reply.seq]
            self._pool.policy.served(len(jobs), now - running.sent_at, self._pool.queue.waiting)
        elif not running.stopped:
            running.heard = now
        deliver(reply, jobs, payload, last=last, on_slow=self._client_is_slow)
        if last:
            self._pool.worker_free(self)

    # -- what the worker is told of a batch ----------------------------------------------------------------------

    def _notify(self, kind: int, seq: int, index: int = 0) -> None:
        if self._process is not None and seq in self._running:
            self._process.channel.send(kind, Notice(seq, index))

    def _on_cancel(self, seq: int, index: int, _job: Job) -> None:
        self._notify(Kind.CANCEL, seq, index)

    def _client_is_slow(self, job: Job, seq: int, size: int) -> None:
        """Have the handler wait for its client, unless it works for others in the same batch."""
        begins = self._slow_clients.lags(job, size, self._pool.clock(), partial(self._client_has_read, seq))
        if begins and len(self._running[seq].sent.jobs) == 1:
            self._notify(Kind.HOLD, seq)

    def _client_has_read(self, seq: int) -> None:
        running = self._running.get(seq)
        if running is not None:
            if not running.stopped:
                running.heard = self._pool.clock()
            if len(running.sent.jobs) == 1:
                self._notify(Kind.RELEASE, seq)

    # -- timeouts ------------------------------------------------------------------------------------------------

    def _check_silence(self) -> None:
        """Stop the batches that were silent for `response_timeout`; end a worker that does not even do that."""
        now, timeout = self._pool.clock(), self._pool.response_timeout
        first = now + timeout
        for running in list(self._running.values()):
            due = self._due(running, timeout)
            if due - now <= 0.001:
                if running.stopped:
                    self._silence = None
                    self._timed_out = f"batch not stopped within {_STOP_GRACE:g} s after its response_timeout"
                    self.kill()
                    return
                due = self._expire(running, now, timeout)
            first = min(first, due)
        self._silence = None
        if self._running:
            self._watch(first - now)

    def _due(self, running: _Running, timeout: float) -> float:
        """When something must have happened to a batch."""
        if running.stopped:
            return running.heard + _STOP_GRACE
        waits = [since for job in running.sent.jobs if (since := self._slow_clients.since(job)) is not None]
        return timeout + (min(waits) if waits else running.heard)

    def _expire(self, running: _Running, now: float, timeout: float) -> float:
        """Give up what has not come in time; when to look at the batch again."""
        running.heard = now
        slow = [job for job in running.sent.jobs if self._slow_clients.since(job) is not None]
        if slow:
            for job in slow:
                job.expire(f"The client has read nothing for {timeout:g} s.")
            return now + timeout
        message = f"No response within response_timeout of {timeout:g} s."
        for job in running.sent.jobs:
            job.fail(InternalServerError(message))
        running.stopped = True
        self._notify(Kind.STOP, running.sent.seq)
        return now + _STOP_GRACE

    # -- the end of a process ------------------------------------------------------------------------------------

    def _split(self) -> tuple[list[Sent], list[Sent]]:
        """The batches under way: those that the worker has begun, and those that it has not."""
        batches = [running.sent for running in self._running.values()]
        if self._process is not None:
            progress = self._process.progress
            # It begins what it reads; so without the page that tells, all count as begun.
            self._begun = progress.begun() if progress is not None else self._seq
        return [sent for sent in batches if sent.seq <= self._begun], [
            sent for sent in batches if sent.seq > self._begun
        ]

    def _settle(self) -> list[Job]:
        """Take all batches from a worker that has ended: the jobs of those begun; the others are put back."""
        begun, untouched = self._split()
        self._slow_clients.clear()
        self._running.clear()
        self._pool.queue.put_back([job for sent in untouched for job in sent.jobs])
        return [job for sent in begun for job in sent.jobs]
