"""One event loop, from `initialize` to the last request (archives_and_handlers.md §6.7)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from relight.runtime.event_loop import initialize, one_at_a_time
from relight.runtime.handler_loader import EntryPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relight.sdk.context import Context

CONTEXT = cast("Context", None)


@pytest.fixture(autouse=True)
def loops() -> Iterator[list[asyncio.AbstractEventLoop]]:
    """Closes what a test puts in."""
    made: list[asyncio.AbstractEventLoop] = []
    yield made
    for loop in made:
        loop.close()
    asyncio.set_event_loop(None)


def entry(load: Callable[[], Any]) -> EntryPoint:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        return [asyncio.get_running_loop(), *data]

    return EntryPoint(lambda _: load(), handle, True)


def test_the_loop_that_initialize_finds(loops: list[asyncio.AbstractEventLoop]) -> None:
    found: list[asyncio.AbstractEventLoop] = []

    def load() -> None:
        found.append(asyncio.get_event_loop())
        assert found[0].run_until_complete(asyncio.sleep(0, result=True))

    loops.append(initialize(entry(load), CONTEXT))

    assert loops == found


def test_an_asynchronous_initialize(loops: list[asyncio.AbstractEventLoop]) -> None:
    found: list[asyncio.AbstractEventLoop] = []

    async def load() -> None:
        await asyncio.sleep(0)
        found.append(asyncio.get_running_loop())

    loops.append(initialize(entry(load), CONTEXT))

    assert loops == found


def test_a_loop_of_the_handlers_own(loops: list[asyncio.AbstractEventLoop]) -> None:
    own = asyncio.new_event_loop()

    def load() -> None:
        loops.append(asyncio.get_event_loop())
        asyncio.set_event_loop(own)

    loops.append(initialize(entry(load), CONTEXT))

    assert loops[1] is own
    assert loops[0] is not own


def test_asyncio_run_in_initialize(loops: list[asyncio.AbstractEventLoop]) -> None:
    found: list[asyncio.AbstractEventLoop] = []

    def load() -> None:
        found.append(asyncio.get_event_loop())
        asyncio.run(asyncio.sleep(0))

    loops.append(initialize(entry(load), CONTEXT))

    assert loops == found == [asyncio.get_event_loop()]


def test_a_loop_that_initialize_has_closed(loops: list[asyncio.AbstractEventLoop]) -> None:
    loops.append(initialize(entry(lambda: asyncio.get_event_loop().close()), CONTEXT))

    assert not loops[0].is_closed()
    assert asyncio.get_event_loop() is loops[0]


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), SystemExit(3)])
def test_what_initialize_raises(loops: list[asyncio.AbstractEventLoop], error: BaseException) -> None:
    def load() -> None:
        loops.append(asyncio.get_event_loop())
        raise error

    with pytest.raises(type(error)):
        initialize(entry(load), CONTEXT)


def test_one_at_a_time(loops: list[asyncio.AbstractEventLoop]) -> None:
    given = entry(lambda: None)
    loops.append(initialize(given, CONTEXT))

    serial = one_at_a_time(given, loops[0])

    assert not serial.is_async
    assert serial.handle([1], CONTEXT) == [loops[0], 1]


def test_a_handle_that_is_not_asynchronous_is_left_alone(loops: list[asyncio.AbstractEventLoop]) -> None:
    loops.append(asyncio.new_event_loop())
    given = EntryPoint(lambda _: None, lambda data, _: data, False)

    assert one_at_a_time(given, loops[0]).handle([1], CONTEXT) == [1]
