"""A connection without a socket: bytes in, bytes out, and a listener that answers as the test says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from relight.api.http.protocol import HttpConnection
from relight.api.turn import Turn
from relight.serving.job import RequestIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relight.api.http.exchange import Exchange

CACHE = (
    b"Pragma: no-cache\r\nCache-Control: no-cache; no-store, must-revalidate, private\r\n"
    b"Expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n"
)


class FakeTransport(asyncio.Transport):
    """Keeps what is written; the test says how much of it the client has read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.unread = 0
        self.eof = self.closed = self.aborted = False
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 5000) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.eof, "written after the end"
        assert not self.closed, "written after the end"
        self.written += data
        self.unread += len(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Without a meaning here."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class FakeListener:
    """Answers at once (404 to the targets in `errors`), unless `hold` says so: then the test answers `held`."""

    def __init__(self) -> None:
        self.max_request_size = 100
        self.max_buffered = 1000
        self.cors = b""
        self.ids = RequestIds()
        self.turn = Turn()
        self.connections: set[HttpConnection] = set()
        self.exchanges: list[Exchange] = []
        self.held: list[Exchange] = []
        self.hold: Callable[[Exchange], bool] = lambda _: False
        self.errors: set[bytes] = set()
        self.logged: list[tuple[str, bytes, int, str]] = []

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if self.hold(exchange):
            self.held.append(exchange)
        else:
            exchange.respond(404 if exchange.target in self.errors else 200, exchange.target, b"")

    def log(self, exchange: Exchange, peer: str) -> None:
        self.logged.append((exchange.method, exchange.target, exchange.status, peer))

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)


class Wire:
    """A connection, its listener and its transport."""

    def __init__(self) -> None:
        self.listener = FakeListener()
        self.connection = HttpConnection(self.listener)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    def send(self, *data: bytes) -> None:
        for piece in data:
            self.connection.data_received(piece)

    def take(self) -> bytes:
        """What was written since the last call, as if this turn of the event loop were over."""
        self.connection.send_written()
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written

    @property
    def statuses(self) -> list[int]:
        """The status codes of the answers since the last call."""
        return [int(part.split(b" ", 1)[0]) for part in self.take().split(b"HTTP/1.1 ")[1:]]

    @property
    def seen(self) -> list[tuple[str, bytes, bytes]]:
        """Method, target and body of each request that was handled."""
        return [(each.method, each.target, b"".join(each.body)) for each in self.listener.exchanges]

    def headers(self, index: int = -1) -> list[tuple[bytes, bytes]]:
        return self.listener.exchanges[index].headers


def get(target: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([b"GET %b HTTP/%b" % (target, version), *headers, b"", b""])


def post(target: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % target, b"Content-Length: %d" % len(body), *headers, b"", b""]
    return b"\r\n".join(lines) + body
