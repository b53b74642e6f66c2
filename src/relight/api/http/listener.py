"""One HTTP listener: which APIs it serves, who may call them, and where requests go (rest_api.md §1.4)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from relight.api.http import openapi
from relight.api.http.paths import Parameters, parse_query, segments_of, split_target
from relight.api.http.protocol import HttpConnection
from relight.api.turn import Turn
from relight.errors import InternalServerError, MethodNotAllowedError, RelightError, ResourceNotFoundError
from relight.serving.job import RequestIds

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Literal

    from relight.api.http.exchange import Exchange
    from relight.api.http.inference import InferenceApi
    from relight.api.http.management import ManagementApi
    from relight.api.http.metrics import MetricsApi
    from relight.api.http.open_inference import OpenInferenceApi
    from relight.security.tokens import TokenAuthority
    from relight.settings import Settings
    from relight.telemetry.access_log import AccessLog

logger = logging.getLogger("relight.http")

_LEAST_BUFFER = 16 * 1024 * 1024
_IDLE_GRACE = 0.25
"""Seconds that idle connections stay open at the end of the server."""


class HttpListener:
    """Routes the requests of one address to the APIs it serves.

    Args:
        settings: Of the server.
        access_log: Where answered requests are recorded.
        tokens: Who may call; None without token authorization.
        inference: The inference API, if it is served here.
        open_inference: The Open Inference Protocol, if it is served here.
        management: The management API, if it is served here.
        metrics: The metrics API, if it is served here.
    """

    def __init__(
        self,
        settings: Settings,
        access_log: AccessLog,
        tokens: TokenAuthority | None,
        *,
        inference: InferenceApi | None = None,
        open_inference: OpenInferenceApi | None = None,
        management: ManagementApi | None = None,
        metrics: MetricsApi | None = None,
    ) -> None:
        self.max_request_size = settings.max_request_size
        self.max_buffered = max(_LEAST_BUFFER, 2 * settings.max_response_size)
        self.cors = _cors_lines(settings)
        self.ids = RequestIds()
        self.turn = Turn()
        self.connections: set[HttpConnection] = set()
        self._access_log = access_log
        self._tokens = tokens
        self._inference = inference
        self._open_inference = open_inference
        self._management = management
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty: asyncio.Future[None] | None = None

    def connection(self) -> HttpConnection:
        """The protocol of a new connection."""
        return HttpConnection(self)

    def forget(self, connection: HttpConnection) -> None:
        """A connection is closed, or about to be: nothing more is answered on it."""
        self.connections.discard(connection)
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    def log(self, exchange: Exchange, peer: str) -> None:
        """Record an answered request in the access log."""
        self._access_log.record(exchange, peer)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later; errors are answered too."""
        try:
            target = exchange.target
            query = b""
            if b"?" in target or b"#" in target:
                target, query = split_target(target)
            self._route(exchange, segments_of(target), query)
        except RelightError as error:
            exchange.fail(error)
        except Exception as error:  # noqa: BLE001 - the boundary of one request
            _crashed(exchange, error)

    def _route(self, exchange: Exchange, segments: tuple[str, ...], query: bytes) -> None:
        inference, open_inference = self._inference, self._open_inference
        if not segments:
            if exchange.method != "OPTIONS":
                raise MethodNotAllowedError
            exchange.json(self._description())
        elif open_inference is not None and open_inference.claims(segments):
            if self._tokens is not None:
                self._tokens.check("inference", exchange.authorization)
            open_inference.handle(exchange, segments)
        elif inference is not None and inference.claims(segments):
            if self._tokens is not None:
                self._tokens.check("inference", exchange.authorization)
            inference.handle(exchange, segments, query)
        elif segments == ("api-description",):
            exchange.json(self._description())
        elif self._metrics is not None and segments[0] == "metrics":
            self._metrics.handle(exchange, query)
        elif self._management is not None and self._tokens is not None and segments == ("token",):
            self._tokens.refresh(Parameters(parse_query(query)).text("type"), exchange.authorization)
            exchange.respond(200, b"\n")
        elif self._management is not None and self._management.claims(segments):
            if self._tokens is not None:
                self._tokens.check("management", exchange.authorization)
            self._run(exchange, self._management.handle(exchange, segments, query))
        else:
            self._check_unrouted(exchange)
            if open_inference is None or not open_inference.refuse_versions(exchange, segments):
                raise ResourceNotFoundError

    def _check_unrouted(self, exchange: Exchange) -> None:
        """Paths that lead nowhere do not say so without a token either."""
        if self._tokens is None or (self._inference is None and self._management is None):
            return
        kind: Literal["inference", "management"] = "inference" if self._inference is not None else "management"
        self._tokens.check(kind, exchange.authorization)

    def _run(self, exchange: Exchange, answer: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._answered(exchange, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, exchange: Exchange, answer: Awaitable[None]) -> None:
        try:
            await answer
        except RelightError as error:
            exchange.fail(error)
        except Exception as error:  # noqa: BLE001 - the boundary of one request
            _crashed(exchange, error)

    def _description(self) -> dict[str, object]:
        return openapi.listener_document(
            inference=self._inference is not None,
            management=self._management is not None,
            metrics=self._metrics is not None,
        )

    async def drain(self, timeout: float) -> None:
        """Answer what is under way, then close; what is still busy after `timeout` seconds is broken off.

        A request may be on its way on a connection that looks idle, so that such connections are closed a moment later.
        """
        self._empty = asyncio.get_running_loop().create_future()
        for connection in self.connections:
            connection.stopping = True
        if self.connections:
            await asyncio.wait([self._empty], timeout=min(_IDLE_GRACE, timeout))
        for connection in list(self.connections):
            connection.stop()
        if self.connections:
            await asyncio.wait([self._empty], timeout=max(0.0, timeout - _IDLE_GRACE))
        for connection in list(self.connections):
            connection.finish_now()


def _crashed(exchange: Exchange, error: Exception) -> None:
    """A defect of the server itself: the log has it, the client is told that there is one."""
    logger.error("Request %s %r failed", exchange.method, exchange.target, exc_info=error)
    exchange.fail(InternalServerError("Internal server error, see the server's log."))


def _cors_lines(settings: Settings) -> bytes:
    values = (
        ("origin", settings.cors_allowed_origin),
        ("methods", settings.cors_allowed_methods),
        ("headers", settings.cors_allowed_headers),
    )
    return b"".join(f"access-control-allow-{name}: {value}\r\n".encode("latin-1") for name, value in values if value)
