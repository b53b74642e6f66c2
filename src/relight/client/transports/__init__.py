"""How requests reach a server: one module for each protocol, imported when an address asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable

    from relight.client.api import Api
    from relight.client.endpoint import TLS, Endpoint
    from relight.client.keys import TokenSource

__all__ = ["AsyncConversation", "AsyncTransport", "Conversation", "Transport", "connect", "connect_async"]


class Conversation(Protocol):
    """A call in which both sides send messages."""

    def write(self, message: Any) -> None:
        """Send a message."""

    def read(self) -> Any | None:
        """Return the server's next message; None when it has ended the call."""

    def half_close(self) -> None:
        """Say that no message will follow."""

    def cancel(self) -> None:
        """End the call now."""


class AsyncConversation(Protocol):
    """As `Conversation`."""

    async def write(self, message: Any) -> None:
        """As `Conversation.write`."""

    async def read(self) -> Any | None:
        """As `Conversation.read`."""

    async def half_close(self) -> None:
        """As `Conversation.half_close`."""

    def cancel(self) -> None:
        """As `Conversation.cancel`."""


class Transport(Protocol):
    """Sends the requests of its protocol (requests.py). Every method raises ClientError."""

    @property
    def api(self) -> Api:
        """The protocol."""

    def send(self, request: Any) -> Any:
        """Return the answer."""

    def stream(self, request: Any) -> Generator[Any, None, None]:
        """Return the parts of the answer as they come; closing the generator cancels the request."""

    def converse(self, request: Any, messages: Iterable[Any] | None = None) -> Conversation:
        """Open a conversation; with messages given, they are sent as fast as the server takes them."""

    def close(self) -> None:
        """Close the connections."""


class AsyncTransport(Protocol):
    """As `Transport`."""

    @property
    def api(self) -> Api:
        """The protocol."""

    async def send(self, request: Any) -> Any:
        """As `Transport.send`."""

    def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        """As `Transport.stream`."""

    def converse(self, request: Any) -> AsyncConversation:
        """As `Transport.converse`."""

    async def close(self) -> None:
        """As `Transport.close`."""


def connect(endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> Transport:
    """Return the transport for an address. Nothing is sent yet."""
    if endpoint.protocol == "grpc":
        from relight.client.transports.grpc import GrpcTransport

        return GrpcTransport(endpoint, token, tls)
    from relight.client.transports.http import HttpTransport

    return HttpTransport(endpoint, token, tls)


def connect_async(endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> AsyncTransport:
    """Return the transport for an address. Nothing is sent yet."""
    if endpoint.protocol == "grpc":
        from relight.client.transports.aio_grpc import AsyncGrpcTransport

        return AsyncGrpcTransport(endpoint, token, tls)
    from relight.client.transports.http import AsyncHttpTransport

    return AsyncHttpTransport(endpoint, token, tls)
