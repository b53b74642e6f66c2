"""Batches of an asynchronous handler, over a real channel (archives_and_handlers.md §6.7)."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from relight.runtime.async_service import AsyncService
from relight.runtime.channel import Channel
from relight.runtime.handler_loader import EntryPoint
from relight.sdk.context import Context
from relight.sdk.errors import PredictionException
from relight.sdk.metrics.cache import MetricsCacheYamlImpl
from relight.sdk.streaming import send_intermediate_predict_response, set_current_context
from relight.wire.frames import FrameDecoder, WireError, encode_head
from relight.wire.messages import Answer, Batch, Failure, Item, Kind, Load, Notice, Reply
from relight.wire.progress import ProgressPage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Handle = Callable[[list[Any], Context], Any]
    Script = Callable[["Frontend"], Awaitable[None]]

LOAD = Load("m", "1.0", "h", "/m", "/m", 4, [], {}, None, None, True, True, None, 1 << 20, 0, {}, concurrent=True)
DEADLINE_S = 10.0


class Frontend:
    """The other end of a service's channel, driven from the service's own loop."""

    def __init__(self, sock: socket.socket, page: ProgressPage) -> None:
        self.page = page
        self._sock = sock
        self._decoder = FrameDecoder(1 << 30)
        self._received: asyncio.Queue[tuple[int, Reply, bytes]] = asyncio.Queue()

    def batch(self, seq: int, *bodies: bytes) -> None:
        items = [Item(f"id-{seq}-{index}", [], {}, [("body", "", len(body))]) for index, body in enumerate(bodies)]
        body = b"".join(bodies)
        self._sock.sendall(encode_head(Kind.BATCH, Batch(seq, items), len(body)) + body)

    def tell(self, kind: int, seq: int, index: int = 0) -> None:
        self._sock.sendall(encode_head(kind, Notice(seq, index)))

    def send_raw(self, data: bytes) -> None:
        self._sock.sendall(data)

    async def receive(self) -> tuple[int, Reply, bytes]:
        loop = asyncio.get_running_loop()
        while self._received.empty():
            data = await loop.sock_recv(self._sock, 1 << 16)
            assert data, "the worker has ended"
            for frame in self._decoder.feed(data):
                reply = msgspec.msgpack.decode(frame.meta, type=Reply)
                self._received.put_nowait((frame.kind, reply, bytes(frame.payload)))
        return self._received.get_nowait()

    async def answers(self, count: int = 1) -> dict[int, bytes]:
        """The next replies, by their batches; none is a failure."""
        found = {}
        for _ in range(count):
            kind, reply, body = await self.receive()
            assert (kind, reply.failure) == (Kind.REPLY, None)
            found[reply.seq] = body
        return found

    async def failure(self) -> tuple[int, Failure | None]:
        _, reply, _ = await self.receive()
        return reply.seq, reply.failure

    def close(self) -> None:
        self._sock.close()


class Rig:
    """A service, and the means to run a frontend against it."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.channel = Channel(theirs)
        fd = ProgressPage.create()
        self.page, self._their_page = ProgressPage(fd), ProgressPage(fd)
        os.close(fd)
        self.context = Context("m", "/m", {"model": {}}, 4, None, "0.12.0", metrics=_metrics(), model_yaml_config={})
        self.loop: asyncio.AbstractEventLoop | None = None
        self.made: AsyncService | None = None

    def service(self, handle: Handle, initialize: Callable[[Context], Any] = lambda _: None) -> AsyncService:
        entry = EntryPoint(initialize, handle, True)
        service = AsyncService(entry, self.context, LOAD, self.channel, self._their_page)
        self.loop, self.made = service.loop, service
        return service

    def run(self, handle: Handle, script: Script, initialize: Callable[[Context], Any] = lambda _: None) -> None:
        """Serve until the script has ended, which closes the channel."""
        service = self.service(handle, initialize)
        frontend = Frontend(self.ours, self.page)
        failed: list[BaseException] = []

        async def play() -> None:
            try:
                await asyncio.wait_for(script(frontend), DEADLINE_S)
            except BaseException as error:  # noqa: BLE001 - raised again below
                failed.append(error)
            finally:
                frontend.close()

        playing = service.loop.create_task(play())
        service.serve()
        assert playing.done()
        if failed:
            raise failed[0]

    def close(self) -> None:
        self.ours.close()
        self.channel.close()
        self.page.close()
        self._their_page.close()
        if self.loop is not None and not self.loop.is_closed():
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            for _ in range(3):
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
        asyncio.set_event_loop(None)


