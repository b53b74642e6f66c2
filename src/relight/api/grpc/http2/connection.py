"""One HTTP/2 connection of the gRPC server: bytes in, streams out (RFC 9113).

It is the server's own rather than grpcio's because the answer to one call costs a fifth of the CPU, and half of the
time that a lone client waits (docs/performance.md). It serves gRPC and nothing else: no push, no priorities.
Streams are answered in any order.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic
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

if TYPE_CHECKING:
    from relight.api.grpc.http2.headers import Headers
    from relight.api.grpc.http2.stream import Stream

H = TypeVar("H")

RECEIVE_WINDOW = 1 << 20
"""Bytes that a client may send on one stream before it gets more room."""
MAX_STREAMS = (1 << 31) - 1
ADVERTISED_HEADER_LIST = 8192
"""Bytes of headers that a request may have (grpc_api.md §9)."""
_CONNECTION_WINDOW = 1 << 24
_MAX_FRAME = 1 << 20
_QUANTUM = 1 << 18
_NUISANCES = 10_000
"""Frames per second that cost the server something and serve nobody; a client that sends more is sent away."""
_PREFACE_SECONDS = 20.0
_LAST_CALL_SECONDS = 5.0
_LAST_CALL = b"lastcall"
_KEEPALIVE = b"relight?"

_SETTINGS = frames.settings_frame(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
        Setting.MAX_FRAME_SIZE: _MAX_FRAME,
        Setting.MAX_HEADER_LIST_SIZE: ADVERTISED_HEADER_LIST,
    }
) + frames.window_update(0, _CONNECTION_WINDOW - DEFAULT_WINDOW)


class StreamListener(Protocol[H]):
    """What a connection needs to know of the listener that accepted it."""

    max_buffered: int
    """Bytes that may wait in the socket of a client that does not read; beyond, its connection is broken off."""
    max_age: float
    """Seconds after which a connection is ended in order; infinite for never."""
    max_age_grace: float
    """Seconds that its streams have then; infinite for as long as they take."""
    keepalive_time: float
    """Seconds of silence after which a client is asked whether it is there."""
    keepalive_timeout: float
    """Seconds that it may take to answer."""
    connections: set[Http2Connection[H]]

    def interpret(self, headers: Headers) -> H:
        """What the headers of a request mean; equal headers are asked about once."""

    def open(self, connection: Http2Connection[H], stream_id: int, head: H, *, ended: bool) -> Stream:
        """A client has opened a stream, and closed its side of it already if `ended`."""

    def forget(self, connection: Http2Connection[H]) -> None:
        """A connection is closed."""


class Http2Connection(asyncio.Protocol, Generic[H]):
    """A client's connection.

    Args:
        listener: Where it came in.
    """

    receive_window = RECEIVE_WINDOW

    def __init__(self, listener: StreamListener[H]) -> None:
        self.window = DEFAULT_WINDOW
        """Bytes that the client takes on all streams together."""
        self.initial_window = DEFAULT_WINDOW
        """Bytes that it takes on each new stream."""
        self.max_frame = DEFAULT_MAX_FRAME
        """Bytes of content that it takes in one frame."""
        self.paused = False
        """Whether the socket is full."""
        self.peer = "127.0.0.1"
        self.secure = False
        self.streams: dict[int, Stream] = {}
        self.max_buffered = listener.max_buffered
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._headers: HeaderMemory[H] = HeaderMemory()
        self._blocked: dict[Stream, None] = {}
        self._unparsed = b""
        self._began = False
        self._last_stream = 0
        self._refused_above = LARGEST_WINDOW
        self._going_away = False
        self._block: bytearray | None = None
        self._block_stream = 0
        self._block_flags = 0
        self._data_left = 0
        self._data_stream: Stream | None = None
        self._data_ends = False
        self._received = 0
        self._nuisances = 0
        self._nuisances_since = 0.0
        self._heard = True
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = f"/{peer[0]}:{peer[1]}"
        self.secure = transport.get_extra_info("ssl_object") is not None
        listener = self._listener
        listener.connections.add(self)
        self._later("preface", _PREFACE_SECONDS, self.abort)
        self._later("age", listener.max_age * random.uniform(0.9, 1.1), self._too_old)  # noqa: S311 - no secret
        self._later("keepalive", listener.keepalive_time, self._ask_whether_alive)
        self.write(_SETTINGS)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client is gone: what it waited for is not needed any more."""
        self._transport = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._listener.forget(self)
        streams = list(self.streams.values())
        for stream in streams:
            stream.discard()
            stream.lost()
        self._blocked.clear()
        self._data_stream = None

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent."""
        self._heard = True
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

    def pause_writing(self) -> None:
        """The socket is full."""
        self.paused = True

    def resume_writing(self) -> None:
        """The socket has room again."""
        self.paused = False
        self._flush()
        if not self.paused:
            for stream in list(self.streams.values()):
                if stream not in self._blocked:
                    stream.drained()

    # -- frames in -----------------------------------------------------------------------------------------------

    def _preface(self, data: bytes) -> int:
        """Where the first frame begins; -1 if that cannot be told yet."""
        size = len(PREFACE)
        if data[:size] != PREFACE[: len(data)]:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
        if len(data) < size:
            return -1
        self._began = True
        self._cancel("preface")
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
                        self._nuisance()
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
        if stream_id == 0 or stream_id > self._last_stream:
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
            pass
        elif kind == PUSH_PROMISE:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        else:
            if kind == PRIORITY and len(payload) != 5:
                raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
            self._nuisance()

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
        self._nuisance()
        if len(block) > MAX_HEADER_LIST:
            raise ConnectionBrokenError(ErrorCode.ENHANCE_YOUR_CALM, "a header block that does not end")
        if flags & END_HEADERS:
            self._block = None
            self._on_block(self._block_flags, stream_id, bytes(block))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        head = self._headers.known(block)
        if stream_id <= self._last_stream:
            self._on_trailers(flags, stream_id, block)
            return
        if head is None:
            head = self._listener.interpret(self._headers.decode(block))
            self._headers.remember(block, head)
        self._last_stream = stream_id
        if stream_id > self._refused_above:
            return
        ended = bool(flags & END_STREAM)
        stream = self._listener.open(self, stream_id, head, ended=ended)
        if not stream.finished:
            self.streams[stream_id] = stream
            if ended:
                stream.ended()

    def _on_trailers(self, flags: int, stream_id: int, block: bytes) -> None:
        # Decoded in any case: they may change the table.
        self._headers.decode(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._nuisance()
        elif not flags & END_STREAM or stream.half_closed:
            stream.reset(ErrorCode.PROTOCOL_ERROR)
            stream.lost()
        else:
            self._end_of_stream(stream)

    # -- control frames ------------------------------------------------------------------------------------------

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = int.from_bytes(payload, "big") & LARGEST_WINDOW
        if stream_id == 0:
            if not increment or self.window + increment > LARGEST_WINDOW:
                raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection")
            self.window += increment
            self._flush()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_stream:
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream_id}")
            self._nuisance()
        elif not increment or stream.window + increment > LARGEST_WINDOW:
            stream.reset(ErrorCode.FLOW_CONTROL_ERROR)
            stream.lost()
        else:
            stream.window += increment
            if stream in self._blocked:
                self._flush()

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if stream_id == 0 or stream_id > self._last_stream:
            raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}")
        self._nuisance()
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
        self._nuisance()
        for name, value in frames.read_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
                    raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE {value}")
                self.max_frame = value
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH {value}")
        self.write(frames.frame(SETTINGS, ACK, 0))
        self._flush()

    def _resize_windows(self, size: int) -> None:
        if size > LARGEST_WINDOW:
            raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE {size}")
        change, self.initial_window = size - self.initial_window, size
        for stream in self.streams.values():
            stream.window += change
            if stream.window > LARGEST_WINDOW:
                raise ConnectionBrokenError(ErrorCode.FLOW_CONTROL_ERROR, "the window of a stream")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 8 or stream_id:
            raise ConnectionBrokenError(
                ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR, "malformed PING"
            )
        if not flags & ACK:
            self._nuisance()
            self.write(frames.frame(PING, ACK, 0, payload))
        elif payload == _LAST_CALL and self._going_away:
            self._refuse_new()

    def _nuisance(self) -> None:
        """A frame that costs something and serves nobody: a few are normal, a flood is an attack."""
        self._nuisances += 1
        if self._nuisances > _NUISANCES:
            now = monotonic()
            if now - self._nuisances_since < 1.0:
                raise ConnectionBrokenError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
            self._nuisances, self._nuisances_since = 0, now

    # -- frames out ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes; a client that leaves too many of them unread is dropped."""
        transport = self._transport
        if transport is not None:
            transport.write(data)
            if self.paused and transport.get_write_buffer_size() > self._listener.max_buffered:
                self.abort()

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces without joining them."""
        if self._transport is not None:
            self._transport.writelines(parts)

    def write_now(self, data: bytes) -> None:
        """Send bytes before anything else is done; uvloop otherwise writes when it has read all that there is."""
        transport = self._transport
        if transport is not None:
            transport.set_write_buffer_limits(high=0)
            self.write(data)
            transport.set_write_buffer_limits()

    def block(self, stream: Stream) -> None:
        """A stream has more to write than it may."""
        self._blocked[stream] = None
        self._flush()

    def _flush(self) -> None:
        """Write what waits, each stream in turn."""
        while self._blocked and not self.paused and self.window > 0:
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

    def close_stream(self, stream: Stream) -> None:
        """A stream has ended."""
        self.streams.pop(stream.stream_id, None)
        self._blocked.pop(stream, None)
        if self._data_stream is stream:
            self._data_stream = None
        if self._refused_above != LARGEST_WINDOW and not self.streams:
            self._close_soon()

    # -- the end -------------------------------------------------------------------------------------------------

    def go_away(self, text: str) -> None:
        """End in order: the client opens no new streams, those that are open are served."""
        if self._going_away:
            return
        self._going_away = True
        # Streams may be on their way: the client is told to stop, and its answer tells that none are (RFC 9113 §6.8).
        self.write(frames.go_away(LARGEST_WINDOW, ErrorCode.NO_ERROR, text) + frames.frame(PING, 0, 0, _LAST_CALL))
        self._later("last call", _LAST_CALL_SECONDS, self._refuse_new)

    def _refuse_new(self) -> None:
        self._cancel("last call")
        if self._refused_above == LARGEST_WINDOW:
            self._refused_above = self._last_stream
            self.write(frames.go_away(self._last_stream, ErrorCode.NO_ERROR))
            if not self.streams:
                self._close_soon()

    def _close_soon(self) -> None:
        """Close when what is being parsed is handled."""
        asyncio.get_running_loop().call_soon(self.close)

    def close(self) -> None:
        """Close when all is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection off."""
        if self._transport is not None:
            self._transport.abort()

    def _break_off(self, code: int, text: str) -> None:
        """Tell the client what it did wrong, and close."""
        if self._began:
            self.write(frames.go_away(self._last_stream, code, text))
        self.close()

    def _too_old(self) -> None:
        self.go_away("max_age")
        self._later("grace", self._listener.max_age_grace, self.abort)

    # -- timers --------------------------------------------------------------------------------------------------

    def _ask_whether_alive(self) -> None:
        listener = self._listener
        if self._heard:
            self._heard = False
            self._later("keepalive", listener.keepalive_time, self._ask_whether_alive)
        else:
            self.write(frames.frame(PING, 0, 0, _KEEPALIVE))
            self._later("keepalive", listener.keepalive_timeout, self._check_alive)

    def _check_alive(self) -> None:
        if self._heard:
            self._ask_whether_alive()
        else:
            self.abort()

    def _later(self, name: str, seconds: float, action: object) -> None:
        self._cancel(name)
        if seconds != float("inf"):
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, action)  # type: ignore[arg-type]

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
