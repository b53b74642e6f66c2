"""gRPC clients that do not read, or take their time: handlers wait for them, and nobody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from tests.faults.grpc_support import FINAL, PARTS, Bystander, Measured, start_target, stop_target
from tests.faults.http2 import (
    CONVERSE,
    DATA,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    MAX_FRAME_SIZE,
    PREDICT,
    PREFACE,
    STREAM,
    Http2Client,
    call,
    call_headers,
    frame,
    literal,
    prediction,
    reset,
    settings_frame,
    window_update,
)
from tests.faults.support import MIB, accepted, frontend
from tests.support.grpc_api import Api, predictions, read_all
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

OK = grpc.StatusCode.OK
PIECES = 300
PIECE = 100_000
LITTLE = 12 * MIB
"""More than a server needs for what is on its way to a client, and far less than what these would like to have."""
HALF_OPEN = 50


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = start_target(make_server)
    yield server
    stop_target(server)


@pytest.fixture
def bystander(target: Server) -> Iterator[Bystander]:
    """Somebody who must not notice anything."""
    made = Bystander(target)
    yield made
    made.finish()


def assert_flood(messages: list[bytes]) -> None:
    """Check that nothing is missing of a stream of many large parts."""
    assert [part.rstrip(b".") for part in messages[:-1]] == [b"part-0-%d" % k for k in range(PIECES)]
    assert {len(part) - len(part.rstrip(b".")) for part in messages[:-1]} == {PIECE}
    assert messages[-1] == FINAL


def watch(measured: Measured, bystander: Bystander, rounds: int = 20) -> None:
    """See that others are served, and that memory stays small meanwhile."""
    for _ in range(rounds):
        bystander.check()
        assert measured.grown < LITTLE


def test_stream_that_is_read_late(target: Server, bystander: Bystander) -> None:
    """The client gives no room on its stream."""
    end = target.gate()
    measured = Measured(target, LITTLE)
    with Http2Client(target) as client:
        client.gives_room = False
        inputs = {"n": str(PIECES), "size": str(PIECE), "at": str(PIECES), "gate": end.name}
        client.send(call(1, STREAM, prediction("streamer", **inputs)))
        watch(measured, bystander)
        assert end.arrivals() == 0, "the handler did not wait"
        assert len(target.ready_workers("streamer")) == 1
        end.open()
        client.ping()
        received = len(client.answers[1].data)
        client.gives_room = True
        client.send(window_update(0, received) + window_update(1, received))
        answer = client.read_answer(1)
        assert_flood(answer.predictions)
        assert answer.status == 0
        assert measured.grown < LITTLE
    measured.assert_back()


def test_socket_that_is_read_late(target: Server, bystander: Bystander) -> None:
    """The client gives all the room of the world, and does not read its socket."""
    end = target.gate()
    measured = Measured(target, LITTLE)
    with Http2Client(target, {INITIAL_WINDOW_SIZE: LARGEST_WINDOW}) as client:
        client.gives_room = False
        client.send(window_update(0, LARGEST_WINDOW - 65535))
        inputs = {"n": str(PIECES), "size": str(PIECE), "at": str(PIECES), "gate": end.name}
        client.send(call(1, STREAM, prediction("streamer", **inputs)))
        watch(measured, bystander)
        assert end.arrivals() == 0, "the handler did not wait"
        end.open()
        answer = client.read_answer(1)
        assert_flood(answer.predictions)
        assert answer.status == 0
        assert measured.grown < LITTLE
    measured.assert_back()


def test_lazy_and_eager_streams_on_one_connection(target: Server, bystander: Bystander) -> None:
    """A stream without room does not keep the connection's other streams from theirs."""
    with target.registered("streamer.mar", "pair", initial_workers=2), Http2Client(target) as client:
        target.wait_ready("pair", 2)
        client.gives_room = False
        client.send(window_update(0, 1 << 30))
        body = prediction("pair", n=str(PIECES), size=str(PIECE))
        client.send(call(1, STREAM, body))
        client.ping()
        client.send(call(3, STREAM, body) + window_update(3, 1 << 30))
        answer = client.read_answer(3)
        assert_flood(answer.predictions)
        assert not client.answers[1].ended
        client.send(window_update(1, 1 << 30))
        assert_flood(client.read_answer(1).predictions)
    bystander.check()


