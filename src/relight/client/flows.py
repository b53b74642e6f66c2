"""Operations that take several calls, whatever the protocol."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from relight.client.errors import ClientError, DeadlineExceeded, NotFound, Unavailable
from relight.client.requests import Flow, Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.client.api import Api
    from relight.client.results import Health, ModelDescription, ModelEntry

__all__ = ["all_models", "wait_healthy", "wait_ready"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_SHORTEST_CALL_S = 0.1


def all_models(api: Api, timeout: float | None) -> Flow[list[ModelEntry]]:
    """Read every page of the list of models; the limit is for each page."""
    models: list[ModelEntry] = []
    token: str | None = None
    while True:
        page = yield from api.page(token, timeout)
        models += page.models
        # TorchServe names a next page that is empty when the last one is full.
        if page.next_token is None or not page.models:
            return models
        token = page.next_token


def wait_ready(
    api: Api, model: str, version: str | None, workers: int | None, timeout: float
) -> Flow[ModelDescription]:
    """Wait until that many workers of the model can serve.

    Args:
        api: The management API.
        model: Its name.
        version: Its version; None for the default one.
        workers: How many; None for the minimum that is configured, and at least one.
        timeout: Seconds.

    Raises:
        DeadlineExceeded: They were not ready in time.
        ModelNotFound: There was no such model until then.
        Unavailable: There was no server until then.
    """

    def wanted(description: ModelDescription) -> str | None:
        count = max(1, description.min_workers) if workers is None else workers
        ready = len(description.ready_workers)
        return None if ready >= count else f"{ready} of {count} workers of {model!r} are ready"

    def describe(limit: float) -> Flow[ModelDescription]:
        descriptions = yield from api.describe(model, version, customized=False, timeout=limit)
        return descriptions[0]

    return (yield from _wait(describe, wanted, timeout))


def wait_healthy(api: Api, timeout: float) -> Flow[Health]:
    """Wait until the server answers a ping with `Healthy`.

    Raises:
        DeadlineExceeded: It answered otherwise until then.
        Unavailable: There was no server until then.
    """
    return (yield from _wait(api.ping, lambda health: None if health.healthy else health.status, timeout))


def _wait(ask: Callable[[float], Flow[T]], missing: Callable[[T], str | None], timeout: float) -> Flow[T]:
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while True:
        failure: ClientError
        try:
            answer = yield from ask(max(deadline - time.monotonic(), _SHORTEST_CALL_S))
        except (NotFound, Unavailable) as error:
            failure = error
        else:
            lack = missing(answer)
            if lack is None:
                return answer
            failure = DeadlineExceeded(f"after {timeout} s: {lack}")
        if time.monotonic() + pause > deadline:
            raise failure
        yield Pause(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_S)
