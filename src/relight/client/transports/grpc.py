"""gRPC, by way of grpcio."""

from __future__ import annotations

import contextlib
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import grpc

from relight.client.errors import Unavailable
from relight.client.grpc_api import GrpcApi
from relight.client.keys import current
from relight.client.mapping import from_grpc
from relight.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from relight.client.api import Api
    from relight.client.endpoint import TLS, Endpoint
    from relight.client.errors import ClientError, ServerError
    from relight.client.keys import TokenSource
    from relight.client.requests import GrpcRequest

__all__ = ["GrpcTransport", "Stubs", "channel_credentials", "channel_options", "metadata", "translated"]

_OPTIONS: Final[tuple[tuple[str, str | int], ...]] = (
    ("grpc.primary_user_agent", f"relight-client/{__version__}"),
    ("grpc.enable_http_proxy", 0),  # as over HTTP: models are asked directly
    # A server that has come back is found at once; the library's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The server has limits of its own, and says so when one is passed.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class GrpcTransport:
    """Makes calls, and waits for their answers.

    Args:
        endpoint: The address.
        token: Sent as bearer token.
        tls: For grpcs.
    """

    def __init__(self, endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> None:
        self.api: Api = GrpcApi()
        self._token = token
        options = channel_options(tls)
        if endpoint.secure:
            self._channel = grpc.secure_channel(endpoint.authority, channel_credentials(tls), options)
        else:
            self._channel = grpc.insecure_channel(endpoint.authority, options)
        self._stubs = Stubs(lambda: self._channel)

    def send(self, request: GrpcRequest) -> Any:
        """Return the answer."""
        with translated(request.failure):
            return self._stubs.method(request)(request.message, timeout=request.timeout, metadata=metadata(self._token))

    def stream(self, request: GrpcRequest) -> Generator[Any, None, None]:
        """Return the messages of the answer as they come."""
        with translated(request.failure):
            call = self._stubs.method(request)(request.message, timeout=request.timeout, metadata=metadata(self._token))
            try:
                yield from call
            finally:
                call.cancel()  # without effect on a call that has ended

    def converse(self, request: GrpcRequest, messages: Iterable[Any] | None = None) -> GrpcConversation:
        """Open a conversation."""
        queue: SimpleQueue[Any] = SimpleQueue()
        outgoing = _Outgoing(iter(queue.get, None) if messages is None else iter(messages))
        call = self._stubs.method(request)(outgoing, timeout=request.timeout, metadata=metadata(self._token))
        # The library's thread that reads the queue ends with the call.
        call.add_callback(lambda: queue.put(None))
        return GrpcConversation(call, queue, outgoing, request.failure)

    def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        self._channel.close()


class _Outgoing:
    """The messages to send; remembers what went wrong in whoever makes them, as grpcio only logs it."""

    def __init__(self, messages: Iterator[Any]) -> None:
        self._messages = messages
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.error is not None:
            raise StopIteration
        try:
            return next(self._messages)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - the caller's own code; raised again where the answers are read
            self.error = error
            raise StopIteration from None


class GrpcConversation:
    """A call in which both sides send messages."""

    def __init__(self, call: Any, queue: SimpleQueue[Any], outgoing: _Outgoing, failure: type[ServerError]) -> None:
        self._call = call
        self._queue = queue
        self._outgoing = outgoing
        self._failure = failure

    def write(self, message: Any) -> None:
        """Send a message."""
        if not self._call.is_active():
            raise Unavailable("the conversation has ended")
        self._queue.put(message)

    def read(self) -> Any | None:
        """Return the server's next message; None when it has ended the call."""
        with translated(self._failure):
            message = next(self._call, None)
        if message is None and self._outgoing.error is not None:
            raise self._outgoing.error
        return message

    def half_close(self) -> None:
        """Say that no message will follow."""
        self._queue.put(None)

    def cancel(self) -> None:
        """End the call now."""
        self._call.cancel()


class Stubs:
    """The stubs of a channel, made when they are first needed."""

    def __init__(self, channel: Callable[[], Any]) -> None:
        self._channel = channel
        self._stubs: dict[Callable[[Any], Any], Any] = {}

    def method(self, request: GrpcRequest) -> Any:
        """Return what makes the request's call."""
        stub = self._stubs.get(request.stub)
        if stub is None:
            stub = self._stubs[request.stub] = request.stub(self._channel())
        return getattr(stub, request.method)


def channel_options(tls: TLS | None) -> tuple[tuple[str, str | int], ...]:
    """Return the options of a channel."""
    name = tls.server_name if tls else None
    return (*_OPTIONS, ("grpc.ssl_target_name_override", name)) if name else _OPTIONS


def channel_credentials(tls: TLS | None) -> grpc.ChannelCredentials:
    """Return the credentials of a channel.

    Raises:
        OSError: A file cannot be read.
    """
    if tls is None:
        return grpc.ssl_channel_credentials()
    certificate = Path(tls.certificate).read_bytes() if tls.certificate else None
    key = Path(tls.key).read_bytes() if tls.key else certificate
    return grpc.ssl_channel_credentials(Path(tls.ca).read_bytes() if tls.ca else None, key, certificate)


def metadata(token: TokenSource | None) -> tuple[tuple[str, str], ...]:
    """Return what goes with each call."""
    value = current(token)
    return () if value is None else (("authorization", f"Bearer {value}"),)


@contextlib.contextmanager
def translated(failure: type[ServerError]) -> Iterator[None]:
    """Turn the library's errors in the block into the client's."""
    try:
        yield
    except grpc.RpcError as error:
        raise _error(error, failure) from error


def _error(error: Any, failure: type[ServerError]) -> ClientError:
    return from_grpc(error.code().name, error.details() or "", failure)