@pytest.mark.parametrize("how", ["reset", "close"])
def test_lazy_client_gives_up(target: Server, bystander: Bystander, how: str) -> None:
    """Its worker is free for the next."""
    api = Api(target)
    measured = Measured(target, LITTLE)
    (worker,) = target.ready_workers("streamer")
    with Http2Client(target) as client:
        client.gives_room = False
        client.send(call(1, STREAM, prediction("streamer", n=str(PIECES), size=str(PIECE))))
        client.read_messages(1, 0)
        watch(measured, bystander, 3)
        if how == "reset":
            client.send(reset(1))
            client.ping()
            client.gives_room = True
            client.send(window_update(0, 1 << 20))
            client.send(call(3, STREAM, prediction("streamer", n="2")))
            assert client.read_answer(3).predictions == [*PARTS, FINAL]
    outcome = read_all(api.stream("streamer", {"n": "2"}))
    assert (predictions(outcome), outcome.code) == ([*PARTS, FINAL], OK)
    assert [each["pid"] for each in target.ready_workers("streamer")] == [worker["pid"]]
    api.close()
    measured.assert_back()


def test_stream_that_is_never_read(target: Server, bystander: Bystander) -> None:
    """A worker waits for a client as long as a client for a worker; then the client loses its stream."""
    api = Api(target)
    with target.registered("streamer.mar", "timely", initial_workers=1, response_timeout=1):
        (worker,) = target.wait_ready("timely")
        measured = Measured(target, LITTLE)
        with Http2Client(target) as client:
            client.gives_room = False
            client.send(call(1, STREAM, prediction("timely", n=str(PIECES), size=str(PIECE))))
            answer = client.read_answer(1)
            assert answer.status not in {None, 0} or answer.reset, answer
            assert FINAL not in answer.predictions
            client.ping()
            assert measured.grown < LITTLE
        outcome = read_all(api.stream("timely", {"n": "2"}))
        assert (predictions(outcome), outcome.code) == ([*PARTS, FINAL], OK)
        assert [each["pid"] for each in target.ready_workers("timely")] == [worker["pid"]]
    api.close()
    bystander.check()


def test_many_lazy_streams(target: Server, bystander: Bystander) -> None:
    with target.registered("streamer.mar", "lazies", initial_workers=4), Http2Client(target) as client:
        target.wait_ready("lazies", 4)
        measured = Measured(target, LITTLE)
        client.gives_room = False
        body = prediction("lazies", n=str(PIECES), size=str(PIECE))
        streams = range(1, 15, 2)
        for stream in streams:
            client.send(call(stream, STREAM, body))
        watch(measured, bystander)
        client.gives_room = True
        client.send(window_update(0, 1 << 30))
        for stream in streams:
            client.send(window_update(stream, 1 << 30))
        for stream in streams:
            assert_flood(client.read_answer(stream).predictions)


MANY, LARGE = 60, 6_000_000


def test_large_answers_that_are_not_read(target: Server, bystander: Bystander) -> None:
    """One connection asks for much, and takes nothing: what waits for it has a bound."""
    with target.registered("probe.mar", "large", initial_workers=1), Http2Client(target) as client:
        target.wait_ready("large")
        # 128 MiB, and what is on its way through the server.
        bound = 128 * MIB + 8 * LARGE
        measured = Measured(target, 5 * LARGE)
        client.gives_room = False
        body = prediction("large", mode="big", size=str(LARGE))
        for stream in range(1, 2 * MANY, 2):
            client.send(call(stream, PREDICT, body))
        for _ in range(50):
            bystander.check()
            assert measured.grown < bound
    measured.assert_back()


def test_answers_of_a_conversation_that_are_not_read(target: Server, bystander: Bystander) -> None:
    with target.registered("probe.mar", "talker", initial_workers=1), Http2Client(target) as client:
        target.wait_ready("talker")
        measured = Measured(target, LITTLE)
        client.gives_room = False
        body = prediction("talker", "s", mode="big", size=str(MIB))
        client.send(call(1, CONVERSE, body * 100))
        for _ in range(30):
            bystander.check()
            assert measured.grown < 2 * LITTLE
        client.gives_room = True
        client.send(window_update(0, 1 << 30) + window_update(1, 1 << 30))
        answer = client.read_answer(1)
        # All of them, or as many as the server is willing to keep.
        assert {len(each) for each in answer.predictions} == {MIB}
        assert answer.status == (0 if len(answer.predictions) == 100 else grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    measured.assert_back()


@pytest.mark.parametrize("room", [1, 7, 1000])
def test_little_room_at_a_time(target: Server, room: int) -> None:
    """Whatever room a client gives, it gets that much, and the whole in the end."""
    with Http2Client(target, {INITIAL_WINDOW_SIZE: 0}) as client:
        client.gives_room = False
        client.send(call(1, PREDICT, prediction("m", mode="big", size=str(room * 50))))
        client.ping()
        while not (answer := client.answers.get(1)) or not answer.ended:
            before = len(answer.data) if answer else 0
            client.send(window_update(1, room))
            client.ping()
            grown = len(client.answers[1].data) - before if 1 in client.answers else 0
            assert grown <= room or not before
        assert [len(each) for each in answer.predictions] == [room * 50]


def test_window_that_shrinks_below_nothing(target: Server) -> None:
    """SETTINGS may take back room that was used already (RFC 9113 §6.9.2)."""
    with Http2Client(target, {INITIAL_WINDOW_SIZE: 1000}) as client:
        client.gives_room = False
        client.send(call(1, PREDICT, prediction("m", mode="big", size="5000")))
        while not client.answers.get(1) or len(client.answers[1].data) < 1000:
            client.read_frame()
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 10}))
        client.ping()
        client.send(window_update(1, 990))
        client.ping()
        assert len(client.answers[1].data) == 1000
        client.send(window_update(1, 1))
        client.ping()
        assert len(client.answers[1].data) == 1001
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 100_000}))
        assert [len(each) for each in client.read_answer(1).predictions] == [5000]


