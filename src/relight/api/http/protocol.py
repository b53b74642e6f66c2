"""One HTTP/1.1 connection: bytes in, exchanges out, in order.

httptools parses; this class enforces the limits, keeps pipelined requests in order, and knows when the client is gone.
It is the server's own rather than uvicorn's because the contract reaches below ASGI (reason phrases of handlers, header
order, 413 and 417 without the usual headers), and because a request that needs no task and no event takes 40 % less CPU
(docs/performance.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from relight.api.http.exchange import NO_CACHE, Exchange
from relight.api.http.leniency import MASKED_UPGRADE, accepted_by_parser, has_body
from relight.errors import BadRequestError

if TYPE_CHECKING:
    from relight.api.turn import Turn
    from relight.serving.job import RequestIds

MAX_REQUEST_LINE = 4096
MAX_HEADERS = 8192
_MAX_HEAD = 2 * (MAX_REQUEST_LINE + MAX_HEADERS)
_MAX_PIPELINED = 32
"""Parsed requests that may wait on one connection; then it is not read until they are answered."""
_LINGER = 2.0
"""Seconds that a closed connection is still read, so that the client gets the answer and not a reset."""

_METHODS = frozenset(b"GET POST PUT DELETE HEAD OPTIONS PATCH CONNECT TRACE".split())
_EXPECT, _LENGTH, _TYPE, _AUTHORIZATION, _TRANSFER = range(5)
_KNOWN = {
    b"expect": _EXPECT,
    b"content-length": _LENGTH,
    b"content-type": _TYPE,
    b"authorization": _AUTHORIZATION,
    b"transfer-encoding": _TRANSFER,
}


class Listener(Protocol):
    """What a connection needs to know of the listener that accepted it."""

    max_request_size: int
    max_buffered: int
    """Bytes that may wait for a client that does not read; beyond, its connection is broken off."""
    turn: Turn
    """What its connections write with."""
    cors: bytes
    """Header lines added to every answer."""
    ids: RequestIds
    connections: set[HttpConnection]

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""

    def log(self, exchange: Exchange, peer: str) -> None:
        """A request has been answered."""

    def forget(self, connection: HttpConnection) -> None:
        """A connection is closed, or about to be."""


class HttpConnection(asyncio.Protocol):
    """A client's connection.

    Args:
        listener: Where it came in.
    """

    def __init__(self, listener: Listener) -> None:
        self.cors = listener.cors
        self.common_headers = listener.cors + NO_CACHE
        self.stopping = False
        self._listener = listener
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._peer = "127.0.0.1"
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._reading: Exchange | None = None
        self._closed = False
        self.paused = False
        self._advancing = False
        self._linger: asyncio.TimerHandle | None = None
        self._written: list[bytes] = []
        self._method: bytes | None = None
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self._begun = False
        self._swallow = False
        self._refused = False
        self._expect = b""

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._peer = f"/{peer[0]}:{peer[1]}"
        self._listener.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client is gone: what it waited for is not needed any more."""
        self._transport = None
        self._closed = True
        self._listener.forget(self)
        if self._linger is not None:
            self._linger.cancel()
        exchange, self._current = self._current, None
        self._waiting.clear()
        self._reading = None
        if exchange is not None and exchange.job is not None:
            exchange.job.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent."""
        if self._closed:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if not self._begun:
                data, self._method = accepted_by_parser(data)
        while data and not self._closed:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Declined by answering in HTTP/1.1; the parser wants a new one for that.
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                continue
            except httptools.HttpParserError:
                self._malformed()
            break
        if self._in_head and self._head_bytes > _MAX_HEAD and not self._closed:
            self._malformed()

    def eof_received(self) -> bool:
        """The client has closed its end: as with TorchServe, it is gone."""
        return False

    def pause_writing(self) -> None:
        """The client reads slowly: do not start on its next request."""
        self.paused = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.paused = False
        if self._current is not None and self._current.job is not None:
            self._current.job.drained()
        self._next()

    # -- httptools -----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begun = True

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url
        if len(self._target) >= MAX_REQUEST_LINE - 16:
            raise _TooLongError

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; those after the body are dropped."""
        if not self._in_head:
            return
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > MAX_HEADERS:
            raise _TooLongError
        self._headers.append((b"Upgrade" if name == MASKED_UPGRADE else name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._head_bytes = 0
        parser = self._parser
        listener = self._listener
        method = self._method or parser.get_method()
        self._method = None
        exchange = Exchange(
            self,
            method.decode("latin-1"),
            self._target,
            "HTTP/1.1" if parser.get_http_version() == "1.1" else "HTTP/1.0",
            self._headers,
            listener.ids.next(),
        )
        exchange.closing = not parser.should_keep_alive()
        self._reading = exchange
        has_length = self._note_headers(exchange)
        # The parser takes what follows for another protocol, so that the body would count as the next request.
        self._refused = parser.should_upgrade() and has_body(self._headers)
        if not has_length:
            self._synthesise_length()
        if self._expect:
            self._on_expect(exchange)

    def _note_headers(self, exchange: Exchange) -> bool:
        has_length = False
        for name, value in self._headers:
            known = _KNOWN.get(name.lower())
            if known is None:
                continue
            if known == _LENGTH:
                has_length = True
                self._swallow = int(value or b"0") > self._listener.max_request_size
            elif known == _TYPE:
                exchange.content_type = value
            elif known == _AUTHORIZATION:
                if exchange.authorization is None:
                    exchange.authorization = value
            elif known == _EXPECT:
                self._expect = value
        return has_length

    def _synthesise_length(self) -> None:
        """Handlers see a content-length in any case, and never a transfer-encoding (rest_api.md §1.2)."""
        self._headers[:] = [pair for pair in self._headers if pair[0].lower() != b"transfer-encoding"]
        self._headers.append((b"content-length", b"0"))

    def _on_expect(self, exchange: Exchange) -> None:
        self._headers[:] = [pair for pair in self._headers if pair[0].lower() != b"expect"]
        if self._expect.lower() == b"100-continue" and not self._current:
            self._expect = b""
            if self._swallow:
                # The client waits for a word before it sends the body, so there is none to read.
                self._reading = None
                self._parser = httptools.HttpRequestParser(self)
                self._reset()
                self._current = exchange
                exchange.bare(413, close=False)
            else:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        exchange = self._reading
        if exchange is None or self._swallow:
            return
        exchange.size += len(body)
        if exchange.size > self._listener.max_request_size:
            # Only a chunked body can get here: its end may never come, so the connection has to go.
            self._swallow = True
            self._reading = None
            exchange.body.clear()
            exchange.closing = True
            self._accept(exchange, 413)
            return
        exchange.body.append(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        exchange, self._reading = self._reading, None
        refusal = 0
        if self._swallow:
            refusal = 413
        elif self._expect and self._expect.lower() != b"100-continue":
            refusal = 417
        elif self._refused:
            refusal = -1
        self._reset()
        if exchange is None:
            return
        if exchange.size and exchange.headers[-1] == (b"content-length", b"0"):
            exchange.headers[-1] = (b"content-length", b"%d" % exchange.size)
        self._accept(exchange, refusal)

    # -- exchanges in order --------------------------------------------------------------------------------------

    def _accept(self, exchange: Exchange, refusal: int) -> None:
        """Answer an exchange when those before it are answered.

        Args:
            exchange: A complete request.
            refusal: A status to refuse it with, bare; 0 to handle it; -1 if it is malformed.
        """
        if self._closed:
            # What came behind a request that closes the connection will never be answered, so it is not begun.
            return
        exchange.status = refusal
        if self._current is None and not self.paused:
            self._start(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) >= _MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        refusal, exchange.status = exchange.status, 0
        if self.stopping:
            exchange.closing = True
        if refusal > 0:
            exchange.bare(refusal, close=False)
        elif refusal < 0:
            exchange.fail(BadRequestError("Invalid HTTP message."))
        else:
            exchange.arrived = monotonic()
            self._listener.handle(exchange)

    def finished(self, exchange: Exchange) -> None:
        """An exchange is answered."""
        if exchange is not self._current:
            return
        self._current = None
        exchange.job = None
        if exchange.status != 413:
            self._listener.log(exchange, self._peer)
        if exchange.closing or self.stopping:
            self.close()
        elif self._waiting:
            self._next()

    def _next(self) -> None:
        if self._advancing:
            # An answer that was ready at once: the loop below goes on with the next request.
            return
        self._advancing = True
        try:
            while self._waiting and self._current is None and not self.paused and not self._closed:
                self._start(self._waiting.popleft())
        finally:
            self._advancing = False
        if len(self._waiting) < _MAX_PIPELINED and self._transport is not None and not self._closed:
            self._transport.resume_reading()

    def _malformed(self) -> None:
        """Answer what is not HTTP, after what came before it, and close."""
        self._reading = None
        self._in_head = False
        exchange = Exchange(self, "-", self._target or b"-", "HTTP/1.1", [], self._listener.ids.next())
        exchange.closing = True
        self._accept(exchange, -1)

    # -- writing and closing -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes; a client that leaves too many of them unread is dropped."""
        transport = self._transport
        if transport is None or self._closed:
            return
        if self._written:
            self._written.append(data)
            data = b"".join(self._written)
            self._written.clear()
        transport.write(data)
        if self.paused and transport.get_write_buffer_size() > self._listener.max_buffered:
            self.abort()

    def write_soon(self, data: bytes) -> None:
        """Send bytes when this turn of the event loop is over: what streams is often ready in many pieces."""
        if not self._written:
            self._listener.turn.add(self)
        self._written.append(data)

    def send_written(self) -> None:
        """Send what `write_soon` has kept."""
        if self._written:
            self.write(b"")

    def write_now(self, data: bytes) -> None:
        """Send bytes before anything else is done; uvloop otherwise writes when it has read all that there is."""
        transport = self._transport
        if transport is None or self._closed:
            return
        transport.set_write_buffer_limits(high=0)
        self.write(data)
        transport.set_write_buffer_limits()

    def write_all(self, parts: list[bytes | memoryview]) -> None:
        """Send several pieces without joining them."""
        transport = self._transport
        if transport is None or self._closed:
            return
        self.send_written()
        transport.writelines(parts)
        if self.paused and transport.get_write_buffer_size() > self._listener.max_buffered:
            self.abort()

    def close(self) -> None:
        """Close in order: send all, end the stream, read what the client still sends for a moment."""
        if self._closed or self._transport is None:
            return
        self.send_written()
        self._closed = True
        self._listener.forget(self)
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._linger = asyncio.get_running_loop().call_later(_LINGER, self._transport.close)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection off; what was written before is sent if the socket takes it."""
        self.send_written()
        if self._transport is not None:
            self._transport.abort()

    @property
    def busy(self) -> bool:
        """Whether a request is being received or answered."""
        return self._current is not None or bool(self._waiting) or self._reading is not None

    def stop(self) -> None:
        """Close when what is under way is answered; at once if nothing is."""
        self.stopping = True
        if not self.busy:
            self.close()

    def finish_now(self) -> None:
        """End the connection: the time to end in order is over."""
        if self._transport is not None:
            self._transport.close() if not self.busy else self._transport.abort()


class _TooLongError(Exception):
    """The request line or the headers are too long."""
