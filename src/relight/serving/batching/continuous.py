"""Continuous batching: a request that is not done after one call of the handler is in the next one too.

Each worker goes from step to step on its own. A step is the requests that go on, without their inputs, and with them
what is waiting, up to the batch size (batching_and_llm.md §8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from relight.serving.job import DONE
from relight.serving.pool import WorkerPool
from relight.serving.worker import State

if TYPE_CHECKING:
    from relight.serving.batching import BatchingPolicy
    from relight.serving.job import Job
    from relight.serving.worker import Worker


class Step(NamedTuple):
    """What one worker is doing."""

    jobs: list[Job]
    """The requests that it was sent."""
    begun: list[Job]
    """Those that it has known before: what it did for them ends with it."""
    aside: list[Job]
    """Requests that go on after this step, which is another's alone."""


class ContinuousPool(WorkerPool):
    """Workers that go on with what they have begun."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps: dict[Worker, Step] = {}

    def dispatch(self) -> None:
        """Give waiting jobs to idle workers; the others take theirs with their next step."""
        for worker in self._candidates():
            if not self.queue.waiting:
                return
            if self._step(worker, []):
                self._idle.remove(worker)
        if self.queue.waiting:
            for worker in self._ready:
                worker.hurry()

    def worker_free(self, worker: Worker) -> None:
        """A worker has answered its step."""
        step = self._steps.pop(worker)
        for job in step.jobs:
            job.parts, job.body, job.size = [], [], 0
        known = [*step.jobs, *step.aside]
        self._answered([job for job in known if job.state == DONE])
        going_on = [job for job in known if job.state != DONE]
        if not self._step(worker, going_on):
            super().worker_free(worker)
            return
        worker.wait_for_slow_client()
        if self.queue.waiting:
            self.dispatch()

    def put_back(self, worker: Worker, jobs: list[Job]) -> list[Job]:
        """A worker has ended: what it did not know goes to another one, and what it knew is lost."""
        step = self._steps.pop(worker, None)
        known = [] if step is None else [*step.begun, *step.aside]
        return known + self._return(worker, [job for job in jobs if job not in known])

    def _return(self, worker: Worker, jobs: list[Job]) -> list[Job]:  # noqa: ARG002 - others remember who had them
        """Put back what a worker had not begun and did not know; what of it ends with the worker all the same."""
        self.queue.put_back(jobs)
        return []

    def _step(self, worker: Worker, going_on: list[Job]) -> bool:
        """Send the next step; False if there is none."""
        aside: list[Job] = []
        new = self._joining(worker, going_on)
        if new and new[0].alone:
            going_on, aside = [], going_on
        jobs = going_on + new
        if not jobs:
            return False
        self._steps[worker] = Step(jobs, going_on, aside)
        worker.send(jobs, self.clock())
        return True

    def _joining(self, worker: Worker, going_on: list[Job]) -> list[Job]:
        """The waiting jobs that a worker takes up with its next step; with what goes on, nobody waits for more."""
        queue, policy = self.queue, self.policy
        if not queue.waiting or worker.state is not State.READY:
            return []
        if queue.head_is_alone():
            return queue.take(1)
        if not going_on and self._waits(policy, queue.waiting, queue.oldest()):
            return []
        return queue.take(policy.batch_size - len(going_on))

    def _waits(self, policy: BatchingPolicy, waiting: int, oldest: float) -> bool:
        """Whether the policy wants an idle worker to wait for more."""
        if waiting >= policy.batch_size:
            return False
        seconds = policy.wait(waiting, oldest, self.clock())
        if seconds > 0:
            self._arm(seconds)
        return seconds > 0

    def _candidates(self) -> list[Worker]:
        """The idle workers, in the order in which they get jobs."""
        return list(self._idle)

    def _answered(self, jobs: list[Job]) -> None:
        """These are done, or given up."""
