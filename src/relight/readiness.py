"""How the command that starts a server in the background learns whether the start went well."""

from __future__ import annotations

import os
from contextlib import suppress

READY_FD = "RELIGHT_READY_FD"
"""Variable with the descriptor on which that command waits for one line."""


class Readiness:
    """Tells the command that started the server how the start went."""

    def __init__(self) -> None:
        value = os.environ.pop(READY_FD, "")
        self._fd = int(value) if value.isdigit() else None
        if self._fd is not None:
            os.set_inheritable(self._fd, False)

    def ready(self) -> None:
        """The server is up."""
        self._send("ready\n")

    def failed(self, reason: str) -> None:
        """The server cannot start.

        Args:
            reason: One line.
        """
        self._send(f"error: {' '.join(reason.split())}\n")

    def _send(self, line: str) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.write(fd, line.encode())
            os.close(fd)