def test_frames_no_larger_than_the_client_takes(target: Server) -> None:
    for size in (16_384, 20_000, 100_000):
        with Http2Client(target, {INITIAL_WINDOW_SIZE: 1 << 30, MAX_FRAME_SIZE: size}) as client:
            client.gives_room = False
            client.send(window_update(0, 1 << 30))
            client.send(call(1, PREDICT, prediction("m", mode="big", size="300000")))
            while not client.answers.get(1) or not client.answers[1].ended:
                assert len(client.read_frame().payload) <= size
            assert [len(each) for each in client.answers[1].predictions] == [300_000]


# -- slow and half requests --------------------------------------------------------------------------------------------


def test_one_byte_at_a_time(target: Server, bystander: Bystander) -> None:
    data = PREFACE + settings_frame({}) + call(1, PREDICT, prediction("noop", data="slow"))
    with Http2Client(target, bare=True) as client:
        for at in range(len(data)):
            client.send(data[at : at + 1])
            if at % 20 == 0:
                bystander.check()
        assert client.read_answer(1).predictions == [b"ok"]


def test_call_in_two_pieces(target: Server) -> None:
    """Wherever the network cuts it."""
    data = PREFACE + settings_frame({}) + call(1, PREDICT, prediction("noop", data="x"))
    for at in range(1, len(data)):
        with Http2Client(target, bare=True) as client:
            client.send(data[:at])
            assert target.inference.get("/ping").status == 200
            client.send(data[at:])
            assert client.read_answer(1).predictions == [b"ok"], at


BEGINNINGS = {
    "nothing": b"",
    "preface": PREFACE[:10],
    "settings": PREFACE + settings_frame({})[:5],
    "idle": PREFACE + settings_frame({}),
    "headers": PREFACE + settings_frame({}) + frame(HEADERS, 0, 1, literal(call_headers(PREDICT))),
    "frame": PREFACE + settings_frame({}) + call(1, PREDICT, prediction("noop"))[:60],
    "message": PREFACE + settings_frame({}) + call(1, PREDICT, prediction("noop")[:-2], end=False),
    "stream": PREFACE + settings_frame({}) + call(1, CONVERSE, end=False),
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS.keys())
def test_half_open_connections(target: Server, bystander: Bystander, beginning: bytes) -> None:
    measured = Measured(target, LITTLE)
    process = frontend(target)
    before = accepted(process)
    clients = [Http2Client(target, bare=True) for _ in range(HALF_OPEN)]
    try:
        for client in clients:
            client.send(beginning)
        wait_for("connections", lambda: accepted(process) >= before + HALF_OPEN)
        bystander.check()
    finally:
        for client in clients:
            client.close()
    measured.assert_back()


def test_calls_that_are_never_finished(target: Server, bystander: Bystander) -> None:
    """Thousands of them on one connection cost little, and go with it."""
    measured = Measured(target, LITTLE)
    block = literal(call_headers(PREDICT))
    with Http2Client(target) as client:
        for stream in range(1, 10_001, 2):
            client.send(frame(HEADERS, 0x4, stream, block))
        client.ping()
        bystander.check()
        assert measured.grown < LITTLE
        client.send(call(10_003, PREDICT, prediction("noop")))
        assert client.read_answer(10_003).predictions == [b"ok"]
        client.send(frame(DATA, 0, 1, prediction("noop")) + frame(DATA, END_STREAM, 1))
        assert client.read_answer(1).predictions == [b"ok"]
    measured.assert_back()
