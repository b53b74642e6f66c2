"""The serving core without processes: scripted workers at the other end of a socket pair, and recorded answers."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
import uvloop

from relight.archive.store import Archive
from relight.serving.batching import AdaptiveBatching, BatchingPolicy
from relight.serving.devices import DeviceAssigner
from relight.serving.job import Job, RequestIds
from relight.serving.launchers.base import ExitStatus, LaunchError
from relight.serving.model import VersionSettings, batching_of
from relight.serving.pool import PoolSettings
from relight.wire.frames import Frame, FrameDecoder, encode_head
from relight.wire.messages import Answer, Batch, Failure, Kind, Load, Loaded, LoadFailed
from relight.wire.messages import Reply as ReplyMessage
from relight.wire.progress import Phase, ProgressPage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from relight.errors import RelightError

P = ParamSpec("P")
T = TypeVar("T")

DEADLINE_S = 10.0
KILLED = ExitStatus(None, signal.SIGKILL)


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on the server's event loop; an error that only the loop saw fails it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        unseen: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
            try:
                await asyncio.wait_for(test(*args, **kwargs), DEADLINE_S)
            finally:
                await _clean_up()

        uvloop.run(watched())
        assert not unseen

    return run


async def _clean_up() -> None:
    """End what a test left behind: the loop does not close while transports are open."""
    for peer in _peers:
        peer.lingers = False
        peer.kill()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await settle()
    for peer in _peers:
        peer.channel.close()
    _peers.clear()


async def until(condition: Callable[[], T]) -> T:
    """Let the loop turn until the condition is true; its value."""
    while not (value := condition()):  # noqa: ASYNC110 - conditions of all kinds have no event
        await asyncio.sleep(0.001)
    return value


async def settle() -> None:
    """Let everything happen that is about to: a few turns of the loop, with what arrives at sockets meanwhile."""
    for _ in range(10):
        await asyncio.sleep(0.0005)


@dataclass
class RecordedReply:
    """A Reply that keeps what it is told."""

    chunks: list[bytes] = field(default_factory=list)
    answers: list[tuple[Answer, bytes]] = field(default_factory=list)
    errors: list[RelightError] = field(default_factory=list)
    slow: bool = False

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:  # noqa: ARG002 - a Reply's signature
        assert not self.ended, "a chunk after the end"
        self.chunks.append(bytes(body))
        return not self.slow

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        assert not self.ended, "answered twice"
        self.answers.append((answer, bytes(body)))

    def fail(self, error: RelightError) -> None:
        assert not self.ended, "answered twice"
        self.errors.append(error)

    @property
    def ended(self) -> bool:
        return bool(self.answers or self.errors)

    @property
    def body(self) -> bytes:
        ((_, body),) = self.answers
        return body

    @property
    def error(self) -> tuple[int, str]:
        (error,) = self.errors
        return error.status, error.message


_ids = RequestIds()
_peers: list[Peer] = []


def make_job(body: bytes = b"", *, arrived: float = 0.0, alone: bool = False) -> tuple[Job, RecordedReply]:
    reply = RecordedReply()
    job = Job(
        _ids.next(),
        [(b"a", b"b")],
        {},
        [("body", "", len(body))],
        [body] if body else [],
        len(body),
        reply,
        arrived,
        alone,
    )
    return job, reply


class Peer:
    """A scripted worker process: what the other end of a channel receives, and what it is told to send.

    It ends by itself when the frontend closes the channel, unless it is told to linger.
    """

    def __init__(self, *, with_page: bool = True) -> None:
        self.channel, self._theirs = socket.socketpair()
        self.channel.setblocking(False)
        self._theirs.setblocking(False)
        self.stdout, self._out = os.pipe()
        self.stderr, self._err = os.pipe()
        page = ProgressPage.create() if with_page else None
        self.progress = None if page is None else ProgressPage(page)
        self.page = None if page is None else ProgressPage(page)
        if page is not None:
            os.close(page)
        self.pid: int | None = 4711
        self.lingers = False
        self.kills = 0
        self.exited: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.at_end = asyncio.Event()
        self._reading = asyncio.get_running_loop().create_task(self._read())
        _peers.append(self)

    async def _read(self) -> None:
        decoder = FrameDecoder(1 << 30)
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._theirs, 65536)
            except OSError:
                data = b""
            if not data:
                break
            for frame in decoder.feed(data):
                self.frames.put_nowait(Frame(frame.kind, bytes(frame.meta), bytes(frame.payload)))
        self.at_end.set()
        if not self.lingers:
            self.exit(ExitStatus(0, None))

    def kill(self) -> None:
        self.kills += 1
        self.exit(KILLED)

    def exit(self, status: ExitStatus) -> None:
        """End the process."""
        if not self.exited.done():
            self._reading.cancel()
            self._theirs.close()
            os.close(self._out)
            os.close(self._err)
            if self.page is not None:
                self.page.close()
            self.exited.set_result(status)

    def close_channel(self) -> None:
        """Close the socket and live on."""
        self._reading.cancel()
        self._theirs.shutdown(socket.SHUT_RDWR)

    def print(self, text: str, *, err: bool = False) -> None:
        os.write(self._err if err else self._out, text.encode())

    def send(self, kind: int, message: Any, payload: bytes = b"") -> None:
        self._theirs.send(encode_head(kind, message, len(payload)) + payload)

    def send_raw(self, data: bytes) -> None:
        self._theirs.send(data)

    async def load(self) -> Load:
        """Receive the order to load, and obey."""
        order = await self.ordered()
        self.enter(Phase.SERVE)
        self.send(Kind.LOADED, Loaded(4711))
        return order

    async def ordered(self) -> Load:
        frame = await self.frames.get()
        assert frame.kind == Kind.LOAD
        return msgspec.msgpack.decode(frame.meta, type=Load)

    def enter(self, phase: int) -> None:
        if self.page is not None:
            self.page.enter(phase)

    async def fail_to_load(self, message: str = "ValueError: no", status: int = 500, phase: str = "initialize") -> None:
        """Receive the order to load, report a failure, and exit as a worker does."""
        await self.ordered()
        self.send(Kind.LOAD_FAILED, LoadFailed(phase, status, message, f"Traceback\n{message}\n"))
        self.exit(ExitStatus(1, None))

    async def batch(self, *, begin: bool = True) -> tuple[Batch, bytes]:
        """Receive a batch, and begin it."""
        frame = await self.frames.get()
        assert frame.kind == Kind.BATCH
        batch = msgspec.msgpack.decode(frame.meta, type=Batch)
        if begin and self.page is not None:
            self.page.begin(batch.seq)
        return batch, bytes(frame.payload)

    def answer(self, batch: Batch, *bodies: bytes, kind: int = Kind.REPLY) -> None:
        self.send(kind, ReplyMessage(batch.seq, [Answer(len(body)) for body in bodies]), b"".join(bodies))

    def step(self, batch: Batch, *bodies: bytes, more: Sequence[bool]) -> None:
        """Answer a batch of a model with continuous batching; `more` says for each request whether it goes on."""
        answers = [Answer(len(body), more=goes_on) for body, goes_on in zip(bodies, more, strict=True)]
        self.send(Kind.REPLY, ReplyMessage(batch.seq, answers), b"".join(bodies))

    def fail(self, batch: Batch, status: int, message: str, kind: int = Kind.REPLY) -> None:
        self.send(kind, ReplyMessage(batch.seq, [], Failure(status, message)))

    async def serve(self, count: int = 1) -> list[int]:
        """Answer batches with their own bodies; the batches' sizes."""
        sizes = []
        for _ in range(count):
            batch, payload = await self.batch()
            sizes.append(len(batch.items))
            lengths = [sum(length for _, _, length in item.parts) for item in batch.items]
            self.send(Kind.REPLY, ReplyMessage(batch.seq, [Answer(length) for length in lengths]), payload)
        return sizes


