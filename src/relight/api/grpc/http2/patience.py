"""How much nonsense a client may send."""

from __future__ import annotations

from time import monotonic

from relight.api.grpc.http2.frames import ConnectionBrokenError, ErrorCode

_FRAMES = 10_000
_SECONDS = 1.0


class Patience:
    """Counts the frames of one client that cost something and serve nobody: a few are normal, a flood is an attack."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def spend(self) -> None:
        """Such a frame has come.

        Raises:
            ConnectionBrokenError: 10,000 have come within a second.
        """
        self._count += 1
        if self._count > _FRAMES:
            now = monotonic()
            if now - self._since < _SECONDS:
                raise ConnectionBrokenError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
            self._count, self._since = 0, now