def _metrics() -> MetricsCacheYamlImpl:
    metrics = MetricsCacheYamlImpl(None)
    metrics.initialize_cache()
    metrics.set_request_ids("loading")
    return metrics


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def body_of(data: list[Any]) -> str:
    text: str = data[0]["body"].decode()
    return text


async def echo(data: list[Any], _context: Context) -> list[Any]:
    return [bytes(row["body"]).upper() for row in data]


# -- answers -----------------------------------------------------------------------------------------------------


def test_batches_are_answered_as_they_end(rig: Rig) -> None:
    gates = {name: asyncio.Event() for name in "abc"}

    async def handle(data: list[Any], context: Context) -> list[Any]:
        await gates[body_of(data)].wait()
        return [body_of(data) * 2]

    async def script(frontend: Frontend) -> None:
        for seq, name in enumerate("abc", 1):
            frontend.batch(seq, name.encode())
        for seq, name in ((3, "c"), (1, "a"), (2, "b")):
            gates[name].set()
            assert await frontend.answers() == {seq: name.encode() * 2}

    rig.run(handle, script)


def test_a_batch_of_several(rig: Rig) -> None:
    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"a", b"", b"ccc")
        kind, reply, body = await frontend.receive()
        assert (kind, reply, body) == (Kind.REPLY, Reply(1, [Answer(1), Answer(0), Answer(3)]), b"ACCC")

    rig.run(echo, script)


def test_large_bodies_and_frames_in_pieces(rig: Rig) -> None:
    body = bytes(range(97, 105)) * 40_000

    async def handle(data: list[Any], context: Context) -> list[Any]:
        return [data[0]["body"] == body]

    async def script(frontend: Frontend) -> None:
        loop = asyncio.get_running_loop()
        item = Item("id", [], {}, [("body", "", len(body))])
        frame = encode_head(Kind.BATCH, Batch(1, [item]), len(body)) + body
        for start in range(0, len(frame), 7_001):
            await loop.sock_sendall(rig.ours, frame[start : start + 7_001])
            await asyncio.sleep(0)
        assert await frontend.answers() == {1: b"true"}

    rig.run(handle, script)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RuntimeError("boom"), Failure(503, "Prediction failed")),
        (RuntimeError("CUDA out of memory"), Failure(507, "Out of resources")),
        (MemoryError(), Failure(507, "Out of resources")),
        (PredictionException("mine", 444), Failure(444, "mine")),
        (asyncio.CancelledError(), Failure(503, "Prediction failed")),
        (asyncio.TimeoutError(), Failure(503, "Prediction failed")),
    ],
)
def test_an_error_concerns_its_batch_alone(rig: Rig, error: BaseException, failure: Failure) -> None:
    go_on = asyncio.Event()

    async def handle(data: list[Any], context: Context) -> list[Any]:
        if body_of(data) == "bad":
            raise error
        await go_on.wait()
        return data

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"good")
        frontend.batch(2, b"bad")
        assert await frontend.failure() == (2, failure)
        go_on.set()
        _, reply, _ = await frontend.receive()
        assert reply.seq == 1

    rig.run(lambda data, context: handle([{"body": row["body"]} for row in data], context), script)


@pytest.mark.parametrize(
    ("result", "message"),
    [("text", "Invalid model predict output"), ([], "number of batch response mismatched"), ([{1}], "Unsupported")],
)
def test_results_that_are_none(rig: Rig, result: object, message: str) -> None:
    async def handle(data: list[Any], context: Context) -> object:
        return result

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        seq, failure = await frontend.failure()
        assert failure is not None
        assert (seq, failure.status, failure.message.startswith(message)) == (1, 503, True)

    rig.run(handle, script)


