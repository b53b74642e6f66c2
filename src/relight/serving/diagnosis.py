"""Why a worker died: everything that is known, collected once, for the log and for describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relight.serving.launchers.base import ExitStatus

_EVENTS = Path("/sys/fs/cgroup/memory.events")
_VMSTAT = Path("/proc/vmstat")


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory so far: in this control group, else on this host."""
    for path, key in ((_EVENTS, "oom_kill "), (_VMSTAT, "oom_kill ")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(key):
                return int(line[len(key) :])
    return 0


@dataclass(slots=True)
class Diagnosis:
    """The end of a worker.

    Attributes:
        phase: What it was at: `start`, `import`, `initialize`, `handle`, or `idle` between batches.
        cause: In a few words.
        exit: How the process ended; None while that is unknown.
        out_of_memory: Whether the kernel killed it for want of memory, or the handler reported that there is none.
        exception: Last line of the handler's traceback.
        traceback: All of it.
        output: The last lines that the worker wrote.
        lost: Ids of the requests that were running.
        own_doing: Whether relight ended it, because it took too long or broke the protocol.
        time: When.
    """

    phase: str
    cause: str
    exit: ExitStatus | None = None
    out_of_memory: bool = False
    exception: str | None = None
    traceback: str | None = None
    output: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    own_doing: bool = False
    time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    @property
    def exhausted(self) -> bool:
        """Whether clients are told 507: no memory, or killed by somebody else as if there were none."""
        return self.out_of_memory or (self.exit is not None and self.exit.killed and not self.own_doing)

    def as_json(self) -> dict[str, Any]:
        """The member `lastFailure` of a worker in describe; unknown things are left out."""
        description: dict[str, Any] = {
            "time": self.time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
            "phase": self.phase,
            "cause": self.cause,
        }
        if self.exit is not None and self.exit.code is not None:
            description["exitCode"] = self.exit.code
        if self.exit is not None and self.exit.signal is not None:
            description["signal"] = self.exit.signal
        description["outOfMemory"] = self.out_of_memory
        if self.exception:
            description["exception"] = self.exception
        if self.traceback:
            description["traceback"] = self.traceback
        description["output"] = self.output
        description["lostRequests"] = self.lost
        return description

    def __str__(self) -> str:
        """For the log: one record with all of it."""
        lines = [f"phase: {self.phase}; cause: {self.cause}"]
        if self.exit is not None:
            lines[0] += f"; ended by {self.exit}"
        if self.out_of_memory:
            lines[0] += "; out of memory"
        lines.append(f"requests lost: {', '.join(self.lost) or 'none'}")
        if self.traceback:
            lines += ["traceback of the handler:", self.traceback.rstrip()]
        if self.output:
            lines += ["last lines of the worker:", *self.output]
        return "\n".join(lines)
