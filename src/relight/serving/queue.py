"""The bounded queue of one model version."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from relight.serving.job import DONE, QUEUED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relight.errors import RelightError
    from relight.serving.job import Job


class JobQueue:
    """First in, first out, with a bound; a job that is given up frees its place at once.

    Args:
        capacity: Jobs that may wait.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.waiting = 0
        """Jobs that wait for a worker; jobs given up do not count."""
        self.ahead = 0
        """Jobs that were sent to workers ahead of their turn: they wait as well, and count."""
        self.on_empty: Callable[[], None] | None = None
        """Called when the last waiting job has been taken or given up."""
        self._jobs: deque[Job] = deque()

    @property
    def pending(self) -> int:
        """Jobs that no handler has begun."""
        return self.waiting + self.ahead

    def put(self, job: Job) -> bool:
        """Append a job; False when the queue is full."""
        if self.waiting + self.ahead >= self.capacity:
            return False
        job.on_cancel = self._cancelled
        self._jobs.append(job)
        self.waiting += 1
        return True

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs that a worker did not begin back to the front, in their order, whatever the bound."""
        for job in reversed(list(jobs)):
            if job.state != DONE:
                job.state = QUEUED
                job.on_cancel = self._cancelled
                self._jobs.appendleft(job)
                self.waiting += 1

    def head_is_alone(self) -> bool:
        """Whether the next job must not be batched."""
        self._drop_done()
        return bool(self._jobs) and self._jobs[0].alone

    def oldest(self) -> float:
        """When the next job arrived; only while jobs are waiting."""
        self._drop_done()
        return self._jobs[0].arrived

    def take(self, count: int) -> list[Job]:
        """Remove up to `count` jobs; a job that must run alone comes by itself."""
        taken: list[Job] = []
        jobs = self._jobs
        while jobs and len(taken) < count:
            job = jobs[0]
            if job.state == DONE:
                jobs.popleft()
                continue
            if job.alone and taken:
                break
            jobs.popleft()
            self.waiting -= 1
            job.on_cancel = None
            taken.append(job)
            if job.alone:
                break
        self._tell_if_empty()
        return taken

    def fail_all(self, error: RelightError) -> None:
        """Answer every waiting job with an error."""
        for job in self.take_all():
            job.fail(error)

    def take_all(self) -> list[Job]:
        """Remove all waiting jobs."""
        jobs = [job for job in self._jobs if job.state != DONE]
        for job in jobs:
            job.on_cancel = None
        self._jobs.clear()
        self.waiting = 0
        self._tell_if_empty()
        return jobs

    def _cancelled(self, _job: Job) -> None:
        self.waiting -= 1
        self._tell_if_empty()
        # Given-up jobs are skipped when their turn comes; many of them must not pile up before that.
        if len(self._jobs) > 2 * self.waiting + 64:
            self._jobs = deque(job for job in self._jobs if job.state == QUEUED and job is not _job)

    def _tell_if_empty(self) -> None:
        if self.on_empty is not None and not self.waiting:
            self.on_empty()

    def _drop_done(self) -> None:
        while self._jobs and self._jobs[0].state == DONE:
            self._jobs.popleft()
