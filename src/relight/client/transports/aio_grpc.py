"""gRPC, by way of grpcio's asyncio API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc import aio

from relight.client.errors import Unavailable
from relight.client.grpc_api import GrpcApi
from relight.client.transports.grpc import Stubs, channel_credentials, channel_options, metadata, translated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from relight.client.api import Api
    from relight.client.endpoint import TLS, Endpoint
    from relight.client.errors import ServerError
    from relight.client.keys import TokenSource
    from relight.client.requests import GrpcRequest

__all__ = ["AsyncGrpcTransport"]


class AsyncGrpcTransport:
    """As `GrpcTransport`. It belongs to the event loop that runs when it makes its first call."""

    def __init__(self, endpoint: Endpoint, token: TokenSource | None, tls: TLS | None) -> None:
        self.api: Api = GrpcApi()
        self._endpoint = endpoint
        self._token = token
        self._options = channel_options(tls)
        self._credentials = channel_credentials(tls) if endpoint.secure else None
        self._channel: aio.Channel | None = None
        self._stubs = Stubs(self._open)

    async def send(self, request: GrpcRequest) -> Any:
        """As `GrpcTransport.send`."""
        with translated(request.failure):
            return await self._call(request, request.message)

    async def stream(self, request: GrpcRequest) -> AsyncGenerator[Any, None]:
        """As `GrpcTransport.stream`."""
        with translated(request.failure):
            call = self._call(request, request.message)
            try:
                async for message in call:
                    yield message
            finally:
                call.cancel()  # without effect on a call that has ended

    def converse(self, request: GrpcRequest) -> AsyncGrpcConversation:
        """Open a conversation."""
        return AsyncGrpcConversation(self._call(request), request.failure)

    async def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        if self._channel is not None:
            await self._channel.close()

    def _call(self, request: GrpcRequest, *message: Any) -> Any:
        return self._stubs.method(request)(*message, timeout=request.timeout, metadata=metadata(self._token))

    def _open(self) -> aio.Channel:
        if self._channel is not None:
            return self._channel
        if self._credentials is None:
            self._channel = aio.insecure_channel(self._endpoint.authority, self._options)
        else:
            self._channel = aio.secure_channel(self._endpoint.authority, self._credentials, self._options)
        return self._channel


class AsyncGrpcConversation:
    """As `GrpcConversation`."""

    def __init__(self, call: Any, failure: type[ServerError]) -> None:
        self._call = call
        self._failure = failure

    async def write(self, message: Any) -> None:
        """As `GrpcConversation.write`."""
        try:
            with translated(self._failure):
                await self._call.write(message)
        except (aio.UsageError, asyncio.InvalidStateError) as error:
            raise Unavailable("the conversation has ended") from error

    async def read(self) -> Any | None:
        """As `GrpcConversation.read`."""
        with translated(self._failure):
            message = await self._call.read()
        return None if message is aio.EOF else message

    async def half_close(self) -> None:
        """As `GrpcConversation.half_close`."""
        if not self._call.done():
            await self._call.done_writing()

    def cancel(self) -> None:
        """As `GrpcConversation.cancel`."""
        self._call.cancel()
