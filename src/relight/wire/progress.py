"""A page of memory that a worker shares with the frontend of the same host.

    0     u64             sequence number of the batch that the worker began last
    8     u64             what the worker is at: a Phase
    64    SLOTS u64       per batch (slot = sequence number modulo SLOTS): bit i set = request i is cancelled

The first tells exactly which batches a dead worker had begun: the others can go elsewhere. The second lets a running
handler ask whether its client is gone, at the price of a memory read. Each word has one writer.
A worker on another host has no such page; then the oldest unanswered batch counts as begun.
"""

from __future__ import annotations

import mmap
import os
import struct

SLOTS = 256
_WORD = struct.Struct("<Q")
_SLOTS_AT = 64
_SIZE = mmap.PAGESIZE


class Phase:
    """What a worker is at; the word to report is in NAMES."""

    START = 0
    IMPORT = 1
    INITIALIZE = 2
    SERVE = 3

    NAMES = ("start", "import", "initialize", "handle")


class ProgressPage:
    """One worker's page.

    Args:
        fd: File descriptor of the memory; it stays the caller's to close.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)

    @staticmethod
    def create() -> int:
        """A descriptor of a new page, all zero."""
        fd = os.memfd_create("relight-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        return fd

    def enter(self, phase: int) -> None:
        """The worker enters a Phase."""
        _WORD.pack_into(self._memory, 8, phase)

    def phase(self) -> int:
        """The Phase that the worker is in."""
        return int(_WORD.unpack_from(self._memory, 8)[0])

    def begin(self, seq: int) -> None:
        """The worker begins batch `seq`."""
        _WORD.pack_into(self._memory, 0, seq)

    def begun(self) -> int:
        """Sequence number of the batch that was begun last; 0 before the first."""
        return int(_WORD.unpack_from(self._memory, 0)[0])

    def clear(self, seq: int) -> None:
        """No request of batch `seq` is cancelled."""
        _WORD.pack_into(self._memory, _SLOTS_AT + 8 * (seq % SLOTS), 0)

    def cancel(self, seq: int, index: int) -> None:
        """Request `index` of batch `seq` is cancelled. Beyond 64 requests a batch has no bit: nothing happens."""
        if index < 64:
            at = _SLOTS_AT + 8 * (seq % SLOTS)
            _WORD.pack_into(self._memory, at, _WORD.unpack_from(self._memory, at)[0] | 1 << index)

    def any_cancelled(self, seq: int) -> bool:
        """Whether a request of batch `seq` is cancelled."""
        return bool(_WORD.unpack_from(self._memory, _SLOTS_AT + 8 * (seq % SLOTS))[0])

    def cancelled(self, seq: int, index: int) -> bool:
        """Whether request `index` of batch `seq` is cancelled."""
        word = _WORD.unpack_from(self._memory, _SLOTS_AT + 8 * (seq % SLOTS))[0]
        return index < 64 and bool(word >> index & 1)

    def close(self) -> None:
        """Unmap the page."""
        self._memory.close()
