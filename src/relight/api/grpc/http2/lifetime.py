"""How long a connection lives: its age, its silence, and its end in order."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

from relight.api.grpc.http2 import frames
from relight.api.grpc.http2.frames import LARGEST_WINDOW, PING, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFACE_SECONDS = 20.0
"""Seconds that a client may take for its first bytes."""
_LAST_CALL_SECONDS = 5.0
_LAST_CALL = b"lastcall"
_KEEPALIVE = b"relight?"
_JITTER = 0.1
"""Part of the age that is added or taken at random, so that clients do not all come back at once."""


class Spans(Protocol):
    """Times in seconds; infinite ones never pass."""

    max_age: float
    """Age at which a connection is ended in order."""
    max_age_grace: float
    """What its streams have then."""
    keepalive_time: float
    """Silence after which a client is asked whether it is there."""
    keepalive_timeout: float
    """What it may take to answer."""


class Mortal(Protocol):
    """What is ended: a connection."""

    @property
    def last_stream(self) -> int:
        """Number of the stream that was opened last."""

    @property
    def idle(self) -> bool:
        """Whether no stream is open."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """Close when all is written."""

    def abort(self) -> None:
        """Break it off."""


class Lifetime:
    """The timers of one connection.

    Args:
        connection: The connection; its client has just connected.
        spans: Of its listener.
    """

    def __init__(self, connection: Mortal, spans: Spans) -> None:
        self.heard = True
        """Whether the client has sent anything since it was looked at last."""
        self.refused_above = LARGEST_WINDOW
        """Streams above this number are not served: the connection is about to end."""
        self._connection = connection
        self._spans = spans
        self._going_away = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._later("preface", _PREFACE_SECONDS, connection.abort)
        age = spans.max_age * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
        self._later("age", age, self._too_old)
        self._later("keepalive", spans.keepalive_time, self._ask)

    def begun(self) -> None:
        """The client has shown that it speaks HTTP/2."""
        self._cancel("preface")

    def over(self) -> None:
        """The connection is gone."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def go_away(self, text: str) -> None:
        """End in order: the client opens no new streams, those that are open are served.

        Streams may be on their way: the client is told to stop, and its answer to a PING tells that it has read that
        (RFC 9113 §6.8).
        """
        if self._going_away:
            return
        self._going_away = True
        self._connection.write(
            frames.go_away(LARGEST_WINDOW, ErrorCode.NO_ERROR, text) + frames.frame(PING, 0, 0, _LAST_CALL)
        )
        self._later("last call", _LAST_CALL_SECONDS, self._refuse_new)

    def answered(self, payload: bytes) -> None:
        """The client has answered a PING."""
        if payload == _LAST_CALL and self._going_away:
            self._refuse_new()

    def stream_closed(self) -> None:
        """A stream has ended; with the last one the connection may end."""
        if self.refused_above != LARGEST_WINDOW and self._connection.idle:
            # Not at once: what is being parsed is handled first.
            asyncio.get_running_loop().call_soon(self._connection.close)

    def _refuse_new(self) -> None:
        self._cancel("last call")
        if self.refused_above == LARGEST_WINDOW:
            self.refused_above = self._connection.last_stream
            self._connection.write(frames.go_away(self.refused_above, ErrorCode.NO_ERROR))
            self.stream_closed()

    def _too_old(self) -> None:
        self.go_away("max_age")
        self._later("grace", self._spans.max_age_grace, self._connection.abort)

    def _ask(self) -> None:
        if self.heard:
            self.heard = False
            self._later("keepalive", self._spans.keepalive_time, self._ask)
        else:
            self._connection.write(frames.frame(PING, 0, 0, _KEEPALIVE))
            self._later("keepalive", self._spans.keepalive_timeout, self._check)

    def _check(self) -> None:
        if self.heard:
            self._ask()
        else:
            self._connection.abort()

    def _later(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._cancel(name)
        if seconds != float("inf"):
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, action)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
