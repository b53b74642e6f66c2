"""The calls of `Client` that go to the management API."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from relight.client import flows
from relight.client.drive import run
from relight.client.links import DEFAULT_TIMEOUT_S, given, limit

if TYPE_CHECKING:
    from relight.client.api import KeyKind
    from relight.client.links import Links
    from relight.client.requests import Flow
    from relight.client.results import ModelDescription, ModelEntry
    from relight.client.transports import Transport

__all__ = ["ManagementCalls"]

T = TypeVar("T")


class ManagementCalls:
    """Part of `Client`. Each call raises Unsupported if the client has no address of the management API."""

    _links: Links[Transport]
    _timeout: float

    def register(
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
        """Register a model and return the server's text. The server must allow it (`enable_model_api`).

        Args:
            url: The archive's name in the model store, or where to fetch it.
            model_name: The model's name; None for the archive's own.
            handler: The handler; None for the archive's own.
            runtime: The runtime; None for the archive's own.
            batch_size: The largest batch; None for the model's configuration, else 1.
            max_batch_delay: Milliseconds that a batch may wait to fill; None for the model's configuration, else 100.
            initial_workers: Workers to start; None for the server's default, as is 0 over gRPC.
            synchronous: Whether to wait until they are up.
            response_timeout: Seconds that a worker may take to answer; None for the server's default.
            startup_timeout: Seconds that a worker may take to load; None for the server's default.
            s3_sse_kms: Whether the archive is encrypted by S3 with a key of KMS.
            timeout: Limit of this call; by default none, as the server has its own for a worker's start.

        Raises:
            Conflict: The version is already registered.
            ModelNotFound: There is no such archive.
            InvalidRequest: The archive could not be fetched, or is wrong.
            Forbidden: The server does not allow it.
            ServerError: A worker could not load the model.
        """
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
        return self._manage(self._links.management.api.register(options, limit(timeout, math.inf)))

    def scale(
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
        """Change a model's number of workers and return the server's text.

        Args:
            model: Its name.
            min_worker: Workers to have at least. Over gRPC it cannot be 0.
            max_worker: And at most; None for as many.
            version: Its version; None for the default one.
            number_gpu: How many of them on GPUs; None for the server's choice.
            synchronous: Whether to wait until they are up.
            drain_timeout: Seconds that a worker too many may take to finish its requests; -1, and None, for no limit.
            timeout: Limit of this call; by default none.

        Raises:
            ModelNotFound: There is no such model or version.
            InvalidRequest: The numbers do not fit.
            ServerError: A worker could not load the model.
        """
        options = given(
            min_worker=min_worker,
            max_worker=max_worker,
            number_gpu=number_gpu,
            synchronous=synchronous,
            timeout=drain_timeout,
        )
        return self._manage(self._links.management.api.scale(model, version, options, limit(timeout, math.inf)))

    def describe(
        self, model: str, *, version: str | None = None, customized: bool = False, timeout: float | None = None
    ) -> ModelDescription:
        """Describe a version of a model.

        Args:
            model: Its name.
            version: Its version; None for the default one.
            customized: Whether to ask the handler too, for `customized_metadata`.
            timeout: Limit of this call.
        """
        limit_s = limit(timeout, self._timeout)
        flow = self._links.management.api.describe(model, version, customized=customized, timeout=limit_s)
        return self._manage(flow)[0]

    def versions(self, model: str, *, timeout: float | None = None) -> list[ModelDescription]:
        """Describe every version of a model."""
        limit_s = limit(timeout, self._timeout)
        return self._manage(self._links.management.api.describe(model, "all", customized=False, timeout=limit_s))

    def models(self, *, timeout: float | None = None) -> list[ModelEntry]:
        """List the registered models, however many pages that takes; the limit is for each."""
        return self._manage(flows.all_models(self._links.management.api, limit(timeout, self._timeout)))

    def set_default(self, model: str, version: str, *, timeout: float | None = None) -> str:
        """Make a version the default one and return the server's text."""
        return self._manage(self._links.management.api.set_default(model, version, limit(timeout, self._timeout)))

    def unregister(self, model: str, *, version: str | None = None, timeout: float | None = None) -> str:
        """Remove a version of a model, by default the default one, and return the server's text.

        Raises:
            Forbidden: It is the default version and there are others, or the server does not allow it.
        """
        return self._manage(self._links.management.api.unregister(model, version, limit(timeout, self._timeout)))

    def renew_token(self, kind: KeyKind, *, api_key: str | None = None, timeout: float | None = None) -> None:
        """Have the server replace a token, and write the new one to its key file; HTTP only.

        Args:
            kind: Which one.
            api_key: The key that allows it; None for that of the client's key file.
            timeout: Limit of this call.

        Raises:
            ValueError: No API key is given, and there is no key file.
        """
        key = self._links.api_key(api_key)
        self._manage(self._links.management.api.renew(kind, key, limit(timeout, self._timeout)))

    def wait_ready(
        self,
        model: str,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        version: str | None = None,
        workers: int | None = None,
    ) -> ModelDescription:
        """Wait until a model can serve: until the server is up, the model registered, and its workers loaded.

        Args:
            model: Its name.
            timeout: Seconds to wait.
            version: Its version; None for the default one.
            workers: How many workers; None for the minimum that the model should have, and at least one.

        Raises:
            DeadlineExceeded: They were not ready in time.
            ModelNotFound: There was no such model until then.
            Unavailable: There was no server until then.
        """
        return self._manage(flows.wait_ready(self._links.management.api, model, version, workers, timeout))

    def _manage(self, flow: Flow[T]) -> T:
        return run(flow, self._links.management)
