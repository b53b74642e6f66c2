"""Batching policies: how many waiting jobs an idle worker should get now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from relight.serving.batching.adaptive import AdaptiveBatching
from relight.serving.batching.fixed import FixedBatching

if TYPE_CHECKING:
    from collections.abc import Callable


class BatchingPolicy(Protocol):
    """Decides when a batch is due. It sees numbers only, so it needs neither clock nor event loop."""

    batch_size: int
    pipelines: bool
    """Whether a full batch may be sent to a worker that has not answered the last one."""

    def wait(self, waiting: int, oldest: float, now: float) -> float:
        """Seconds until a batch is due; 0 or less: send up to `batch_size` jobs now.

        Args:
            waiting: Jobs in the queue, at least one.
            oldest: When the oldest of them arrived.
            now: The time; like `oldest` on any monotonic clock, in seconds.
        """

    def served(self, count: int, seconds: float, waiting: int) -> None:
        """A worker has answered a batch.

        Args:
            count: Requests in the batch.
            seconds: What it took.
            waiting: Jobs in the queue now.
        """

    def apart(self) -> BatchingPolicy:
        """The policy for a worker that has requests of its own waiting, which no other may take."""


POLICIES: dict[str, Callable[[int, float], BatchingPolicy]] = {
    "adaptive": AdaptiveBatching,
    "fixed": FixedBatching,
}
"""Values of `batchPolicy` in a model's configuration, and what they select."""

__all__ = ["POLICIES", "AdaptiveBatching", "BatchingPolicy", "FixedBatching"]
