"""Sequence batching: each worker has sequences of its own, and a batch has one request of each at most.

Together with continuous batching, requests of sequences may take several steps (batching_and_llm.md §7 and §9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relight.serving.batching.continuous import ContinuousPool
from relight.serving.worker import State

if TYPE_CHECKING:
    from relight.serving.batching import BatchingPolicy
    from relight.serving.job import Job
    from relight.serving.sequences import SequenceQueue
    from relight.serving.worker import Worker


class SequencePool(ContinuousPool):
    """Workers that get the sequences which they have, and new ones as they have room."""

    queue: SequenceQueue

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policies: dict[Worker, BatchingPolicy] = {}
        if self._version.continuous_batching:
            # Each sequence may have two requests in a step.
            self.max_payload *= 2

    def worker_unavailable(self, worker: Worker) -> None:
        """A worker takes no more batches: its sequences end, and do not go to another one."""
        self._policies.pop(worker, None)
        self.queue.retire(worker)
        super().worker_unavailable(worker)

    def _joining(self, worker: Worker, going_on: list[Job]) -> list[Job]:
        queue, size = self.queue, self.policy.batch_size
        if worker.state is State.DRAINING:
            return queue.take_for(worker, going_on, size, fresh=False)
        if worker.state is not State.READY:
            return []
        if queue.head_is_alone():
            return queue.take(1)
        if not going_on:
            ready, oldest = queue.ready(worker, size)
            if not ready or self._waits(self._policy_of(worker), ready, oldest):
                return []
        return queue.take_for(worker, going_on, size)

    def _policy_of(self, worker: Worker) -> BatchingPolicy:
        policy = self._policies.get(worker)
        if policy is None:
            policy = self._policies[worker] = self.policy.apart()
        return policy

    def _candidates(self) -> list[Worker]:
        """The idle workers; those that have few sequences get new ones first."""
        return sorted(self._idle, key=self.queue.owned_by)

    def _answered(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.queue.done(job)

    def _return(self, worker: Worker, jobs: list[Job]) -> list[Job]:
        return self.queue.lose(worker, jobs)