class FakeLauncher:
    """Starts scripted workers; `failures` come first."""

    def __init__(self, *, with_page: bool = True) -> None:
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.all: list[Peer] = []
        self.failures: list[LaunchError] = []
        self.launches = 0
        self.hold: asyncio.Event | None = None
        self._with_page = with_page

    async def launch(self, *, torch: bool) -> Peer:  # noqa: ARG002 - a Launcher's signature
        self.launches += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.failures:
            raise self.failures.pop(0)
        peer = Peer(with_page=self._with_page)
        self.all.append(peer)
        self.peers.put_nowait(peer)
        return peer

    async def close(self) -> None:
        for peer in self.all:
            peer.kill()

    async def next(self, *, load: bool = True) -> Peer:
        """The worker that was started next, with its model loaded."""
        peer = await self.peers.get()
        if load:
            await peer.load()
        return peer


class Rig:
    """A pool with scripted workers.

    Args:
        policy: The batching policy; adaptive without any wait by default.
        devices: Ids of GPUs.
        with_page: Whether workers share a progress page.
        version: Settings of the version.
    """

    def __init__(
        self,
        policy: BatchingPolicy | None = None,
        *,
        devices: Sequence[int] = (),
        with_page: bool = True,
        **version: Any,
    ) -> None:
        self.launcher = FakeLauncher(with_page=with_page)
        self.settings = VersionSettings("m", "1.0", "m.mar", "h", **version)
        pool, self.queue = batching_of(self.settings)
        self.ids = iter(range(9000, 10000))
        folder = Path("/nowhere")
        self.pool = pool(
            PoolSettings(self.settings, Archive("m.mar", folder, folder, folder, False, None, None, ()), False),
            self.queue,
            policy or AdaptiveBatching(self.settings.batch_size, 0.0),
            self.launcher,
            lambda: next(self.ids),
            DeviceAssigner(devices),
        )

    async def start(self, count: int) -> list[Peer]:
        """Scale to that many workers and have them load; in the order of their ids."""
        started = await self.pool.scale(count, count)
        peers = [await self.launcher.next() for _ in started]
        assert await self.pool.loaded(started) is None
        return peers

    def submit(self, body: bytes = b"", *, alone: bool = False, arrived: float | None = None) -> RecordedReply:
        return self.job(body, alone=alone, arrived=arrived)[1]

    def job(self, body: bytes = b"", *, alone: bool = False, arrived: float | None = None) -> tuple[Job, RecordedReply]:
        job, reply = make_job(body, arrived=self.pool.clock() if arrived is None else arrived, alone=alone)
        assert self.queue.put(job)
        self.pool.dispatch()
        return job, reply

    async def close(self) -> None:
        await self.pool.scale(0, 0, timeout=0)
        self.queue.fail_all(_closed())


def _closed() -> RelightError:
    from relight.errors import ServiceUnavailableError

    return ServiceUnavailableError("closed")


async def within(future: Awaitable[T], seconds: float = 5.0) -> T:
    """Await, with a deadline that names a hang."""
    return await asyncio.wait_for(future, seconds)
