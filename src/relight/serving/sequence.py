"""What one sequence is, and what a version's sequences are bound by."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable

    from relight.serving.job import Job


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """What a version's sequences are bound by.

    Attributes:
        max_idle_ms: Milliseconds without a request after which a sequence is forgotten.
        timeout_ms: Milliseconds that a sequence may last in all; 0 for no limit.
        max_sequences: Sequences at a time.
        queue_size: Requests of one sequence that may wait.
        id_header: Header that names the sequence of a request.
        start_header: Header that says that a request begins a sequence.
        end_header: Header that says, in a request, that it ends its sequence; in an answer, the ids of those that end,
            separated by semicolons.
    """

    max_idle_ms: int = 0
    timeout_ms: int = 0
    max_sequences: int = 0
    queue_size: int = 0
    id_header: str = "ts_request_sequence_id"
    start_header: str = "ts_request_sequence_start"
    end_header: str = "ts_request_sequence_end"


class OpenSequence:
    """One sequence.

    Args:
        sequence_id: Its id.
        now: When it begins.
    """

    __slots__ = (
        "answered",
        "closing",
        "ended",
        "id",
        "idle_since",
        "jobs",
        "lined_up",
        "opened",
        "owner",
        "running",
        "timer",
    )

    def __init__(self, sequence_id: str, now: float) -> None:
        self.id = sequence_id
        self.jobs: deque[Job] = deque()
        """Those that wait."""
        self.owner: Hashable | None = None
        """The worker that has its state; None before its first request has gone to one."""
        self.running = 0
        """Those of its jobs that its worker has."""
        self.answered = False
        """Whether its worker has answered any: from then on there is state."""
        self.ended = False
        """Whether it is over with what is running; what waits belongs to a new one."""
        self.closing = False
        """Whether it takes no more requests."""
        self.lined_up = False
        """Whether it stands in a line of sequences that are ready."""
        self.opened = self.idle_since = now
        self.timer: asyncio.TimerHandle | None = None
