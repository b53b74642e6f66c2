"""When a worker that has died is started again, and when it is given up."""

from __future__ import annotations

BACK_OFF = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597)
"""Seconds before a restart, by the number of failures in a row (batching_and_llm.md §5.3)."""
_SHORT_LIFE = 1.0
"""Seconds; a worker that dies sooner, again and again, is restarted more and more slowly too."""
_SHORT_LIVES = 5
"""That many short lives in a row are not held against a worker that loads its model."""


class RestartPolicy:
    """Decides over one worker. A worker that had loaded its model restarts at once, one that cannot load backs off.

    Args:
        max_retry_time: Seconds of continuous failure after which the worker is given up (`maxRetryTimeoutInSec`).
    """

    def __init__(self, max_retry_time: float) -> None:
        self._max_retry_time = max_retry_time
        self._failures = 0
        self._short_lives = 0
        self.failing_since: float | None = None
        """When the series of failures began; None while there is none."""

    def died(self, began: float, now: float, *, loaded: bool) -> int | None:
        """A process of the worker has ended.

        Args:
            began: When it was started, on any monotonic clock, in seconds.
            now: When it ended.
            loaded: Whether it had loaded the model.

        Returns:
            Seconds until the next start; None to give up.
        """
        if loaded and now - began > _SHORT_LIFE:
            self.failing_since, self._failures, self._short_lives = None, 0, 0
        else:
            self.failing_since = began if self.failing_since is None else self.failing_since
            self._short_lives += loaded
            self._failures = max(self._failures + (not loaded), self._short_lives - _SHORT_LIVES)
        delay = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
        if self.failing_since is not None and now - self.failing_since + delay > self._max_retry_time:
            return None
        return delay
