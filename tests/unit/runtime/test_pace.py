"""Coroutines that go on only while a gate is open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from relight.runtime.pace import Gate, Paced

if TYPE_CHECKING:
    from collections.abc import Coroutine

DEADLINE_S = 10.0


async def paced(coroutine: Coroutine[Any, Any, Any], gate: Gate) -> Any:
    return await Paced(coroutine, gate)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE_S))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_an_open_gate_changes_nothing() -> None:
    async def inner() -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_result, "from a future")
        values = [await future, await asyncio.sleep(0, "from a sleep"), await asyncio.to_thread(str, "from a thread")]
        with pytest.raises(KeyError):
            await asyncio.gather(asyncio.sleep(0), _raise())
        async with asyncio.Lock():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        return ", ".join(values)

    async def main() -> None:
        assert await paced(inner(), Gate()) == "from a future, from a sleep, from a thread"

    run(main())


async def _raise() -> None:
    raise KeyError("x")


def test_what_the_coroutine_raises() -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            await paced(_raise(), Gate())

    run(main())


def test_a_coroutine_that_never_waits() -> None:
    async def inner() -> int:
        return 7

    async def main() -> None:
        gate = Gate()
        gate.close()
        assert await paced(inner(), gate) == 7

    run(main())


def test_a_closed_gate_holds_the_coroutine_where_it_waits() -> None:
    async def main() -> None:
        gate = Gate()
        steps: list[int] = []

        async def inner() -> str:
            for number in range(6):
                steps.append(number)
                await asyncio.sleep(0)
            return "done"

        task = asyncio.create_task(paced(inner(), gate))
        await turns(2)
        for _ in range(2):
            gate.close()
            await turns()
            held = len(steps)
            await turns()
            assert 0 < len(steps) == held < 6
            gate.open()
            # Opened and closed again before the coroutine could do anything: it is held.
            gate.close()
            await turns()
            assert len(steps) == held
            gate.open()
            await turns(1)
        assert await task == "done"

    run(main())


def test_a_coroutine_that_is_held_can_be_cancelled() -> None:
    async def main() -> None:
        gate = Gate()
        seen: list[str] = []

        async def inner() -> None:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(0)
                seen.append("cleaned up")
                raise

        task = asyncio.create_task(paced(inner(), gate))
        await turns(1)
        gate.close()
        await turns()
        assert not seen
        task.cancel()
        await turns(1)
        assert seen == ["cancelled"]
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled", "cleaned up"]

    run(main())


def test_a_coroutine_may_swallow_its_cancellation() -> None:
    async def main() -> None:
        async def inner() -> str:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return "all the same"

        task = asyncio.create_task(paced(inner(), Gate()))
        await turns()
        task.cancel()
        assert await task == "all the same"

    run(main())


def test_a_coroutine_that_is_given_up_is_closed() -> None:
    seen: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            seen.append("closed")

    waiting = Paced(inner(), Gate()).__await__()
    next(waiting)
    waiting.close()

    assert seen == ["closed"]


def test_threads() -> None:
    gate = Gate()
    gate.wait_in_thread()
    gate.close()
    closed = gate.closed
    assert closed is not None
    gate.open()
    assert closed.is_set()
    gate.open()
    gate.wait_in_thread()
