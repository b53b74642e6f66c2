"""The calls of `AsyncClient` that go to the management API."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from relight.client import flows
from relight.client.drive import run_async
from relight.client.links import DEFAULT_TIMEOUT_S, given, limit

if TYPE_CHECKING:
    from relight.client.api import KeyKind
    from relight.client.links import Links
    from relight.client.requests import Flow
    from relight.client.results import ModelDescription, ModelEntry
    from relight.client.transports import AsyncTransport

__all__ = ["AsyncManagementCalls"]

T = TypeVar("T")


class AsyncManagementCalls:
    """Part of `AsyncClient`. Each call raises Unsupported if the client has no address of the management API."""

    _links: Links[AsyncTransport]
    _timeout: float

    async def register(
        self,
        url: str,
        *,
        model_name: str | None = None,
        handler: str | None = None,
        runtime: str | None = None,
        batch_size: int | None = None,
        max_batch_delay: int | None = None,
        initial_workers: int | None = None,
        synchronous: bool = True,
        response_timeout: int | None = None,
        startup_timeout: int | None = None,
        s3_sse_kms: bool | None = None,
        timeout: float | None = None,
    ) -> str:
        """As `Client.register`."""
        options = given(
            url=url,
            model_name=model_name,
            handler=handler,
            runtime=runtime,
            batch_size=batch_size,
            max_batch_delay=max_batch_delay,
            initial_workers=initial_workers,
            synchronous=synchronous,
            response_timeout=response_timeout,
            startup_timeout=startup_timeout,
            s3_sse_kms=s3_sse_kms,
        )
        return await self._manage(self._links.management.api.register(options, limit(timeout, math.inf)))

    async def scale(
        self,
        model: str,
        min_worker: int,
        *,
        max_worker: int | None = None,
        version: str | None = None,
        number_gpu: int | None = None,
        synchronous: bool = True,
        drain_timeout: int | None = None,
        timeout: float | None = None,
    ) -> str:
        """As `Client.scale`."""
        options = given(
            min_worker=min_worker,
            max_worker=max_worker,
            number_gpu=number_gpu,
            synchronous=synchronous,
            timeout=drain_timeout,
        )
        return await self._manage(self._links.management.api.scale(model, version, options, limit(timeout, math.inf)))

    async def describe(
        self, model: str, *, version: str | None = None, customized: bool = False, timeout: float | None = None
    ) -> ModelDescription:
        """As `Client.describe`."""
        limit_s = limit(timeout, self._timeout)
        flow = self._links.management.api.describe(model, version, customized=customized, timeout=limit_s)
        return (await self._manage(flow))[0]

    async def versions(self, model: str, *, timeout: float | None = None) -> list[ModelDescription]:
        """As `Client.versions`."""
        limit_s = limit(timeout, self._timeout)
        return await self._manage(self._links.management.api.describe(model, "all", customized=False, timeout=limit_s))

    async def models(self, *, timeout: float | None = None) -> list[ModelEntry]:
        """As `Client.models`."""
        return await self._manage(flows.all_models(self._links.management.api, limit(timeout, self._timeout)))

    async def set_default(self, model: str, version: str, *, timeout: float | None = None) -> str:
        """As `Client.set_default`."""
        return await self._manage(self._links.management.api.set_default(model, version, limit(timeout, self._timeout)))

    async def unregister(self, model: str, *, version: str | None = None, timeout: float | None = None) -> str:
        """As `Client.unregister`."""
        return await self._manage(self._links.management.api.unregister(model, version, limit(timeout, self._timeout)))

    async def renew_token(self, kind: KeyKind, *, api_key: str | None = None, timeout: float | None = None) -> None:
        """As `Client.renew_token`."""
        key = self._links.api_key(api_key)
        await self._manage(self._links.management.api.renew(kind, key, limit(timeout, self._timeout)))

    async def wait_ready(
        self,
        model: str,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        version: str | None = None,
        workers: int | None = None,
    ) -> ModelDescription:
        """As `Client.wait_ready`."""
        return await self._manage(flows.wait_ready(self._links.management.api, model, version, workers, timeout))

    async def _manage(self, flow: Flow[T]) -> T:
        return await run_async(flow, self._links.management)
