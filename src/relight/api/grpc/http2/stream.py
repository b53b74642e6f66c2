"""One stream of a connection: what arrives, and what is written under flow control (RFC 9113 §5)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from relight.api.grpc.http2.frames import DATA, FRAME_HEAD, ErrorCode, reset, window_update

if TYPE_CHECKING:
    from relight.api.grpc.http2.connection import Http2Connection

_JOIN = 64 * 1024
"""Below this size joining the pieces costs less than handing them over one by one."""


class Stream:
    """A stream that a client has opened; subclasses say what becomes of what arrives.

    Args:
        connection: Its connection.
        stream_id: Its number.
        ended: Whether the client has sent all already.
    """

    __slots__ = (
        "_pending",
        "_received",
        "_trailers",
        "connection",
        "finished",
        "half_closed",
        "pending_bytes",
        "stream_id",
        "window",
    )

    def __init__(self, connection: Http2Connection[Any], stream_id: int, *, ended: bool = False) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.window = connection.initial_window
        """Bytes that the client takes before it gives more room."""
        self.half_closed = ended
        """Whether the client has sent all."""
        self.finished = False
        """Whether the server has said its last word, or nobody is there to hear it."""
        self.pending_bytes = 0
        """Bytes that wait for the client's permission."""
        self._pending: deque[bytes | memoryview] | None = None
        self._trailers = b""
        self._received = 0

    # -- for subclasses to override ------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """A part of what the client sends has arrived."""

    def ended(self) -> None:
        """The client has sent all."""

    def lost(self) -> None:
        """The client has given the stream up, or its connection is gone."""

    def drained(self) -> None:
        """All that waited has been written."""

    def stop(self) -> None:
        """The server is about to end: whoever has no work under way ends now."""

    # -- receiving -----------------------------------------------------------------------------------------------

    def consume(self, size: int) -> None:
        """Count received bytes, and give the client room for as many in time.

        Raises:
            ConnectionBrokenError: the client has sent more than it may.
        """
        self._received += size
        connection = self.connection
        connection.check_received(self._received)
        if self._received * 2 >= connection.receive_window and not self.half_closed and self.reads:
            connection.write(window_update(self.stream_id, self._received))
            self._received = 0

    @property
    def reads(self) -> bool:
        """Whether the client may send on: not while it does not read its answers."""
        return self._pending is None

    # -- writing -------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether the client, or the network, does not keep up."""
        return self._pending is not None or self.connection.paused

    def write(self, head: bytes, data: bytes, trailers: bytes, *, now: bool = False) -> None:
        """Write frames, or keep them until the client permits.

        Args:
            head: HEADERS frame that begins the answer; empty if that has begun.
            data: Content of DATA frames.
            trailers: HEADERS frame that ends the stream; empty if more follows.
            now: Before anything else is done.
        """
        if self.finished:
            return
        connection = self.connection
        size = len(data)
        if (
            self._pending is None
            and size <= self.window
            and size <= connection.window
            and size <= connection.max_frame
            and not connection.paused
        ):
            self.window -= size
            connection.window -= size
            if data:
                head += FRAME_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, self.stream_id)
            if size >= _JOIN:
                connection.write_all([head, data, trailers])
            elif now:
                connection.write_now(b"%b%b%b" % (head, data, trailers))
            else:
                connection.write(b"%b%b%b" % (head, data, trailers))
            if trailers:
                self._finish()
            return
        if head:
            connection.write(head)
        if self._pending is None:
            self._pending = deque()
        if data:
            self._pending.append(data)
            self._count_pending(size)
        self._trailers = trailers
        connection.block(self)

    def pump(self, quantum: int) -> bool:
        """Write what waits, as far as the client permits.

        Args:
            quantum: Bytes after which other streams have their turn.

        Returns:
            Whether nothing waits any more.
        """
        connection = self.connection
        pending = self._pending
        if pending is None or self.finished:
            return True
        while pending:
            if connection.paused or quantum <= 0:
                return False
            data = pending[0]
            size = min(len(data), self.window, connection.window, connection.max_frame)
            if size <= 0:
                return False
            self.window -= size
            connection.window -= size
            quantum -= size
            self._count_pending(-size)
            part = data if size == len(data) else memoryview(data)[:size]
            connection.write_all([FRAME_HEAD.pack(size >> 16, size & 0xFFFF, DATA, 0, self.stream_id), part])
            if size == len(data):
                pending.popleft()
            else:
                pending[0] = memoryview(data)[size:]
        self._pending = None
        if self._trailers:
            connection.write(self._trailers)
            self._finish()
        else:
            if self._received and not self.half_closed:
                self.consume(0)
            self.drained()
        return True

    def reset(self, code: int) -> None:
        """End the stream without an answer."""
        if not self.finished:
            self.connection.write(reset(self.stream_id, code))
            self.half_closed = True
            self._finish()

    def discard(self) -> None:
        """The client has given the stream up."""
        self.half_closed = True
        self._finish()

    def drop_pending(self) -> None:
        """Forget what waits: something else is written instead."""
        self._pending = None
        self._count_pending(-self.pending_bytes)

    def _count_pending(self, size: int) -> None:
        self.pending_bytes += size
        self.connection.pending_bytes += size

    def _finish(self) -> None:
        self.finished = True
        self.drop_pending()
        if not self.half_closed:
            # The answer is complete: the client need not send on.
            self.connection.write(reset(self.stream_id, ErrorCode.NO_ERROR))
        self.connection.close_stream(self)
