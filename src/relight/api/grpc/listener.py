"""One gRPC listener: its services, who may call them, and how its calls end."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from relight.api.grpc.call import Call, Head, Method
from relight.api.grpc.http2.connection import ADVERTISED_HEADER_LIST, Http2Connection
from relight.api.grpc.messages import decodes
from relight.api.grpc.status import Code, Status, management_status
from relight.api.turn import Turn
from relight.errors import RelightError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from relight.api.grpc.http2.headers import Headers
    from relight.api.grpc.interceptors import Interceptor
    from relight.settings import Settings
    from relight.telemetry.access_log import AccessLog

_LEAST_BUFFER = 16 * 1024 * 1024
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_ENTRY_OVERHEAD = 32
"""Bytes that each header counts for beyond its name and value (RFC 9113 §6.5.2)."""


class Limits:
    """What the connections of a listener may do (grpc_api.md §9).

    Args:
        settings: Of the server.
        role: `inference` or `management`: the keys of that listener.
    """

    def __init__(self, settings: Settings, role: str) -> None:
        self.max_request_size = settings.max_request_size
        self.max_buffered = max(_LEAST_BUFFER, 2 * settings.max_response_size)
        inference = role == "inference"
        self.max_age = _seconds(
            settings.grpc_inference_max_connection_age_ms
            if inference
            else settings.grpc_management_max_connection_age_ms
        )
        self.max_age_grace = _seconds(
            settings.grpc_inference_max_connection_age_grace_ms
            if inference
            else settings.grpc_management_max_connection_age_grace_ms
        )
        self.keepalive_time = _seconds(settings.grpc_keepalive_time_ms)
        self.keepalive_timeout = _seconds(settings.grpc_keepalive_timeout_ms)


class GrpcListener:
    """Accepts the calls of one address.

    Args:
        limits: What its connections may do.
        access_log: Where finished calls are recorded.
        interceptors: Asked about each call before its request is read.
    """

    def __init__(self, limits: Limits, access_log: AccessLog, interceptors: Sequence[Interceptor] = ()) -> None:
        self.max_buffered = limits.max_buffered
        self.max_age = limits.max_age
        self.max_age_grace = limits.max_age_grace
        self.keepalive_time = limits.keepalive_time
        self.keepalive_timeout = limits.keepalive_timeout
        self.connections: set[Http2Connection[Head]] = set()
        self.turn = Turn()
        self._max_request_size = limits.max_request_size
        self._access_log = access_log
        self._interceptors = interceptors
        self._methods: dict[bytes, Method] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty: asyncio.Future[None] | None = None

    def add(self, methods: Sequence[Method]) -> None:
        """Serve methods."""
        self._methods |= {method.path.encode(): method for method in methods}

    def connection(self) -> Http2Connection[Head]:
        """The protocol of a new connection."""
        return Http2Connection(self)

    def forget(self, connection: Http2Connection[Head]) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    # -- calls ---------------------------------------------------------------------------------------------------

    def interpret(self, headers: Headers) -> Head:
        """What the headers of a call mean."""
        fields = dict(headers)
        path = fields.get(b":path", b"")
        size = sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in headers)
        head = Head(path.removeprefix(b"/"), authorization=fields.get(b"authorization"))
        if size > ADVERTISED_HEADER_LIST:
            text = f"The headers have {size} bytes, more than {ADVERTISED_HEADER_LIST}"
            return head._replace(refusal=Status(Code.RESOURCE_EXHAUSTED, text))
        if fields.get(b":method") != b"POST":
            return head._replace(http_status=405)
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            return head._replace(http_status=415)
        method = self._methods.get(path)
        if method is None:
            text = f"Method not found: {head.path.decode('utf-8', 'replace')}"
            return head._replace(refusal=Status(Code.UNIMPLEMENTED, text))
        return _with_options(head._replace(method=method), fields)

    def open(self, connection: Http2Connection[Head], stream_id: int, head: Head, *, ended: bool) -> Call:
        """Begin a call."""
        call = Call(connection, stream_id, head, self._max_request_size, self._log, ended=ended)
        if head.http_status:
            call.refuse(head.http_status)
            return call
        try:
            for interceptor in self._interceptors:
                interceptor.check(head)
        except RelightError as error:
            call.end(management_status(error))
            return call
        if head.refusal is not None:
            call.end(head.refusal)
        elif connection.overloaded:
            call.end(Status(Code.RESOURCE_EXHAUSTED, "The client does not read its answers"))
        return call

    def _log(self, call: Call) -> None:
        self._access_log.record(call, call.connection.peer)

    def run(
        self,
        call: Call,
        answer: Coroutine[None, None, bytes],
        status_of: Callable[[RelightError], Status] = management_status,
    ) -> None:
        """Answer a call with what a coroutine returns, or with the error that it raises.

        It runs to its end even if the client gives up: a registration is not left half done.
        """
        task = asyncio.ensure_future(_answered(call, answer, status_of))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the end -------------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Answer what is under way, then close; what is still busy after `timeout` seconds is broken off."""
        self._empty = asyncio.get_running_loop().create_future()
        for connection in list(self.connections):
            connection.go_away("the server is shutting down")
            for stream in list(connection.streams.values()):
                stream.stop()
        if self.connections:
            await asyncio.wait([self._empty], timeout=timeout)
        for connection in list(self.connections):
            connection.abort()


async def _answered(
    call: Call, answer: Coroutine[None, None, bytes], status_of: Callable[[RelightError], Status]
) -> None:
    try:
        call.finish(await answer)
    except RelightError as error:
        call.end(status_of(error))
    except Exception as error:  # noqa: BLE001 - the boundary of one call
        call.crash(error)


def _with_options(head: Head, fields: dict[bytes, bytes]) -> Head:
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        if not decodes(encoding):
            text = f"Can't find decompressor for {encoding.decode('utf-8', 'replace')}"
            return head._replace(refusal=Status(Code.UNIMPLEMENTED, text))
        accepted = {name.strip() for name in fields.get(b"grpc-accept-encoding", b"").split(b",")}
        head = head._replace(encoding=encoding, accepts=encoding if encoding in accepted else None)
    timeout = fields.get(b"grpc-timeout")
    if timeout is not None:
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            text = f"Invalid grpc-timeout {timeout.decode('utf-8', 'replace')}"
            return head._replace(refusal=Status(Code.INTERNAL, text))
        head = head._replace(timeout=int(match[1]) * _UNITS[match[2]])
    return head


def _seconds(milliseconds: int | None) -> float:
    return float("inf") if milliseconds is None else milliseconds / 1000
