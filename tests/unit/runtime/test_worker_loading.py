"""Which of the ways to run batches a handler gets: one by one, on a loop, or at the same time."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from relight.runtime import worker
from relight.runtime.async_service import AsyncService
from relight.runtime.channel import Channel
from relight.runtime.handler_loader import EntryPoint
from relight.wire.frames import FrameDecoder, encode_head
from relight.wire.messages import Batch, Item, Kind, Load, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relight.sdk.context import Context


class Rig:
    """Loads an entry point, as a worker does with that of an archive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.ours, theirs = socket.socketpair()
        self.channel = Channel(theirs)
        self._patch = monkeypatch
        self._folder = str(folder)

    def load(self, entry: EntryPoint, **values: Any) -> Callable[[], None]:
        self._patch.setattr("relight.runtime.handler_loader.enter_model_dir", lambda *_: None)
        self._patch.setattr("relight.runtime.handler_loader.resolve", lambda *_: entry)
        load = Load("m", "1.0", "h", self._folder, self._folder, 1, [], {}, None, None, True, True, None, 100, 0, {})
        return worker._load(msgspec.structs.replace(load, **values), self.channel, None)

    def answers(self, serve: Callable[[], None], count: int) -> list[bytes]:
        """The answers to that many batches, after which the frontend closes its end."""
        for seq in range(1, count + 1):
            self.ours.sendall(encode_head(Kind.BATCH, Batch(seq, [Item("id", [], {}, [("body", "", 1)])]), 1) + b"x")
        self.ours.shutdown(socket.SHUT_WR)
        serve()
        decoder = FrameDecoder(1 << 20)
        frames = list(decoder.feed(self.ours.recv(1 << 16)))
        assert all(msgspec.msgpack.decode(frame.meta, type=Reply).failure is None for frame in frames)
        return [bytes(frame.payload) for frame in frames]

    def close(self) -> None:
        self.ours.close()
        self.channel.close()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def loops() -> Iterator[list[asyncio.AbstractEventLoop]]:
    """Closes the loops that handlers have seen."""
    seen: list[asyncio.AbstractEventLoop] = []
    yield seen
    for loop in seen:
        loop.close()
    asyncio.set_event_loop(None)


def test_an_ordinary_handler(rig: Rig) -> None:
    loaded: list[Context] = []
    serve = rig.load(EntryPoint(loaded.append, lambda _data, _context: ["ok"], False))

    assert len(loaded) == 1
    assert rig.answers(serve, 2) == [b"ok", b"ok"]


@pytest.mark.parametrize("loads_asynchronously", [True, False])
def test_async_def_without_the_key(
    rig: Rig, loops: list[asyncio.AbstractEventLoop], loads_asynchronously: bool
) -> None:
    running: list[str] = []

    async def initialize(context: Context) -> None:
        loops.append(asyncio.get_running_loop())

    async def handle(data: list[Any], context: Context) -> list[Any]:
        assert asyncio.get_running_loop() is loops[0]
        assert not running, "one at a time"
        running.append("x")
        await asyncio.sleep(0)
        running.clear()
        return ["ok"]

    def initialize_at_once(context: Context) -> None:
        loops.append(asyncio.get_event_loop())

    serve = rig.load(EntryPoint(initialize if loads_asynchronously else initialize_at_once, handle, True))

    assert rig.answers(serve, 3) == [b"ok"] * 3


def test_an_asynchronous_initialize_alone(rig: Rig, loops: list[asyncio.AbstractEventLoop]) -> None:
    async def initialize(context: Context) -> None:
        loops.append(asyncio.get_running_loop())

    serve = rig.load(EntryPoint(initialize, lambda _data, _context: ["ok"], False))

    assert len(loops) == 1
    assert rig.answers(serve, 2) == [b"ok", b"ok"]


def test_async_communication(rig: Rig, loops: list[asyncio.AbstractEventLoop]) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        return ["ok"]

    serve = rig.load(EntryPoint(lambda _: loops.append(asyncio.get_event_loop()), handle, True), concurrent=True)

    assert isinstance(serve.__self__, AsyncService)  # type: ignore[attr-defined]
    assert not isinstance(serve, partial)


@pytest.mark.parametrize(("concurrent", "is_async"), [(True, True), (True, False), (False, True)])
def test_envelopes_do_not_work_with_asynchronous_handlers(rig: Rig, concurrent: bool, is_async: bool) -> None:
    entry = EntryPoint(lambda _: None, lambda _data, _context: ["ok"], is_async)

    with pytest.raises(worker.LoadError) as caught:
        rig.load(entry, concurrent=concurrent, envelope="json")

    assert caught.value.phase == "import"
    assert str(caught.value.__cause__) == "service_envelope=json does not work with an asynchronous handler"


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_handler_that_does_not_load(rig: Rig, loops: list[asyncio.AbstractEventLoop], concurrent: bool) -> None:
    async def initialize(context: Context) -> None:
        loops.append(asyncio.get_running_loop())
        raise ValueError("no weights")

    with pytest.raises(worker.LoadError) as caught:
        rig.load(EntryPoint(initialize, lambda _data, _context: ["ok"], True), concurrent=concurrent)

    assert caught.value.phase == "initialize"
    assert str(caught.value.__cause__) == "no weights"
