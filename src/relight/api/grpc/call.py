"""One gRPC call: messages in, messages and a status out."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_from_bytes

from google.protobuf.message import DecodeError

from relight.api.grpc.http2.frames import END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS
from relight.api.grpc.http2.headers import encode_headers
from relight.api.grpc.http2.stream import Stream
from relight.api.grpc.messages import ENCODINGS, MessageError, MessageReader, framed
from relight.api.grpc.status import Code, Status, inference_status
from relight.errors import RelightError

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.api.grpc.http2.connection import Http2Connection

logger = logging.getLogger("relight.grpc")

_COMMON = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_HEAD = encode_headers([*_COMMON, (b"grpc-accept-encoding", ENCODINGS)])
_HEADS = {None: _HEAD} | {name: _HEAD + encode_headers([(b"grpc-encoding", name)]) for name in (b"gzip", b"deflate")}
_HEAD_FRAMES = {
    name: (FRAME_HEAD.pack(0, len(block), HEADERS, END_HEADERS, 0)[:5], block) for name, block in _HEADS.items()
}
_OK = encode_headers([(b"grpc-status", b"0")])
_OK_START = FRAME_HEAD.pack(0, len(_OK), HEADERS, END_HEADERS | END_STREAM, 0)[:5]
_LONGEST_DETAILS = 2048
"""Bytes of a status's text; escaped it may be three times as long, and clients refuse trailers of more than 8 KiB."""
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%")).decode()


class Method(NamedTuple):
    """A method of a service.

    Attributes:
        path: `/<package>.<Service>/<Method>`.
        handle: Called with the request; of a method that takes a stream, with each message.
        half_close: Called when the client of a method that takes a stream has sent all; None for the other methods.
    """

    path: str
    handle: Callable[[Call, bytes], None]
    half_close: Callable[[Call], None] | None = None


class Head(NamedTuple):
    """What the headers of a call say.

    Attributes:
        path: Path of the method, without the slash before it.
        method: The method; None if the call is refused.
        authorization: Value of the last authorization header.
        timeout: Seconds that the client waits; None for as long as it takes.
        encoding: What the client compresses messages with; None without compression.
        accepts: What answers may be compressed with, where the request is.
        refusal: Why the call cannot be handled.
        http_status: Refuses what is no gRPC at all; 0 for what is.
    """

    path: bytes
    method: Method | None = None
    authorization: bytes | None = None
    timeout: float | None = None
    encoding: bytes | None = None
    accepts: bytes | None = None
    refusal: Status | None = None
    http_status: int = 0


