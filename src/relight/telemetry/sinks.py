"""Files and the console, written by threads of their own, in bulk: nobody who logs waits for a disk or a pipe."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MAX_PENDING = 64 * 1024 * 1024
"""Bytes that may wait for one sink; beyond, lines are left out, and their number is written once there is room."""


class Sink:
    """Writes text to a descriptor, in order, from a thread.

    Args:
        fd: Where to write.
        name: Of the thread.
        owned: Whether to close `fd` at the end.
    """

    def __init__(self, fd: int, name: str, *, owned: bool) -> None:
        self._fd = fd
        self._owned = owned
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pending = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def file(cls, path: Path) -> Sink:
        """A sink that appends to a file, which is created if there is none.

        Raises:
            OSError: it cannot be opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return cls(fd, f"log-{path.stem}", owned=True)

    def write(self, text: str) -> None:
        """Write whole lines, soon."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._pending + len(data) > _MAX_PENDING:
                self._dropped += text.count("\n")
                return
            self._pending += len(data)
        self._queue.put(data)

    def close(self, timeout: float = 2.0) -> None:
        """Write what is pending, and end.

        Args:
            timeout: Seconds to wait for a reader that does not read.
        """
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            data = self._queue.get()
            if data is None:
                break
            self._write(data)
            with self._lock:
                self._pending -= len(data)
                dropped, self._dropped = (self._dropped, 0) if self._pending < _MAX_PENDING // 2 else (0, self._dropped)
            if dropped:
                self._write(f"{dropped} log lines were left out: nobody read them in time\n".encode())
        if self._owned:
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        # A console that is gone must not take the server with it.
        with contextlib.suppress(OSError):
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
