"""The work-conserving rule: an idle worker waits only for requests that are about to come.

While workers are busy the queue builds the next batch by itself. A worker that becomes idle takes what is there, with
one exception: when a batch has just been answered, its clients often send their next requests within a moment.
Starting with the first of them would run a batch of one, and the others would wait for a whole turn. So when the recent
batches were larger than what is waiting, the worker lingers, for a small part of the time that a batch takes.
"""

from __future__ import annotations

_LINGER = 0.15
"""Part of a batch's time that a worker lingers at most: the loss if nobody comes stays below it."""
_SHORTEST = 0.0005
"""Seconds; lingering for less cannot be timed."""
_SMOOTHING = 0.25


class AdaptiveBatching:
    """Sends at once what is waiting, unless more is about to come (`batchPolicy: adaptive`, the default).

    Args:
        batch_size: Most requests in a batch.
        max_delay: Seconds that a request may wait for others at most.
    """

    pipelines = True

    def __init__(self, batch_size: int, max_delay: float) -> None:
        self.batch_size = batch_size
        self._max_delay = max(0.0, max_delay)
        self._seconds = 0.0
        self._expected = 1.0

    def wait(self, waiting: int, oldest: float, now: float) -> float:
        """Seconds until a batch is due."""
        if waiting >= self.batch_size or waiting >= self._expected - 0.5:
            return 0.0
        linger = min(self._max_delay, self._seconds * _LINGER)
        if linger < _SHORTEST:
            return 0.0
        left = oldest + linger - now
        if left <= 0:
            # They did not come: expect less next time.
            self._expected = max(float(waiting), self._expected * 0.5)
        return left

    def apart(self) -> AdaptiveBatching:
        """The same: what it has learned holds for all workers."""
        return self

    def served(self, count: int, seconds: float, waiting: int) -> None:
        """Learn how long batches take, and how many requests are under way at a time."""
        self._seconds += (seconds - self._seconds) * _SMOOTHING
        under_way = min(self.batch_size, count + waiting)
        if under_way >= self._expected:
            self._expected = float(under_way)
        else:
            self._expected += (under_way - self._expected) * _SMOOTHING
