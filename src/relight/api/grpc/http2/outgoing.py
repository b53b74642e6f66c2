"""The sending side of a connection: its socket, its window, and the streams that wait for either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.api.grpc.http2.frames import (
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    ConnectionBrokenError,
    ErrorCode,
)

if TYPE_CHECKING:
    import asyncio

    from relight.api.grpc.http2.stream import Stream
    from relight.api.turn import Turn

_MOST_PENDING = 1 << 27
"""Bytes of answers that may wait for one client: a hundred calls of a slow one, with a megabyte each."""
_QUANTUM = 1 << 18
"""Bytes that one stream may write before it is the next one's turn."""


class Outgoing:
    """What a connection writes, and when.

    Args:
        turn: Shared by the connections of a listener.
        max_buffered: Bytes that may wait in the socket of a client that does not read; beyond, it is broken off.
    """

    def __init__(self, turn: Turn, max_buffered: int) -> None:
        self._turn = turn
        self._written: list[bytes] = []
        self.max_buffered = max_buffered
        self.window = DEFAULT_WINDOW
        """Bytes that the client takes on all streams together."""
        self.initial_window = DEFAULT_WINDOW
        """Bytes that it takes on each new stream."""
        self.max_frame = DEFAULT_MAX_FRAME
        """Bytes of content that it takes in one frame."""
        self.paused = False
        """Whether the socket is full."""
        self.pending_bytes = 0
        """Bytes of all streams that wait."""
        self.streams: dict[int, Stream] = {}
        """Those that are open."""
        self._transport: asyncio.Transport | None = None
        self._blocked: dict[Stream, None] = {}

    @property
    def overloaded(self) -> bool:
        """Whether the client leaves so much unread that it should not ask for more."""
        return self.pending_bytes > max(_MOST_PENDING, self.max_buffered)

    # -- asyncio -------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The socket is full."""
        self.paused = True

    def resume_writing(self) -> None:
        """The socket has room again."""
        self.paused = False
        self.flush()
        if not self.paused:
            for stream in list(self.streams.values()):
                if stream not in self._blocked:
                    stream.drained()

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes when this turn of the event loop is over; a client that leaves too many unread is dropped."""
        if self._transport is not None:
            if not self._written:
                self._turn.add(self)
            self._written.append(data)

    def send_written(self) -> None:
        """Send what has been written so far."""
        transport, written = self._transport, self._written
        if transport is not None and written:
            self._written = []
            transport.write(written[0] if len(written) == 1 else b"".join(written))
            if self.paused and transport.get_write_buffer_size() > self.max_buffered:
                transport.abort()

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces without joining them."""
        if self._transport is not None:
            self.send_written()
            self._transport.writelines(parts)

    def write_now(self, data: bytes) -> None:
        """Send bytes before anything else is done."""
        transport = self._transport
        if transport is not None:
            self._written.append(data)
            # Some versions of uvloop write when they have read all that there is, unless the buffer may hold nothing.
            transport.set_write_buffer_limits(high=0)
            self.send_written()
            transport.set_write_buffer_limits()

    def block(self, stream: Stream) -> None:
        """A stream has more to write than it may."""
        self._blocked[stream] = None
        self.flush()

    def unblock(self, stream: Stream) -> None:
        """A stream has ended: it waits for nothing any more."""
        self._blocked.pop(stream, None)

    def flush(self) -> None:
        """Write what waits, each stream in turn."""
        while self._blocked and not self.paused:
            progress = False
            for stream in list(self._blocked):
                before = stream.pending_bytes
                if stream.pump(_QUANTUM):
                    self._blocked.pop(stream, None)
                    progress = True
                elif stream.pending_bytes < before:
                    progress = True
            if not progress:
                return

    # -- what the client permits ---------------------------------------------------------------------------------

    def widen(self, stream_id: int, increment: int) -> bool:
        """The client takes more bytes.

        Args:
            stream_id: Its stream; 0 for all together.
            increment: How many more.

        Returns:
            Whether there is such a stream.

        Raises:
            ConnectionBrokenError: the window of the connection is too large now, or not larger.
        """
        if stream_id == 0:
            if not increment:
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            if self.window + increment > LARGEST_WINDOW:
                raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection")
            self.window += increment
            self.flush()
            return True
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        if not increment or stream.window + increment > LARGEST_WINDOW:
            stream.reset(ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
            stream.lost()
        else:
            stream.window += increment
            if stream in self._blocked:
                self.flush()
        return True

    def resize_windows(self, size: int) -> None:
        """The client takes another number of bytes on each stream.

        Raises:
            ConnectionBrokenError: it is too large.
        """
        if size > LARGEST_WINDOW:
            raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE {size}")
        change, self.initial_window = size - self.initial_window, size
        for stream in self.streams.values():
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, "the window of a stream")
