"""HTTP, by way of httpx."""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from relight.client.errors import DeadlineExceeded, PredictionFailed, ServerError, Unavailable, Unsupported
from relight.client.http_api import HttpApi
from relight.client.keys import current
from relight.client.mapping import from_http
from relight.client.requests import HttpRequest, HttpResponse
from relight.client.transports.pool import AsyncPool, Pool
from relight.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Iterator

    from relight.client.api import Api
    from relight.client.endpoint import TLS, Endpoint
    from relight.client.errors import ClientError
    from relight.client.keys import TokenSource

__all__ = ["AsyncHttpTransport", "HttpTransport"]

_CONNECT_S: Final = 10.0
_FIRST_ERROR: Final = 300
_HEADERS: Final = {
    "User-Agent": f"relight-client/{__version__}",
    "Accept": "*/*",
    "Accept-Encoding": "identity",  # compression would merge the chunks of a stream
}


class HttpTransport:
    """Sends requests, and waits for their answers.

    Args:
        endpoint: The address.
        token: Sent as bearer token.
        tls: For https.
    """

    def __init__(self, endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> None:
        self.api: Api = HttpApi()
        self._common = _Common(endpoint, token, tls)
        self._client = httpx.Client(transport=Pool(self._common.context, endpoint.socket), headers=_HEADERS)

    def send(self, request: HttpRequest) -> HttpResponse:
        """Return the answer."""
        clock = _Clock(request)
        with clock.translated(), self._client.stream(**self._common.arguments(request)) as response:
            content = b"".join(clock.watch(part) for part in response.iter_bytes())
            return _answer(response, content, request)

    def stream(self, request: HttpRequest) -> Generator[bytes, None, None]:
        """Return the chunks of the answer as they come."""
        clock = _Clock(request)
        with clock.translated(), self._client.stream(**self._common.arguments(request)) as response:
            if response.status_code >= _FIRST_ERROR:
                _answer(response, response.read(), request)
            clock.begun = True
            for part in response.iter_bytes():
                yield clock.watch(part)

    def converse(self, request: Any, messages: Iterable[Any] | None = None) -> Any:  # noqa: ARG002 - the interface
        """Refuse."""
        raise Unsupported("there are no conversations over HTTP")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class AsyncHttpTransport:
    """As `HttpTransport`."""

    def __init__(self, endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> None:
        self.api: Api = HttpApi()
        self._common = _Common(endpoint, token, tls)
        self._client = httpx.AsyncClient(transport=AsyncPool(self._common.context, endpoint.socket), headers=_HEADERS)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """As `HttpTransport.send`."""
        clock = _Clock(request)
        with clock.translated():
            async with self._client.stream(**self._common.arguments(request)) as response:
                content = b"".join([clock.watch(part) async for part in response.aiter_bytes()])
                return _answer(response, content, request)

    async def stream(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        """As `HttpTransport.stream`."""
        clock = _Clock(request)
        with clock.translated():
            async with self._client.stream(**self._common.arguments(request)) as response:
                if response.status_code >= _FIRST_ERROR:
                    _answer(response, await response.aread(), request)
                clock.begun = True
                async for part in response.aiter_bytes():
                    yield clock.watch(part)

    def converse(self, request: Any) -> Any:  # noqa: ARG002 - the interface
        """Refuse."""
        raise Unsupported("there are no conversations over HTTP")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class _Common:
    """What both transports do to a request before it is sent."""

    def __init__(self, endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> None:
        self._url = endpoint.url
        self._token = token
        self._extensions = {"sni_hostname": tls.server_name} if tls and tls.server_name else {}
        self.context = _context(endpoint, tls)

    def arguments(self, request: HttpRequest) -> dict[str, Any]:
        """Return the arguments of httpx's `stream`."""
        headers = dict(request.headers)
        token = current(self._token)
        if token is not None:
            headers = {"Authorization": f"Bearer {token}"} | headers
        connect = _CONNECT_S if request.timeout is None else min(request.timeout, _CONNECT_S)
        arguments: dict[str, Any] = {
            "method": request.method,
            "url": self._url + request.path,
            "params": dict(request.params),
            "headers": headers,
            "timeout": httpx.Timeout(request.timeout, connect=connect),
            "extensions": self._extensions,
        }
        if request.parts is None:
            arguments["content"] = request.content
        else:
            # Parts without a file name: the handler gets a bytearray for each, as over gRPC.
            arguments["files"] = [(name, (None, content)) for name, content in request.parts.items()]
        return arguments


class _Clock:
    """Holds a request to its time limit, and turns httpx's errors into the client's."""

    def __init__(self, request: HttpRequest) -> None:
        self._limit = request.timeout
        self._deadline = float("inf") if request.timeout is None else time.monotonic() + request.timeout
        self.begun = False

    def watch(self, part: bytes) -> bytes:
        """Return the part, if it is in time. httpx limits each wait alone, not all of them together."""
        if time.monotonic() > self._deadline:
            raise DeadlineExceeded(f"no complete answer within {self._limit} s")
        return part

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, ssl.SSLError) as error:  # httpx lets some of the latter through
            raise self._error(error) from error

    def _error(self, error: httpx.HTTPError | ssl.SSLError) -> ClientError:
        text = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return DeadlineExceeded(f"no answer within {self._limit} s")
        if self.begun and isinstance(error, httpx.TransportError):
            # That is how the server says that a handler failed when its answer has begun (rest_api.md §3.12).
            return PredictionFailed(f"the stream broke off: {text}")
        return Unavailable(text) if isinstance(error, (httpx.TransportError, ssl.SSLError)) else ServerError(text)


def _answer(response: httpx.Response, content: bytes, request: HttpRequest) -> HttpResponse:
    if response.status_code >= _FIRST_ERROR:
        raise from_http(response.status_code, content, request.failure)
    return HttpResponse(response.status_code, dict(response.headers.items()), content)


def _context(endpoint: Endpoint, tls: TLS | None) -> ssl.SSLContext:
    if not endpoint.secure:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used; httpx would load the system's authorities
    context = ssl.create_default_context(cafile=str(tls.ca) if tls and tls.ca else None)
    if tls and tls.certificate:
        context.load_cert_chain(tls.certificate, tls.key)
    return context
