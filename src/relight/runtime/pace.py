"""Having a handler wait for a client that does not keep up, without its help and without holding up others."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator


class Gate:
    """Whether one batch may go on. Used on the event loop, except for `wait_in_thread`."""

    def __init__(self) -> None:
        self.closed: threading.Event | None = None
        """While it is closed: set when it opens."""
        self._waiter: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Let nobody pass."""
        if self.closed is None:
            self.closed = threading.Event()

    def open(self) -> None:
        """Let everybody pass."""
        closed, self.closed = self.closed, None
        if closed is not None:
            closed.set()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it is open; only one task does."""
        while self.closed is not None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def wait_in_thread(self) -> None:
        """Block a thread that is not the loop's until it is open."""
        closed = self.closed
        if closed is not None:
            closed.wait()


class Paced:
    """Awaits a coroutine, and lets it go on from where it waits only while a gate is open.

    Args:
        coroutine: What to await.
        gate: The gate.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], gate: Gate) -> None:
        self._coroutine = coroutine
        self._gate = gate

    def __await__(self) -> Generator[Any, Any, Any]:
        """As `await coroutine` (PEP 380), but for the gate."""
        coroutine, gate = self._coroutine, self._gate
        try:
            waited_for = coroutine.send(None)
            while True:
                try:
                    value = yield waited_for
                    if gate.closed is not None:
                        yield from gate.wait().__await__()
                except GeneratorExit:  # noqa: PERF203 - one try for each step is what is meant
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                    waited_for = coroutine.throw(error)
                else:
                    waited_for = coroutine.send(value)
        except StopIteration as stop:
            return stop.value
