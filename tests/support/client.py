"""relight.client's two clients behind one face, so that one test can ask both."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from relight.client import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator

    from tests.support.server import Server
    from typing_extensions import Self

PROTOCOLS = ("http", "grpc")


def addresses(server: Server, protocol: str) -> dict[str, str]:
    """Return the arguments of a client that reaches both APIs of the server by the protocol."""
    if protocol == "http":
        return {"url": server.config["inference_address"], "management": server.config["management_address"]}
    ports = [server.config[key] for key in ("grpc_inference_port", "grpc_management_port")]
    return {"url": f"grpc://127.0.0.1:{ports[0]}", "management": f"grpc://127.0.0.1:{ports[1]}"}


class Blocking:
    """An `AsyncClient`, or a session of one, whose calls wait for their end, on an event loop of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wrapped: Any, opened: list[Generator[Any, None, None]]) -> None:
        self._loop = loop
        self._wrapped = wrapped
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._wrapped, name)
        return self._blocking(member) if callable(member) else member

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._wrapped.close())

    def __iter__(self) -> Iterator[Any]:
        return self._steps(self._wrapped.__aiter__())

    def _blocking(self, member: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # Sessions have to be made where a loop runs.
            result = self._loop.run_until_complete(_called(member, args, kwargs))
            if inspect.isasyncgen(result):
                return self._steps(result)
            return Blocking(self._loop, result, self._opened) if hasattr(result, "__aenter__") else result

        return call

    def _steps(self, parts: Any) -> Generator[Any, None, None]:
        steps = self._stepping(parts)
        self._opened.append(steps)
        return steps

    def _stepping(self, parts: Any) -> Generator[Any, None, None]:
        with contextlib.suppress(StopAsyncIteration), self._closing(parts):
            while True:
                yield self._loop.run_until_complete(parts.__anext__())

    @contextlib.contextmanager
    def _closing(self, parts: Any) -> Iterator[None]:
        try:
            yield
        finally:
            self._loop.run_until_complete(parts.aclose())


async def _called(member: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = member(*args, **kwargs)
    return await result if inspect.iscoroutine(result) else result


class Clients:
    """Makes clients, and closes them at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._made: list[Any] = []
        self._opened: list[Generator[Any, None, None]] = []

    def make(self, kind: str, **kwargs: Any) -> Any:
        """Return a client of the kind `sync` or `async`; the arguments are the client's own."""
        url = kwargs.pop("url")
        if kind == "sync":
            made: Any = Client(url, **kwargs)
        else:
            made = Blocking(self._loop, AsyncClient(url, **kwargs), self._opened)
        self._made.append(made)
        return made

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop of the asynchronous clients."""
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        for steps in self._opened:
            steps.close()
        for client in self._made:
            client.close()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
