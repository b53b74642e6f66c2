"""One HTTP/2 connection of the gRPC server: bytes in, streams out (RFC 9113).

It is the server's own rather than grpcio's because the answer to one call costs a fifth of the CPU, and half of the
time that a lone client waits (docs/performance.md). It serves gRPC and nothing else: no push, no priorities.
Streams are answered in any order.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from relight.api.grpc.http2 import frames
from relight.api.grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_MAX_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEAD_SIZE,
    HEADERS,
    LARGEST_MAX_FRAME,
    LARGEST_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionBrokenError,
    ErrorCode,
    Setting,
)
from relight.api.grpc.http2.headers import MAX_HEADER_LIST, HeaderMemory
from relight.api.grpc.http2.lifetime import Lifetime, Spans
from relight.api.grpc.http2.outgoing import Outgoing
from relight.api.grpc.http2.patience import Patience

if TYPE_CHECKING:
    from relight.api.grpc.http2.headers import Headers
    from relight.api.grpc.http2.stream import Stream
    from relight.api.turn import Turn

H = TypeVar("H")

RECEIVE_WINDOW = 1 << 20
"""Bytes that a client may send on one stream before it gets more room."""
MAX_STREAMS = (1 << 31) - 1
ADVERTISED_HEADER_LIST = 8192
"""Bytes of headers that a request may have (grpc_api.md §9)."""
_CONNECTION_WINDOW = 1 << 24
_MAX_FRAME = 1 << 20

_SETTINGS = frames.settings_frame(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
        Setting.MAX_FRAME_SIZE: _MAX_FRAME,
        Setting.MAX_HEADER_LIST_SIZE: ADVERTISED_HEADER_LIST,
    }
) + frames.window_update(0, _CONNECTION_WINDOW - DEFAULT_WINDOW)


class StreamListener(Spans, Protocol[H]):
    """What a connection needs to know of the listener that accepted it."""

    max_buffered: int
    """Bytes that may wait in the socket of a client that does not read; beyond, its connection is broken off."""
    connections: set[Http2Connection[H]]
    turn: Turn
    """What its connections write with."""

    def interpret(self, headers: Headers) -> H:
        """What the headers of a request mean; equal headers are asked about once."""

    def open(self, connection: Http2Connection[H], stream_id: int, head: H, *, ended: bool) -> Stream:
        """A client has opened a stream, and closed its side of it already if `ended`."""

    def forget(self, connection: Http2Connection[H]) -> None:
        """A connection is closed."""


class Http2Connection(Outgoing, asyncio.Protocol, Generic[H]):
    """A client's connection.

    Args:
        listener: Where it came in.
    """

    receive_window = RECEIVE_WINDOW

    def __init__(self, listener: StreamListener[H]) -> None:
        super().__init__(listener.turn, listener.max_buffered)
        self.peer = "127.0.0.1"
        self.last_stream = 0
        """Number of the stream that was opened last."""
        self._listener = listener
        self._life: Lifetime  # from the moment when it is connected
        self._headers: HeaderMemory[H] = HeaderMemory()
        self._unparsed = b""
        self._began = False
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_flags = 0
        self._data_left = 0
        self._data_stream: Stream | None = None
        self._data_ends = False
        self._received = 0
        self._patience = Patience()

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = f"/{peer[0]}:{peer[1]}"
        self._listener.connections.add(self)
        self._life = Lifetime(self, self._listener)
        self.write(_SETTINGS)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client is gone: what it waited for is not needed any more."""
        self._transport = None
        self._life.over()
        self._listener.forget(self)
        streams = list(self.streams.values())
        for stream in streams:
            stream.discard()
            stream.lost()
        self._data_stream = None

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent."""
        self._life.heard = True
        if self._unparsed:
            data = self._unparsed + data
            self._unparsed = b""
        try:
            at = 0
            if not self._began:
                at = self._preface(data)
                if at < 0:
                    self._unparsed = data
                    return
            self._unparsed = self._parse(data, at)
        except ConnectionBrokenError as error:
            self._break_off(error.code, str(error))

    # -- frames in -----------------------------------------------------------------------------------------------

    def _preface(self, data: bytes) -> int:
        """Where the first frame begins; -1 if that cannot be told yet."""
        size = len(PREFACE)
        if data[:size] != PREFACE[: len(data)]:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
        if len(data) < size:
            return -1
        self._began = True
        self._life.begun()
        return size

    def _parse(self, data: bytes, at: int) -> bytes:
        """Handle the frames that are complete, and what has come of a DATA frame that is not; the rest of the bytes."""
        end = len(data)
        if self._data_left:
            at = self._rest_of_data(data, at)
        unpack = FRAME_HEAD.unpack_from
        while end - at >= HEAD_SIZE and self._transport is not None:
            high, low, kind, flags, stream_id = unpack(data, at)
            size = high << 16 | low
            if size > _MAX_FRAME:
                raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if self._block is not None and kind != CONTINUATION:
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            start = at + HEAD_SIZE
            stop = start + size
            if kind == DATA and not flags & PADDED:
                stream = self._receive(stream_id & LARGEST_WINDOW, size)
                if stop > end:
                    self._data_left = stop - end
                    self._data_stream = stream
                    self._data_ends = bool(flags & END_STREAM)
                    if stream is not None and start < end:
                        stream.received(data[start:end])
                    return b""
                if stream is not None:
                    if size:
                        stream.received(data[start:stop])
                    elif not flags & END_STREAM:
                        self._patience.spend()
                    if flags & END_STREAM:
                        self._end_of_stream(stream)
            elif stop > end:
                if size > MAX_HEADER_LIST:
                    raise ConnectionBrokenError(ErrorCode.ENHANCE_YOUR_CALM, f"a frame of {size} bytes")
                break
            else:
                self._on_frame(kind, flags, stream_id & LARGEST_WINDOW, data[start:stop])
            at = stop
        return data[at:] if at else data

    def _rest_of_data(self, data: bytes, at: int) -> int:
        size = min(self._data_left, len(data) - at)
        self._data_left -= size
        stream = self._data_stream
        if stream is not None and not stream.half_closed:
            stream.received(data[at : at + size])
        if not self._data_left:
            self._data_stream = None
            if stream is not None and self._data_ends:
                self._end_of_stream(stream)
        return at + size

    def _receive(self, stream_id: int, size: int) -> Stream | None:
        """Account for a DATA frame; its stream, if that is still open."""
        if stream_id == 0 or stream_id > self.last_stream:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        self._received += size
        if self._received * 2 >= _CONNECTION_WINDOW:
            self.write(frames.window_update(0, self._received))
            self._received = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            return None
        if stream.half_closed:
            stream.reset(ErrorCode.STREAM_CLOSED)
            stream.lost()
            return None
        if size:
            stream.consume(size)
        return stream

    def check_received(self, size: int) -> None:
        """Refuse more than the client was given room for.

        Raises:
            ConnectionBrokenError: it is more.
        """
        if size > RECEIVE_WINDOW:
            raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")

    def _end_of_stream(self, stream: Stream) -> None:
        if not stream.half_closed:
            stream.half_closed = True
            stream.ended()

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == CONTINUATION:
            self._on_continuation(flags, stream_id, payload)
        elif kind == DATA:
            stream = self._receive(stream_id, len(payload))
            content = frames.unpadded(flags & PADDED, payload)
            if stream is not None:
                if content:
                    stream.received(content)
                if flags & END_STREAM:
                    self._end_of_stream(stream)
        elif kind == RST_STREAM:
            self._on_reset(stream_id, payload)
        elif kind == SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == PING:
            self._on_ping(flags, stream_id, payload)
        elif kind == GOAWAY:
            # The client opens no streams any more; it closes the connection when it has its answers.
            _check_control(stream_id, payload, 8, len(payload))
        elif kind == PUSH_PROMISE:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        else:
            if kind == PRIORITY:
                self._on_priority(stream_id, payload)
            self._patience.spend()

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 5:
            raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if not stream_id:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of nothing")

    # -- header blocks -------------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        block = frames.unpadded(flags, payload) if flags & (PADDED | frames.WITH_PRIORITY) else payload
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, block)
        else:
            self._block = bytearray(block)
            self._block_stream, self._block_flags = stream_id, flags

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None or stream_id != self._block_stream:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        block += payload
        self._patience.spend()
        if len(block) > MAX_HEADER_LIST:
            raise ConnectionBrokenError(ErrorCode.ENHANCE_YOUR_CALM, "a header block that does not end")
        if flags & END_HEADERS:
            self._block = None
            self._on_block(self._block_flags, stream_id, bytes(block))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        head = self._headers.known(block)
        if stream_id <= self.last_stream:
            self._on_trailers(flags, stream_id, block)
            return
        if head is None:
            head = self._listener.interpret(self._headers.decode(block))
            self._headers.remember(block, head)
        self.last_stream = stream_id
        if stream_id > self._life.refused_above:
            return
        ended = bool(flags & END_STREAM)
        stream = self._listener.open(self, stream_id, head, ended=ended)
        if not stream.finished:
            self.streams[stream_id] = stream
            if ended:
                stream.ended()

    def _on_trailers(self, flags: int, stream_id: int, block: bytes) -> None:
        # Decoded in any case: they may change the table.
        headers = self._headers.decode(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            if any(name == b":method" for name, _ in headers):
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} is opened too late")
            self._patience.spend()
        elif not flags & END_STREAM or stream.half_closed:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
            stream.lost()
        else:
            self._end_of_stream(stream)

    # -- control frames ------------------------------------------------------------------------------------------

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        if not self.widen(stream_id, int.from_bytes(payload, "big") & LARGEST_WINDOW):
            if stream_id > self.last_stream:
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream_id}")
            self._patience.spend()

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if stream_id == 0 or stream_id > self.last_stream:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}")
        self._patience.spend()
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.discard()
            stream.lost()

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
            return
        self._patience.spend()
        for name, value in frames.read_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self.resize_windows(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                    raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE {value}")
                self.max_frame = value
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH {value}")
        self.write(frames.frame(SETTINGS, ACK, 0))
        self.flush()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_control(stream_id, payload, 8, 8)
        if not flags & ACK:
            self._patience.spend()
            self.write(frames.frame(PING, ACK, 0, payload))
        else:
            self._life.answered(payload)

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no stream is open."""
        return not self.streams

    def close_stream(self, stream: Stream) -> None:
        """A stream has ended."""
        self.streams.pop(stream.stream_id, None)
        self.unblock(stream)
        if self._data_stream is stream:
            self._data_stream = None
        self._life.stream_closed()

    def go_away(self, text: str) -> None:
        """End in order: the client opens no new streams, those that are open are served."""
        self._life.go_away(text)

    def close(self) -> None:
        """Close when all is written."""
        if self._transport is not None:
            self.send_written()
            self._transport.close()

    def abort(self) -> None:
        """Break the connection off."""
        if self._transport is not None:
            self._transport.abort()

    def _break_off(self, code: int, text: str) -> None:
        """Tell the client what it did wrong, and close."""
        if self._began:
            self.write(frames.go_away(self.last_stream, code, text))
        self.close()


def _check_control(stream_id: int, payload: bytes, least: int, most: int) -> None:
    """Refuse a frame about the connection that names a stream, or has a wrong size."""
    if stream_id:
        raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"a frame about the connection on stream {stream_id}")
    if not least <= len(payload) <= most:
        raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "a frame of a wrong size")
