"""What the protocols ask of their transports.

An operation is a generator (`Flow`): it yields requests, is sent their answers, or has their errors raised in it, and
returns its result. So it is written once, does no input or output of its own, and whoever drives it decides how to
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from relight.client.errors import ServerError

__all__ = ["Flow", "GrpcRequest", "HttpRequest", "HttpResponse", "Pause", "StreamRequest"]

T = TypeVar("T")


@dataclass(frozen=True)
class HttpRequest:
    """A request over HTTP.

    Attributes:
        method: Its method.
        path: Its path, quoted.
        params: The query.
        headers: Headers besides those of the transport.
        content: The body, where there are no parts.
        parts: The parts of a multipart body, by name.
        timeout: Seconds; None for no limit.
        failure: The error for what goes wrong on the server's side.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    parts: Mapping[str, bytes] | None = None
    timeout: float | None = None
    failure: type[ServerError] = ServerError


@dataclass(frozen=True)
class HttpResponse:
    """An answer over HTTP that is no error; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class GrpcRequest:
    """A call over gRPC.

    Attributes:
        stub: The generated class of the service.
        method: The name of the method.
        message: The request; None where a conversation sends its own.
        timeout: Seconds; None for no limit.
        failure: The error for what goes wrong on the server's side.
    """

    stub: Callable[[Any], Any]
    method: str
    message: Any = None
    timeout: float | None = None
    failure: type[ServerError] = ServerError


@dataclass(frozen=True)
class Pause:
    """Time to wait, in seconds."""

    seconds: float


@dataclass(frozen=True)
class StreamRequest(Generic[T]):
    """A request that is answered in parts.

    Attributes:
        request: The request.
        part: Reads one part.
    """

    request: HttpRequest | GrpcRequest
    part: Callable[[Any], T]


Flow = Generator[HttpRequest | GrpcRequest | Pause, Any, T]
