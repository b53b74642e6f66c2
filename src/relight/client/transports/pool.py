"""Pools of HTTP connections in which a call costs the same however many there are.

httpx's own pool asks the system about every idle connection at every call, which is most of what a call costs when 16
are made at a time. Here each connection is a pool of its own, and those that are idle wait on a stack.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

__all__ = ["AsyncPool", "Pool"]

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1)


class Pool(httpx.BaseTransport):
    """As many connections as there are requests at a time. It may be shared by threads.

    Args:
        context: For TLS.
        socket: The path of a unix socket to connect to instead.
        keep: How many idle connections to keep.
    """

    def __init__(self, context: ssl.SSLContext, socket: str | None, keep: int = 100) -> None:
        self._make = partial(httpx.HTTPTransport, verify=context, uds=socket, limits=_ONE)
        self._idle: list[httpx.HTTPTransport] = []
        self._keep = keep
        self._closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request over an idle connection, or a new one."""
        try:
            connection = self._idle.pop()  # one step, so that no two threads get the same
        except IndexError:
            connection = self._make()
        try:
            response = connection.handle_request(request)
        except BaseException:
            connection.close()
            raise
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Stream(response.stream, connection, self)
        return response

    def close(self) -> None:
        """Close the idle connections; the others are closed when their answers have been read."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def give_back(self, connection: httpx.HTTPTransport) -> None:
        """Keep a connection, or close it."""
        if self._closed or len(self._idle) >= self._keep:
            connection.close()
        else:
            self._idle.append(connection)


class _Stream(httpx.SyncByteStream):
    """The body of an answer, after which its connection is given back."""

    def __init__(self, stream: httpx.SyncByteStream, connection: httpx.HTTPTransport, pool: Pool) -> None:
        self._stream = stream
        self._connection = connection
        self._pool = pool

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        try:
            self._stream.close()
        except BaseException:
            self._connection.close()
            raise
        self._pool.give_back(self._connection)


class AsyncPool(httpx.AsyncBaseTransport):
    """As `Pool`, for one event loop."""

    def __init__(self, context: ssl.SSLContext, socket: str | None, keep: int = 100) -> None:
        self._make = partial(httpx.AsyncHTTPTransport, verify=context, uds=socket, limits=_ONE)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._keep = keep
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As `Pool.handle_request`."""
        connection = self._idle.pop() if self._idle else self._make()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await connection.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncStream(response.stream, connection, self)
        return response

    async def aclose(self) -> None:
        """As `Pool.close`."""
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()

    async def give_back(self, connection: httpx.AsyncHTTPTransport) -> None:
        """As `Pool.give_back`."""
        if self._closed or len(self._idle) >= self._keep:
            await connection.aclose()
        else:
            self._idle.append(connection)


class _AsyncStream(httpx.AsyncByteStream):
    """As `_Stream`."""

    def __init__(self, stream: httpx.AsyncByteStream, connection: httpx.AsyncHTTPTransport, pool: AsyncPool) -> None:
        self._stream = stream
        self._connection = connection
        self._pool = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        except BaseException:
            await self._connection.aclose()
            raise
        await self._pool.give_back(self._connection)