class Call(Stream):
    """One call.

    Args:
        connection: Where it came in.
        stream_id: Its stream.
        head: What its headers say.
        limit: Largest message, in bytes.
        on_end: Called once, when the call is over, however that came.
        ended: Whether nothing follows the headers.

    Attributes:
        arrived: When, on the monotonic clock, in seconds.
        status: The status it ended with, once it has.
        on_cancel: Called if the client gives up, or its deadline passes, before the answer is complete.
        on_stop: Called when the server is about to end; a call without one is waited for.
        on_drain: Called when a client that did not keep up has taken all that was sent.
        state: Whatever the method keeps from message to message.
    """

    __slots__ = (
        "_began",
        "_deadline",
        "_on_end",
        "_reader",
        "_request",
        "arrived",
        "head",
        "on_cancel",
        "on_drain",
        "on_stop",
        "over",
        "state",
        "status",
    )
    method = "gRPC"
    version = "HTTP/2.0"

    def __init__(
        self,
        connection: Http2Connection[Head],
        stream_id: int,
        head: Head,
        limit: int,
        on_end: Callable[[Call], None],
        *,
        ended: bool,
    ) -> None:
        super().__init__(connection, stream_id, ended=ended)
        self.head = head
        self.arrived = monotonic()
        self.status = -1
        self.over = False
        self.on_cancel: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None
        self.on_stop: Callable[[], None] | None = None
        self.state: object = None
        self._on_end = on_end
        self._reader = MessageReader(limit, head.encoding)
        self._request: bytes | None = None
        self._began = False
        self._deadline: asyncio.TimerHandle | None = None
        if head.timeout is not None:
            self._deadline = asyncio.get_running_loop().call_later(head.timeout, self._expire)

    @property
    def target(self) -> bytes:
        """What the access log shows."""
        return self.head.path

    # -- what the client sends -----------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Put messages together; those of a stream are handled as they come."""
        method = self.head.method
        if self.over or method is None:
            return
        try:
            messages = self._reader.feed(data)
        except MessageError as error:
            self.give_up(error.status)
            return
        for message in messages:
            if method.half_close is not None:
                self._guarded(method.handle, message)
            elif self._request is None:
                self._request = message
            else:
                self.end(Status(Code.INTERNAL, "More than one request message for a method that takes one"))

    def ended(self) -> None:
        """The request is complete."""
        method = self.head.method
        if self.over or method is None:
            return
        if not self._reader.empty:
            self.give_up(Status(Code.INTERNAL, "The stream ends within a message"))
        elif method.half_close is not None:
            self._guarded(method.half_close)
        elif self._request is None:
            self.end(Status(Code.INTERNAL, "The stream ends without a request message"))
        else:
            request, self._request = self._request, None
            self._guarded(method.handle, request)

    def _guarded(self, action: Callable[..., None], *message: bytes) -> None:
        try:
            action(self, *message)
        except RelightError as error:
            self.end(inference_status(error))
        except DecodeError:
            # What TorchServe answers to bytes that are no message (grpc_api.md §7).
            self.give_up(Status(Code.UNKNOWN))
        except Exception as error:  # noqa: BLE001 - the boundary of one call
            self.crash(error)

    def crash(self, error: Exception) -> None:
        """A defect of the server itself: the log has it, the client is told that there is one."""
        logger.error("Call %s failed", self.target.decode("utf-8", "replace"), exc_info=error)
        self.end(Status(Code.UNKNOWN))

    def lost(self) -> None:
        """The client has cancelled the call, or is gone."""
        if not self.over:
            on_cancel = self.on_cancel
            self._close(Code.CANCELLED)
            if on_cancel is not None:
                on_cancel()

    def drained(self) -> None:
        """The client has taken what was sent."""
        if self.on_drain is not None:
            self.on_drain()

    def stop(self) -> None:
        """The server is about to end."""
        method = self.head.method
        if self.over or method is None:
            return
        if self.on_stop is not None:
            self.on_stop()
        elif method.half_close is not None:
            # A stream of requests that has not brought any.
            self.end(Status(Code.UNAVAILABLE, "The server is shutting down."))

    def _expire(self) -> None:
        self._deadline = None
        if not self.over:
            self.drop_pending()
            self.give_up(Status(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    # -- answers -------------------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Send one message of several; the first one goes out at once."""
        if self.over:
            return
        first = not self._began
        self.write(self._head_once(), framed(message, self.head.accepts), b"", now=first)
        if self.pending_bytes > self.connection.max_buffered or self.connection.overloaded:
            self.give_up(Status(Code.RESOURCE_EXHAUSTED, "The client does not read its answers"))

    def finish(self, message: bytes | None = None) -> None:
        """End the call with success, and with a last message if there is one."""
        if self.over:
            return
        if self.connection.overloaded:
            self.end(Status(Code.RESOURCE_EXHAUSTED, "The client does not read its answers"))
            return
        self._close(Code.OK)
        wire_id = self.stream_id.to_bytes(4, "big")
        data = b"" if message is None else framed(message, self.head.accepts)
        self.write(self._head_once(), data, b"%b%b%b" % (_OK_START, wire_id, _OK))

    def end(self, status: Status) -> None:
        """End the call with a status, after what was sent."""
        if self.over:
            return
        self._close(status.code)
        block = b"" if self._began else encode_headers(_COMMON)
        self._began = True
        headers = [(b"grpc-status", b"%d" % status.code)]
        if status.details:
            headers.append((b"grpc-message", escaped(status.details)))
        self.write(b"", b"", self._frame(block + encode_headers(headers), END_HEADERS | END_STREAM))

    def give_up(self, status: Status) -> None:
        """End the call with a status, and let go of the work that is done for it."""
        on_cancel = self.on_cancel
        self.end(status)
        if on_cancel is not None:
            on_cancel()

    def refuse(self, http_status: int) -> None:
        """Answer what is no gRPC."""
        self._close(Code.UNKNOWN)
        block = encode_headers([(b":status", b"%d" % http_status)])
        self.write(b"", b"", self._frame(block, END_HEADERS | END_STREAM))

    def _head_once(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        start, block = _HEAD_FRAMES[self.head.accepts]
        return b"%b%b%b" % (start, self.stream_id.to_bytes(4, "big"), block)

    def _frame(self, block: bytes, flags: int) -> bytes:
        size = len(block)
        return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, HEADERS, flags, self.stream_id) + block

    def _close(self, code: Code) -> None:
        self.over = True
        self.status = int(code)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        # Nor a moment longer: they hold the request, and this call with it.
        self.on_cancel = self.on_drain = self.on_stop = self.state = None
        self._on_end(self)


def escaped(text: str) -> bytes:
    """A status's text for its header: UTF-8, percent-encoded where it is not plain ASCII, cut off where too long."""
    data = text.encode("utf-8", "replace")
    if len(data) > _LONGEST_DETAILS:
        data = data[:_LONGEST_DETAILS].decode("utf-8", "ignore").encode()
    return quote_from_bytes(data, safe=_PLAIN).encode()