@pytest.mark.parametrize("result", [["x"], None, iter(())])
def test_a_handler_that_is_not_asynchronous(rig: Rig, result: object, caplog: pytest.LogCaptureFixture) -> None:
    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        assert await frontend.failure() == (1, Failure(503, "Prediction failed"))

    rig.run(lambda _data, _context: result, script)
    assert "needs an `async def handle`" in caplog.text


def test_any_awaitable_will_do(rig: Rig) -> None:
    def handle(data: list[Any], context: Context) -> asyncio.Future[list[str]]:
        future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        future.get_loop().call_soon(future.set_result, ["done"])
        return future

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        assert await frontend.answers() == {1: b"done"}

    rig.run(handle, script)


# -- contexts ----------------------------------------------------------------------------------------------------


def test_each_batch_has_its_own_context(rig: Rig) -> None:
    both = asyncio.Event()
    inside: list[str] = []

    async def handle(data: list[Any], context: Context) -> list[Any]:
        name = body_of(data)
        context.set_response_header(0, "name", name)
        context.scratch["name"] = name  # type: ignore[attr-defined]
        context.mine = name  # type: ignore[attr-defined]
        inside.append(name)
        if len(inside) == 2:
            both.set()
        await both.wait()
        found = context.get_response_headers(0)["name"], context.scratch["name"], context.mine  # type: ignore[attr-defined]
        metrics = context.metrics
        return [[*found, context.get_request_id(0), metrics._request_id(0), metrics.cache is rig.context.metrics.cache]]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"a")
        frontend.batch(2, b"b")
        for _ in range(2):
            _, reply, body = await frontend.receive()
            name = "ab"[reply.seq - 1]
            assert reply.answers[0].headers == {"name": name}
            assert msgspec.json.decode(body) == [name, name, name, f"id-{reply.seq}-0", f"id-{reply.seq}-0", True]

    def initialize(context: Context) -> None:
        context.scratch = {}  # type: ignore[attr-defined]

    rig.run(handle, script, initialize)
    assert rig.context.scratch == {}  # type: ignore[attr-defined]
    assert not hasattr(rig.context, "mine")


