"""Batches, for the envelopes whose handlers know of one request at a time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relight.sdk.context import Context


@contextmanager
def narrowed(context: Context, positions: Sequence[int]) -> Iterator[None]:
    """Let the context tell of some requests of its batch alone, as if there were no others.

    What a handler sets on answers still reaches the requests that it means.

    Args:
        context: The context of the whole batch.
        positions: Which requests, in the order that the handler is to see.
    """
    ids, processors, probe = context.request_ids, context.request_processor, context.cancel_probe
    assert ids is not None
    _show(context, {at: ids[position] for at, position in enumerate(positions)})
    context.request_processor = [processors[position] for position in positions]
    if probe is not None:
        context.cancel_probe = lambda at: probe(positions[at])
    try:
        yield
    finally:
        _show(context, ids)
        context.request_processor = processors
        if probe is not None:
            context.cancel_probe = probe


def one_by_one(handle: Callable[[Any, Context], Any], data: list[Any], context: Context) -> list[Any]:
    """Answer a batch by one call for each request, in which the handler sees that request alone.

    Raises:
        ValueError: A request got no answer.
    """
    answers = []
    for position, row in enumerate(data):
        with narrowed(context, [position]):
            result = handle([row], context)
        if not isinstance(result, list) or len(result) != 1:
            raise ValueError(f"the handler has no answer to request {context.get_request_id(position)}")
        answers += result
    return answers


def _show(context: Context, ids: Any) -> None:
    context.request_ids = ids
    if context.metrics is not None:
        context.metrics.set_request_ids(ids)
