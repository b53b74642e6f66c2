"""What the kernel says about a tree of processes: members, CPU time, memory; and signals to all of them."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import signal

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class _Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used here, see proc(5)."""

    state: str
    parent: int
    session: int
    cpu_seconds: float
    started: int


class Cpu(NamedTuple):
    """CPU time of the whole machine since boot, in seconds, summed over its CPUs."""

    busy: float
    total: float


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may hold anything, so count from the last one.
    fields = text[text.rindex(")") + 2 :].split()
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return _Stat(fields[0], int(fields[1]), int(fields[3]), cpu, int(fields[19]))


class Tree:
    """All processes that descend from one, or were started in its session.

    The session finds those whose parent has died; the root must therefore lead a session of its own.

    Args:
        root: Process id of the session leader.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self._known: dict[int, int] = {}

    def pids(self) -> list[int]:
        """Live members (zombies are not), in no particular order."""
        stats = {pid: stat for pid in _all_pids() if (stat := _stat(pid)) is not None}
        members = {pid for pid, stat in stats.items() if pid == self.root or stat.session == self.root}
        # A member may have left the session; once seen, it is recognised by its start time.
        members |= {pid for pid, started in self._known.items() if pid in stats and stats[pid].started == started}
        grew = True
        while grew:
            children = {pid for pid, stat in stats.items() if stat.parent in members} - members
            members |= children
            grew = bool(children)
        self._known = {pid: stats[pid].started for pid in members if pid in stats}
        return [pid for pid in members if pid in stats and stats[pid].state not in "ZX"]

    def cpu_seconds(self) -> float:
        """User and system time of the live members so far."""
        return sum(stat.cpu_seconds for pid in self.pids() if (stat := _stat(pid)) is not None)

    def pss_mb(self) -> float:
        """Proportional set size of all members, in MB of 10**6 bytes: shared pages are split among their users."""
        return sum(_pss_kib(pid) for pid in self.pids()) * 1024 / 1e6

    def send(self, number: signal.Signals) -> None:
        """Signal each member; one that is gone by then is passed over."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_gone(self, seconds: float) -> bool:
        """Wait until no member lives; False when some still do after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.pids():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _pss_kib(pid: int) -> int:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def machine_cpu() -> Cpu:
    """Read /proc/stat's first line; time in guests is already part of user time."""
    ticks = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return Cpu((sum(ticks) - idle) / _TICKS_PER_SECOND, sum(ticks) / _TICKS_PER_SECOND)


def machine_text() -> str:
    """One line about this machine: processor, CPUs, memory, kernel."""
    cpuinfo = (_PROC / "cpuinfo").read_text()
    names = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    name = names[0] if names else os.uname().machine
    return f"{name}, {os.cpu_count()} CPUs, {memory_gib:.0f} GiB memory, Linux {os.uname().release}"