def test_the_loop_of_initialize_runs_the_batches(rig: Rig) -> None:
    kept: list[object] = []

    def initialize(context: Context) -> None:
        loop = asyncio.get_event_loop()
        kept.append(loop)
        kept.append(loop.create_task(asyncio.sleep(0, result="engine")))

    async def handle(data: list[Any], context: Context) -> list[Any]:
        loop, task = kept
        assert isinstance(task, asyncio.Task)
        return [f"{await task} {asyncio.get_running_loop() is loop}"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        assert await frontend.answers() == {1: b"engine True"}

    rig.run(handle, script, initialize)


# -- streams -----------------------------------------------------------------------------------------------------


def _with_context(part: str, context: Context, _kept: Context) -> None:
    send_intermediate_predict_response([part], context.request_ids, "", 200, context)


def _with_kept_context(part: str, context: Context, kept: Context) -> None:
    send_intermediate_predict_response([part], context.request_ids, "", 200, kept)


def _without_context(part: str, context: Context, _kept: Context) -> None:
    send_intermediate_predict_response([part], context.request_ids, "", 200)


@pytest.mark.parametrize("way", [_with_context, _with_kept_context, _without_context])
def test_parts_of_streams_find_their_batch(rig: Rig, way: Callable[[str, Context, Context], None]) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        name = body_of(data)
        for number in range(3):
            way(f"{name}{number}", context, rig.context)
            # In a task of the handler's own, too.
            await asyncio.create_task(asyncio.sleep(0))
        return [f"{name}-end"]

    async def script(frontend: Frontend) -> None:
        for seq in (1, 2, 3):
            frontend.batch(seq, b"s%d-" % seq)
        parts: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
        for _ in range(12):
            kind, reply, body = await frontend.receive()
            assert (kind == Kind.REPLY) == body.endswith(b"end")
            parts[reply.seq].append(body)
        assert parts == {seq: [b"s%d-%s" % (seq, part) for part in (b"0", b"1", b"2", b"-end")] for seq in parts}

    set_current_context(rig.context)
    try:
        rig.run(handle, script)
    finally:
        set_current_context(None)


def test_parts_from_threads(rig: Rig) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        large = body_of(data) * 10_000
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await loop.run_in_executor(None, _with_context, large, context, context)
        return ["end"]

    async def script(frontend: Frontend) -> None:
        for seq in (1, 2, 3):
            frontend.batch(seq, b"%d" % seq)
        for _ in range(12):
            kind, reply, body = await frontend.receive()
            assert body == (b"end" if kind == Kind.REPLY else b"%d" % reply.seq * 10_000)

    rig.run(handle, script)


def test_a_part_without_a_batch(rig: Rig) -> None:
    rig.service(echo)

    with pytest.raises(RuntimeError, match="needs the context that `handle` was given"):
        _with_context("x", rig.context, rig.context)
    assert not rig.context.is_cancelled()


def test_a_part_after_the_end_is_dropped(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    contexts: list[Context] = []

    async def handle(data: list[Any], context: Context) -> list[Any]:
        for earlier in contexts:
            _with_context("late", earlier, earlier)
        contexts.append(context)
        return ["end"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        assert await frontend.answers() == {1: b"end"}
        frontend.batch(2, b"x")
        assert await frontend.answers() == {2: b"end"}

    rig.run(handle, script)
    assert "after the end of its request" in caplog.text


def test_a_stream_with_an_error_code(rig: Rig) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        send_intermediate_predict_response([], context.request_ids, "no more", 513, context)
        return ["x"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        assert await frontend.failure() == (1, Failure(513, "no more"))
        assert await frontend.answers() == {1: b"x"}

    rig.run(handle, script)


# -- what the frontend says --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rests", [True, False])
def test_a_handler_can_see_who_is_gone(rig: Rig, rests: bool) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        _with_context("begun", context, context)
        if body_of(data) == "1":
            while not context.is_cancelled(0):
                if rests:
                    await asyncio.sleep(0)
        return [context.is_cancelled(0)]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"1")
        if not rests:
            # Nothing of this runs while the handler does not rest.
            frontend.tell(Kind.CANCEL, 1)
        assert (await frontend.receive())[0] == Kind.CHUNK
        if rests:
            frontend.batch(2, b"2")
            assert (await frontend.receive())[0] == Kind.CHUNK
            assert await frontend.answers() == {2: b"false"}
            frontend.tell(Kind.CANCEL, 1)
        assert await frontend.answers() == {1: b"true"}

    rig.run(handle, script)


def test_a_batch_that_is_stopped(rig: Rig) -> None:
    ended: list[str] = []

    async def handle(data: list[Any], context: Context) -> list[Any]:
        try:
            _with_context("begun", context, context)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(f"cancelled {context.is_cancelled(0)}")
            _with_context("too late", context, context)
            raise
        return []

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        await frontend.receive()
        frontend.tell(Kind.STOP, 1)
        frontend.tell(Kind.STOP, 1)
        assert await frontend.failure() == (1, Failure(500, "stopped"))
        frontend.tell(Kind.STOP, 1)

    rig.run(handle, script)
    assert ended == ["cancelled True"]


def test_a_handler_that_goes_on_after_it_was_stopped(rig: Rig) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        if body_of(data) == "2":
            return ["2"]
        _with_context("begun", context, context)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return ["all the same"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"1")
        await frontend.receive()
        frontend.tell(Kind.STOP, 1)
        assert await frontend.failure() == (1, Failure(500, "stopped"))
        frontend.batch(2, b"2")
        assert await frontend.answers() == {2: b"2"}

    rig.run(handle, script)


def test_a_batch_that_is_stopped_before_it_begins(rig: Rig) -> None:
    began: list[str] = []

    async def handle(data: list[Any], context: Context) -> list[Any]:
        began.append(body_of(data))
        return ["x"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(7, b"7")
        frontend.tell(Kind.STOP, 7)
        assert await frontend.failure() == (7, Failure(500, "stopped"))
        frontend.batch(8, b"8")
        await frontend.answers()

    rig.run(handle, script)
    assert began == ["8"]


def test_a_handler_whose_client_is_slow_waits(rig: Rig) -> None:
    sent: list[int] = []

    async def handle(data: list[Any], context: Context) -> list[Any]:
        if body_of(data) == "probe":
            return [len(sent)]
        for number in range(1000):
            _with_context("part", context, context)
            sent.append(number)
            await asyncio.sleep(0)
        return ["end"]

    async def probe(frontend: Frontend, seq: int) -> int:
        frontend.batch(seq, b"probe")
        while True:
            _, reply, body = await frontend.receive()
            if reply.seq == seq:
                return int(body)

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        await frontend.receive()
        frontend.tell(Kind.HOLD, 1)
        frontend.tell(Kind.HOLD, 1)
        seqs = iter(range(2, 1000))
        while (count := await probe(frontend, next(seqs))) != await probe(frontend, next(seqs)):
            pass
        assert count < 1000
        frontend.tell(Kind.RELEASE, 1)
        while (await frontend.receive())[0] != Kind.REPLY:
            pass
        assert len(sent) == 1000

    rig.run(handle, script)


@pytest.mark.parametrize("kind", [Kind.RELEASE, Kind.STOP])
def test_a_thread_whose_client_is_slow_waits(rig: Rig, kind: int) -> None:
    held, sent = threading.Event(), threading.Event()

    async def handle(data: list[Any], context: Context) -> list[Any]:
        def work() -> None:
            _with_context("1", context, context)
            assert held.wait(DEADLINE_S)
            _with_context("2", context, context)
            sent.set()

        await asyncio.get_running_loop().run_in_executor(None, work)
        return ["end"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        await frontend.receive()
        frontend.tell(Kind.HOLD, 1)
        frontend.batch(2, b"x")
        assert (await frontend.receive())[1].seq == 2
        held.set()
        assert (await frontend.receive())[1].seq == 2
        assert (await frontend.receive())[1].seq == 2
        frontend.tell(kind, 1)
        if kind == Kind.RELEASE:
            assert (await frontend.receive())[2] == b"2"
        assert (await frontend.receive())[0] == Kind.REPLY

    rig.run(handle, script)
    assert sent.wait(DEADLINE_S)


# -- the worker --------------------------------------------------------------------------------------------------


def test_the_page_says_what_was_begun(rig: Rig) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        return [rig.page.begun()]

    async def script(frontend: Frontend) -> None:
        for seq in (5, 6):
            frontend.batch(seq, b"x")
            assert await frontend.answers() == {seq: b"%d" % seq}

    rig.run(handle, script)


def test_finished_batches_are_forgotten(rig: Rig) -> None:
    async def script(frontend: Frontend) -> None:
        for seq in range(1, 50):
            frontend.batch(seq, b"x")
        await frontend.answers(49)
        frontend.tell(Kind.CANCEL, 3)
        frontend.batch(50, b"x")
        await frontend.answers()
        assert rig.made is not None
        assert not rig.made._calls

    rig.run(echo, script)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_may_end_the_worker(rig: Rig, error: BaseException) -> None:
    async def handle(data: list[Any], context: Context) -> list[Any]:
        raise error

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        await frontend.receive()

    with pytest.raises(type(error)):
        rig.run(handle, script)


def test_a_frontend_that_breaks_the_protocol(rig: Rig) -> None:
    async def script(frontend: Frontend) -> None:
        frontend.send_raw(b"\xff" * 64)
        await frontend.receive()

    with pytest.raises(WireError):
        rig.run(echo, script)


def test_a_frontend_that_is_gone(rig: Rig) -> None:
    """What cannot be sent any more ends the worker."""
    closed = asyncio.Event()

    async def handle(data: list[Any], context: Context) -> list[Any]:
        rig.ours.close()
        closed.set()
        return ["x"]

    async def script(frontend: Frontend) -> None:
        frontend.batch(1, b"x")
        await closed.wait()

    with pytest.raises(BrokenPipeError):
        rig.run(handle, script)
