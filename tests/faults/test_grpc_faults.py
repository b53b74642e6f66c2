"""Calls that are cancelled, expire, are too large, or lose their worker: the right code each, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import struct
import threading
from collections import Counter
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest
from tests.faults.grpc_support import FINAL, PARTS, Bystander, Measured, busy, start_target, stop_target
from tests.faults.http2 import (
    CONVERSE,
    DATA,
    END_STREAM,
    PREDICT,
    STREAM,
    Http2Client,
    call,
    frame,
    prediction,
    reset,
)
from tests.faults.support import LONG, MIB, Load, kill, predict, queue_status
from tests.faults.test_worker_kills import SETTLED, Killer
from tests.support.grpc_api import (
    HEALTHY,
    ISE,
    Api,
    predictions,
    read_all,
    request,
)
from tests.support.waiting import wait_for

from relight.protos import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

CODE = grpc.StatusCode
CLIENTS = 1000
CHANNELS = 50
BROKEN_OFF = 300
KEPT = 15 * MIB
"""What the allocators may keep of a load."""
DIED = f"Worker died.\n{ISE}"
LIMIT = 6_553_500
"""Default of max_request_size and max_response_size."""


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = start_target(make_server)
    yield server
    stop_target(server)


@pytest.fixture
def api(target: Server) -> Iterator[Api]:
    made = Api(target)
    assert made.ping() == HEALTHY  # it is connected
    yield made
    made.close()


@pytest.fixture
def bystander(target: Server) -> Iterator[Bystander]:
    """Somebody who must not notice anything."""
    made = Bystander(target)
    yield made
    made.finish()


# -- cancels -----------------------------------------------------------------------------------------------------------


async def cancelling(stub: inference_pb2_grpc.InferenceAPIsServiceAsyncStub, number: int) -> grpc.StatusCode:
    """Be a client that makes one call and cancels it at a random moment, if it has not ended by then."""
    chance = random.Random(number)
    # Some work for a few milliseconds; of 1,000 clients most wait in the queue.
    wanted = request("streamer", {"n": "4", "pause": "0.001"}, sequence_id=f"s{number}")
    moment = chance.choice([0.0, 0.001, 0.1, 1.0, 3.0]) * chance.random()
    kind = number % 3
    if kind == 0:
        unary = stub.Predictions(wanted, timeout=60)
        await asyncio.sleep(moment)
        unary.cancel()
        return await unary.code()
    call = stub.StreamPredictions(wanted, timeout=60) if kind == 1 else stub.StreamPredictions2(timeout=60)
    with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(_use(call, wanted), moment)
    call.cancel()
    return await call.code()


async def _use(
    call: grpc.aio.UnaryStreamCall[inference_pb2.PredictionsRequest, inference_pb2.PredictionResponse]
    | grpc.aio.StreamStreamCall[inference_pb2.PredictionsRequest, inference_pb2.PredictionResponse],
    wanted: inference_pb2.PredictionsRequest,
) -> None:
    if isinstance(call, grpc.aio.StreamStreamCall):
        for _ in range(2):
            await call.write(wanted)
        await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass


async def cancel_all(server: Server) -> Counter[grpc.StatusCode]:
    """Let all clients loose at once."""
    before = connections_to(int(server.config["grpc_inference_port"]))
    target = f"127.0.0.1:{server.config['grpc_inference_port']}"
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))
    channels = [grpc.aio.insecure_channel(target, options) for _ in range(CHANNELS)]
    stubs = [inference_pb2_grpc.InferenceAPIsServiceStub(channel) for channel in channels]
    codes = await asyncio.gather(*(cancelling(stubs[number % CHANNELS], number) for number in range(CLIENTS)))
    await asyncio.gather(*(channel.close() for channel in channels))
    # The library closes the sockets with the last reference, and only while the event loop turns.
    del channels, stubs
    gc.collect()
    port = int(server.config["grpc_inference_port"])
    while connections_to(port) > before:  # noqa: ASYNC110 - the library has no event for that
        await asyncio.sleep(0.01)
    return Counter(codes)


def connections_to(port: int) -> int:
    """How many connections to a port this process has."""
    return sum(bool(each.raddr) and each.raddr.port == port for each in psutil.Process().net_connections("tcp"))


def test_a_thousand_cancels(target: Server, bystander: Bystander) -> None:
    """Twice, as the first time brings allocators and caches to where they stay."""
    held: Measured | None = None
    for _ in range(2):
        with Load(target.inference.address, predict("noop"), 4) as load:
            codes = asyncio.run(cancel_all(target))
            load.wait_progress(3)
        assert set(load.statuses) == {200}
        assert set(codes) == {CODE.CANCELLED, CODE.OK}, codes
        bystander.check()
        if held is not None:
            held.assert_back()
        wait_for("an empty queue", lambda: queue_status(target, "streamer")["pendingRequests"] == 0)
        held = Measured(target, KEPT)


def test_connections_broken_off_at_random_moments(target: Server, bystander: Bystander) -> None:
    """Clients that reset their call, close their connection or just break it off, in the middle of anything."""
    held: Measured | None = None
    for _ in range(2):
        for number in range(BROKEN_OFF):
            break_off(target, random.Random(number), number)
        bystander.check()
        if held is not None:
            held.assert_back()
        wait_for("an empty queue", lambda: queue_status(target, "streamer")["pendingRequests"] == 0)
        held = Measured(target, KEPT)


def break_off(server: Server, chance: random.Random, number: int) -> None:
    """Be such a client; moments are bytes sent and messages received."""
    with Http2Client(server) as client:
        path = (PREDICT, STREAM, CONVERSE)[number % 3]
        whole = chance.random() < 0.9
        data = call(1, path, prediction("streamer", "s", n="4", pause="0.001"), end=whole)
        sent = chance.choice([chance.randrange(len(data)), len(data)])
        client.send(data[:sent])
        if sent == len(data) and (path == CONVERSE or (path == STREAM and whole)):
            client.read_messages(1, chance.randrange(3))
        if chance.random() < 0.5:
            with contextlib.suppress(ConnectionError):
                client.send(reset(1))
                client.send(call(3, PREDICT, prediction("noop")))
        if chance.random() < 0.5:
            linger = struct.pack("ii", 1, 0)  # closing sends a reset
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def test_cancelled_while_queued(target: Server, api: Api, bystander: Bystander) -> None:
    """They leave the queue at once, and no handler ever sees them."""
    held = Measured(target, KEPT)
    with busy(target, api) as inputs, Http2Client(target) as client:
        unary = [api.start("m", inputs) for _ in range(20)]
        streams = [api.stream("m", inputs) for _ in range(20)]
        conversations = [api.converse() for _ in range(20)]
        for conversation in conversations:
            conversation.send("m", inputs, "s")
        target.wait_pending("m", 60)
        for stream in range(1, 41, 2):
            client.send(call(stream, PREDICT, prediction("m", **inputs)))
        target.wait_pending("m", 80)
        for each in (*unary, *streams):
            each.cancel()
        for conversation in conversations:
            conversation.cancel()
        target.wait_pending("m", 20)
        for stream in range(1, 21, 2):
            client.send(reset(stream))
        target.wait_pending("m", 10)
        client.close()
        target.wait_pending("m", 0)
        assert [call.code() for call in (*unary, *streams)] == [CODE.CANCELLED] * 40
    held.assert_back()
    bystander.check()


@pytest.mark.parametrize("path", [PREDICT, STREAM, CONVERSE])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_cancelled_while_running(target: Server, bystander: Bystander, path: str, how: str) -> None:
    """The handler can ask whether somebody waits."""
    gate, gone = target.gate(), target.gate()
    with Http2Client(target) as client:
        client.send(call(1, path, prediction("m", "s", mode="cancelled", gate=gate.name, gone=gone.name), end=False))
        client.send(frame(DATA, END_STREAM, 1))
        gate.wait_arrived()
        gate.open()
        if how == "reset":
            client.send(reset(1))
            gone.wait_arrived()
            client.ping()
    gone.wait_arrived()
    gone.open()
    bystander.check()


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_deadlines_of_a_millisecond(target: Server, api: Api, bystander: Bystander) -> None:
    held = Measured(target, KEPT)
    with busy(target, api) as inputs:
        unary = [api.start("m", inputs, timeout=0.001) for _ in range(200)]
        streams = [api.stream("m", inputs, timeout=0.001) for _ in range(200)]
        assert {call.code() for call in (*unary, *streams)} == {CODE.DEADLINE_EXCEEDED}
        target.wait_pending("m", 0)
    # With a worker that is free they may just make it.
    quick = [api.start("noop", timeout=0.001) for _ in range(500)]
    assert {call.code() for call in quick} <= {CODE.OK, CODE.DEADLINE_EXCEEDED}
    held.assert_back()
    bystander.check()


@pytest.mark.parametrize("path", [PREDICT, STREAM])
@pytest.mark.parametrize("deadline", ["1m", "1000u", "999999n", "1n", "0S", "20m"])
def test_deadlines_are_the_servers_business_too(target: Server, api: Api, path: str, deadline: str) -> None:
    """A client that does not look at its own clock gets its answer all the same."""
    with busy(target, api) as inputs, Http2Client(target) as client:
        client.send(call(1, path, prediction("m", **inputs), ("grpc-timeout", deadline)))
        assert client.read_answer(1).status == CODE.DEADLINE_EXCEEDED.value[0]


@pytest.mark.parametrize("value", ["", "S", "1", "-1S", "1X", "999999999999H", "99999999H", "1.5S", " 1S", "\xff"])
def test_strange_deadlines(target: Server, value: str) -> None:
    with Http2Client(target) as client:
        client.send(call(1, PREDICT, prediction("noop"), ("grpc-timeout", value)))
        answer = client.read_answer(1)
        assert answer.predictions == [b"ok"] or answer.status not in {None, 0}, answer
        client.send(call(3, PREDICT, prediction("noop")))
        assert client.read_answer(3).predictions == [b"ok"]


# -- workers that are killed -------------------------------------------------------------------------------------------


def test_worker_killed_in_the_middle_of_a_stream(target: Server, api: Api, bystander: Bystander) -> None:
    held = Measured(target, KEPT)
    for _ in range(5):
        (worker,) = target.wait_ready("streamer")
        gate = target.gate()
        running = api.stream("streamer", {"n": "3", "at": "2", "gate": gate.name})
        assert [next(running).prediction for _ in range(2)] == PARTS
        gate.wait_arrived()
        queued = api.stream("streamer", {"n": "2"})
        target.wait_pending("streamer", 1)
        kill(worker["pid"])
        outcome = read_all(running)
        assert (outcome.messages, outcome.code, outcome.details) == ([], CODE.RESOURCE_EXHAUSTED, DIED)
        outcome = read_all(queued)
        assert (predictions(outcome), outcome.code) == ([*PARTS, FINAL], CODE.OK)
    held.assert_back()
    bystander.check()


def test_kills_under_streams(target: Server, bystander: Bystander) -> None:
    """Only the stream that a worker was at ends early, and that with the right code."""
    model = "mortal"
    whole = [*(b"part-0-%d" % k for k in range(20)), FINAL]
    kills = 50 if LONG else 10
    with target.registered("streamer.mar", model, initial_workers=2):
        target.wait_ready(model, 2)
        # Workers that die as soon as they have come are restarted later and later.
        killer = Killer(target, model, SETTLED if LONG else 0.0)
        stopping = threading.Event()
        outcomes: list[tuple[bool, grpc.StatusCode]] = []

        def use() -> None:
            api = Api(target)
            while not stopping.is_set():
                outcome = read_all(api.stream(model, {"n": "20", "pause": "0.001"}))
                got = predictions(outcome)
                assert got == whole[: len(got)]
                outcomes.append((got == whole, outcome.code))
            api.close()

        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                count = len(outcomes)
                wait_for("progress", lambda: len(outcomes) > count + 6)  # noqa: B023
                killer.kill_one()
        finally:
            stopping.set()
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert {code for good, code in outcomes if good} == {CODE.OK}
        failed = [code for good, code in outcomes if not good]
        assert failed == [CODE.RESOURCE_EXHAUSTED] * len(failed)
        assert len(failed) <= kills
        assert queue_status(target, model)["pendingRequests"] == 0
    bystander.check()
