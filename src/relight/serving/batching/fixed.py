"""TorchServe's literal rule: a batch is due when it is full or `max_batch_delay` has passed."""

from __future__ import annotations

from copy import copy


class FixedBatching:
    """Waits for a full batch, whatever the load (`batchPolicy: fixed`).

    Args:
        batch_size: Most requests in a batch.
        max_delay: Seconds that the first request of a batch may wait for others.
    """

    pipelines = False

    def __init__(self, batch_size: int, max_delay: float) -> None:
        self.batch_size = batch_size
        self._max_delay = max_delay
        self._since = 0.0

    def wait(self, waiting: int, oldest: float, now: float) -> float:
        """Seconds until a batch is due.

        The delay counts from the moment when a worker was free for the first request (batching_and_llm.md §2.2), which
        is the first question about it.
        """
        if waiting >= self.batch_size:
            self._since = 0.0
            return 0.0
        if not self._since or oldest > self._since:
            self._since = max(oldest, now)
        left = self._since + self._max_delay - now
        if left <= 0:
            self._since = 0.0
        return left

    def apart(self) -> FixedBatching:
        """Another one, for it remembers when the first request could have gone to a worker."""
        return copy(self)

    def served(self, count: int, seconds: float, waiting: int) -> None:
        """The rule learns nothing."""
