"""The client for programs on an asyncio event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

from relight.client import flows
from relight.client.api import InferenceCall, PredictionCall
from relight.client.async_management import AsyncManagementCalls
from relight.client.drive import run_async
from relight.client.links import DEFAULT_TIMEOUT_S, Links, limit, new_sequence_id
from relight.client.sessions import AsyncSession
from relight.client.transports import AsyncTransport, connect_async

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from relight.client.endpoint import TLS
    from relight.client.keys import TokenSource
    from relight.client.payload import Data
    from relight.client.requests import StreamRequest
    from relight.client.results import Health, Prediction

__all__ = ["AsyncClient"]


class AsyncClient(AsyncManagementCalls):
    """As `Client`, with the same arguments, for programs on an asyncio event loop; it belongs to one such loop."""

    def __init__(
        self,
        url: str,
        *,
        management: str | None = None,
        token: TokenSource | None = None,
        management_token: TokenSource | None = None,
        key_file: str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        tls: TLS | None = None,
    ) -> None:
        self._timeout = timeout
        self._links: Links[AsyncTransport] = Links(
            connect_async, url, management, token, management_token, key_file, tls
        )

    async def close(self) -> None:
        """As `Client.close`."""
        for transport in self._links.all:
            await transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def ping(self, *, timeout: float | None = None) -> Health:
        """As `Client.ping`."""
        link = self._links.inference
        return await run_async(link.api.ping(limit(timeout, self._timeout)), link)

    async def predict(
        self,
        model: str,
        data: Data,
        *,
        version: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Prediction:
        """As `Client.predict`."""
        link = self._links.inference
        call = PredictionCall(model, data, version, headers, limit(timeout, self._timeout))
        return await run_async(link.api.predict(call), link)

    def stream(
        self,
        model: str,
        data: Data,
        *,
        version: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """As `Client.stream`."""
        link = self._links.inference
        stream = link.api.stream(PredictionCall(model, data, version, headers, limit(timeout, math.inf)))
        return _parts(link, stream)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        *,
        version: str | None = None,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, bool | int | str] | None = None,
        binary: bool = True,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """As `Client.infer`."""
        link = self._links.inference
        limit_s = limit(timeout, self._timeout)
        call = InferenceCall(model, inputs, version, tuple(outputs), parameters or {}, binary, limit_s)
        return await run_async(link.api.infer(call), link)

    def session(
        self,
        model: str,
        sequence_id: str | None = None,
        *,
        version: str | None = None,
        timeout: float | None = None,
    ) -> AsyncSession:
        """As `Client.session`."""
        link = self._links.inference
        conversation = link.converse(link.api.conversation(limit(timeout, math.inf)))
        return AsyncSession(conversation, link.api, model, version, sequence_id or new_sequence_id())

    def stream_sequence(
        self,
        model: str,
        items: Iterable[Data] | AsyncIterable[Data],
        *,
        sequence_id: str | None = None,
        version: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Prediction, None]:
        """As `Client.stream_sequence`."""
        self._links.inference.api.conversation(None)  # raises Unsupported now, not at the first answer

        def open_session() -> AsyncSession:
            return self.session(model, sequence_id, version=version, timeout=timeout)

        return _answers(open_session, items)

    async def wait_healthy(self, timeout: float = DEFAULT_TIMEOUT_S) -> Health:
        """As `Client.wait_healthy`."""
        link = self._links.inference
        return await run_async(flows.wait_healthy(link.api, timeout), link)


async def _parts(link: AsyncTransport, stream: StreamRequest[bytes]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(link.stream(stream.request)) as parts:
        async for part in parts:
            yield stream.part(part)


async def _answers(
    session: Callable[[], AsyncSession], items: Iterable[Data] | AsyncIterable[Data]
) -> AsyncGenerator[Prediction, None]:
    async with session() as opened:
        sender = asyncio.create_task(_send_all(opened, items))
        try:
            async for answer in opened:
                yield answer
            await sender  # raises what went wrong where the items come from
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)


async def _send_all(session: AsyncSession, items: Iterable[Data] | AsyncIterable[Data]) -> None:
    try:
        if isinstance(items, AsyncIterable):
            async for item in items:
                await session.send(item)
        else:
            for item in items:
                await session.send(item)
    finally:
        await session.end()
