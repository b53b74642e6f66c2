"""What the tests of handlers share: a context in the middle of a batch, and simple handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relight.sdk.context import Context, RequestProcessor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Handle: TypeAlias = Callable[[Any, Context], Any]


class Metrics:
    """Remembers which requests it was told of."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def set_request_ids(self, ids: Any) -> None:
        self.seen.append(ids)


def context(*headers: dict[str, Any], metrics: Metrics | None = None) -> Context:
    """A context in the middle of a batch: a request for each dictionary of headers, one by default."""
    manifest = {"model": {"modelName": "nums", "modelVersion": "1.0"}}
    made = Context("registered", "/model", manifest, 4, None, metrics=metrics)
    requests = headers or ({},)
    made.request_ids = {index: f"id-{index}" for index in range(len(requests))}
    made.request_processor = [RequestProcessor(each) for each in requests]
    return made


def identity(data: Any, context: Context) -> Any:
    return data


def returning(result: Any) -> Handle:
    return lambda _data, _context: result


class Recorder:
    """A handler that remembers what it saw of each call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, data: Any, context: Context) -> Any:
        assert context.request_ids is not None
        names = [context.get_request_header(index, "x-name") for index in range(len(context.request_processor))]
        self.calls.append((data, names, dict(context.request_ids)))
        context.set_all_response_status(201, f"by {names[0]}")
        return [["r", each] for each in data]
