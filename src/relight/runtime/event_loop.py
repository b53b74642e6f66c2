"""The event loop of a worker whose handler is asynchronous: one, from `initialize` to the last request.

Engines such as vLLM's bind themselves to the loop that they find when they are created, so that the loop which
`initialize` reaches through `asyncio.get_event_loop()` has to be the one that runs the requests (§6.7 of
archives_and_handlers.md).
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relight.runtime.handler_loader import EntryPoint
    from relight.sdk.context import Context


def initialize(entry: EntryPoint, context: Context) -> asyncio.AbstractEventLoop:
    """Load the model, with an event loop for what is asynchronous in that.

    Returns:
        The loop that the handler knows now: it may have replaced the one that it was given.

    Raises:
        BaseException: Whatever the handler raises, unchanged.
    """
    given = asyncio.new_event_loop()
    asyncio.set_event_loop(given)
    result = entry.initialize(context)
    loop = _current(given)
    if inspect.isawaitable(result):
        loop.run_until_complete(_awaited(result))
        loop = _current(loop)
    return loop


def one_at_a_time(entry: EntryPoint, loop: asyncio.AbstractEventLoop) -> EntryPoint:
    """The entry point of an `async def handle` without `asyncCommunication`: each batch runs to its end by itself."""

    def handle(data: list[Any], context: Context) -> Any:
        result = entry.handle(data, context)
        return loop.run_until_complete(_awaited(result)) if inspect.isawaitable(result) else result

    return replace(entry, handle=handle, is_async=False)


async def _awaited(result: Any) -> Any:
    return await result


def _current(known: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """The loop that is set in this thread; after `asyncio.run` there is none, and the known one is set again."""
    with warnings.catch_warnings():
        # Some versions of Python warn of the call where no loop is running, even if one is set.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:
            loop = known
    if loop.is_closed():
        loop = asyncio.new_event_loop() if known.is_closed() else known
    asyncio.set_event_loop(loop)
    return loop
