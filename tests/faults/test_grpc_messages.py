"""Messages that are too large, or no messages: the right code each, and nobody else is disturbed."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tests.faults.grpc_support import FINAL, PARTS, Bystander, Measured, start_target, stop_target
from tests.faults.http2 import (
    CONVERSE,
    DATA,
    END_STREAM,
    PREDICT,
    STREAM,
    Http2Client,
    call,
    frame,
    message,
    prediction,
)
from tests.faults.support import MIB
from tests.faults.test_fuzz_listeners import fuzz
from tests.support.grpc_api import (
    BAD_REQUEST,
    HEALTHY,
    INFERENCE,
    ISE,
    MANAGEMENT,
    MNF,
    Api,
    expect_error,
    predictions,
    read_all,
    request,
)

from relight.protos import inference_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

CODE = grpc.StatusCode
LIMIT = 6_553_500
"""Default of max_request_size and max_response_size."""
UNKNOWN = CODE.UNKNOWN
METHODS = [
    *(("inference", f"/{INFERENCE}/{name}") for name in ("Predictions", "StreamPredictions", "StreamPredictions2")),
    *(
        ("management", f"/{MANAGEMENT}/{name}")
        for name in ("DescribeModel", "ListModels", "RegisterModel", "ScaleWorker", "SetDefault", "UnregisterModel")
    ),
]
GARBAGE = b"\xff\xff\xff"


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


# -- sizes -------------------------------------------------------------------------------------------------------------


def sized(model: str, size: int) -> inference_pb2.PredictionsRequest:
    """Return a request of exactly that many bytes."""
    empty = request(model, {"data": b""}).ByteSize()
    made = request(model, {"data": b"x" * (size - empty)})
    while made.ByteSize() > size:
        made = request(model, {"data": made.input["data"][: size - made.ByteSize()]})
    assert made.ByteSize() == size
    return made


def test_requests_over_the_limit(target: Server, api: Api, bystander: Bystander) -> None:
    held = Measured(target, 30 * MIB)
    for _ in range(3):
        assert api.inference.Predictions(sized("noop", LIMIT), timeout=60).prediction == b"ok"
        for size in (LIMIT + 1, 3 * LIMIT):
            with pytest.raises(grpc.RpcError) as caught:
                api.inference.Predictions(sized("noop", size), timeout=60)
            assert caught.value.code() == CODE.RESOURCE_EXHAUSTED
            outcome = read_all(api.inference.StreamPredictions(sized("noop", size), timeout=60))
            assert (outcome.messages, outcome.code) == ([], CODE.RESOURCE_EXHAUSTED)
            answers = api.inference.StreamPredictions2(iter([sized("noop", size)]), timeout=60)
            outcome = read_all(answers)
            assert (outcome.messages, outcome.code) == ([], CODE.RESOURCE_EXHAUSTED)
        bystander.check()
    assert api.predict("noop") == b"ok"
    held.assert_back()


@pytest.mark.parametrize("path", ["Predictions", "StreamPredictions", "StreamPredictions2"])
def test_large_requests_are_let_go(target: Server, api: Api, path: str) -> None:
    """When a call has ended nothing of it is kept, not even until the next run of the garbage collector."""
    measured = Measured(target, 30 * MIB)
    large = sized("noop", LIMIT)
    for _ in range(20):
        if path == "Predictions":
            assert api.inference.Predictions(large, timeout=60).prediction == b"ok"
        elif path == "StreamPredictions":
            assert predictions(read_all(api.inference.StreamPredictions(large, timeout=60))) == [b"ok"]
        else:
            conversation = api.inference.StreamPredictions2(iter([large]), timeout=60)
            assert len(read_all(conversation).messages) == 1
        assert measured.grown < 5 * LIMIT


def test_management_requests_over_the_limit(api: Api) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        api.raw(f"/{MANAGEMENT}/ListModels", b"\x1a" + b"\xff" * (LIMIT + 1), management=True)
    assert caught.value.code() == CODE.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("path", [PREDICT, STREAM, CONVERSE])
@pytest.mark.parametrize("size", [LIMIT + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_prefix_that_promises_too_much(target: Server, bystander: Bystander, path: str, size: int) -> None:
    """Refused when it is read, not when so much has come."""
    with Http2Client(target) as client:
        client.send(call(1, path, message(b"beginning", size=size), end=False))
        assert client.read_answer(1).status == CODE.RESOURCE_EXHAUSTED.value[0]
        client.send(call(3, PREDICT, prediction("noop")))
        assert client.read_answer(3).predictions == [b"ok"]
    bystander.check()


@pytest.mark.parametrize("size", [LIMIT + 1, 300 * MIB])
def test_compressed_request_over_the_limit(target: Server, bystander: Bystander, size: int) -> None:
    """The limit holds for what comes out; no more than that is unpacked."""
    body = message(gzip.compress(b"\0" * size, 6), flag=1)
    measured = Measured(target, 30 * MIB)
    with Http2Client(target) as client:
        client.send(call(1, PREDICT, body, ("grpc-encoding", "gzip")))
        assert client.read_answer(1).status == CODE.RESOURCE_EXHAUSTED.value[0]
    assert measured.grown < 30 * MIB
    bystander.check()
    measured.assert_back()


def test_results_over_the_limit(target: Server, api: Api, bystander: Bystander) -> None:
    (worker,) = target.wait_ready("m")
    for _ in range(2):
        assert len(api.predict("m", {"mode": "big", "size": str(LIMIT)})) == LIMIT
        with pytest.raises(grpc.RpcError) as caught:
            api.predict("m", {"mode": "big", "size": str(LIMIT + 1)})
        assert (caught.value.code(), (caught.value.details() or "").partition("\n")[2]) == (CODE.INTERNAL, ISE)
    assert [each["pid"] for each in target.ready_workers("m")] == [worker["pid"]], "the worker was not kept"
    bystander.check()


def test_part_of_a_stream_over_the_limit(api: Api, bystander: Bystander) -> None:
    for _ in range(2):
        outcome = read_all(api.stream("streamer", {"n": "3", "size": str(LIMIT)}))
        assert (outcome.messages, outcome.code) == ([], CODE.INTERNAL)
        assert outcome.details.partition("\n")[2] == ISE
        outcome = read_all(api.stream("streamer", {"n": "2"}))
        assert (predictions(outcome), outcome.code) == ([*PARTS, FINAL], CODE.OK)
    bystander.check()


# -- garbage in place of protobuf --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("port", "method"), METHODS)
def test_garbage_messages(api: Api, bystander: Bystander, port: str, method: str) -> None:
    for garbage in (GARBAGE, b"\x0a\xff", b"\x00" * 50):
        with expect_error(UNKNOWN, ""):
            api.raw(method, garbage, management=port == "management")
    bystander.check()


def test_garbage_after_a_good_message(target: Server, bystander: Bystander) -> None:
    with Http2Client(target) as client:
        client.send(call(1, CONVERSE, prediction("noop", "s"), end=False))
        assert client.read_messages(1, 1) == [b"ok"]
        client.send(frame(DATA, 0, 1, message(GARBAGE)))
        answer = client.read_answer(1)
        assert (answer.status, dict(answer.trailers).get("grpc-message", "")) == (UNKNOWN.value[0], "")
        client.ping()
    bystander.check()


def test_random_messages(api: Api) -> None:
    """Whatever protobuf can read is judged by what it says, whatever it cannot is UNKNOWN."""
    valid = st.builds(
        request,
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3),
        st.text(max_size=5),
        st.none() | st.text(max_size=5),
    ).map(lambda each: each.SerializeToString())
    edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3)), max_size=3)

    @fuzz
    @given(body=valid | st.binary(max_size=60), edits=edits)
    @example(body=GARBAGE, edits=[])
    @example(body=b"", edits=[])
    @example(body=b"\x0a\x04noop" * 2, edits=[])
    @example(body=b"\x0a\x04noop\x1a\x00", edits=[])
    @example(body=b"\x0a\x04noop\x1a\x02\x0a\x00\x1a\x02\x12\x00", edits=[])
    @example(body=b"\x0a\x02\xc0\x80", edits=[])
    @example(body=b"\x0a\x04noop\x9b\x06\x9c\x06", edits=[])
    @example(body=b"\x0a\x04noop\x9b\x06", edits=[])
    @example(body=b"\x8a\x80\x80\x80\x00\x04noop", edits=[])
    @example(body=b"\x0a\x84\x80\x80\x80\x00noop", edits=[])
    def send(body: bytes, edits: list[tuple[float, int, bytes]]) -> None:
        for at, removed, added in edits:
            start = int(at * len(body))
            body = body[:start] + added + body[start + removed :]
        try:
            read = inference_pb2.PredictionsRequest.FromString(body)
        except DecodeError:
            with expect_error(UNKNOWN, ""):
                api.raw(PREDICT, body)
            return
        if read.model_name == "noop" and read.model_version in {"", "1.0"}:
            assert inference_pb2.PredictionResponse.FromString(api.raw(PREDICT, body)).prediction == b"ok"
        elif not read.model_name:
            with expect_error(CODE.INTERNAL, f"Parameter model_name is required.\n{BAD_REQUEST}"):
                api.raw(PREDICT, body)
        elif read.model_name not in {"noop", "m", "streamer", "patient"}:
            with expect_error(CODE.INTERNAL, f"Model not found: {read.model_name}\n{MNF}"):
                api.raw(PREDICT, body)

    send()


def outcome_of(api: Api, method: str, body: bytes, *, management: bool) -> tuple[grpc.StatusCode, str]:
    """Make a call, and return how it ended."""
    try:
        api.raw(method, body, management=management, timeout=20)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return CODE.OK, ""


@pytest.mark.parametrize(("port", "method"), METHODS)
def test_random_messages_to_every_method(target: Server, api: Api, port: str, method: str) -> None:
    """Every call ends, and never with words of the server's own inside."""

    @fuzz
    @given(body=st.binary(max_size=60))
    def send(body: bytes) -> None:
        code, details = outcome_of(api, method, body, management=port == "management")
        assert code not in {CODE.DEADLINE_EXCEEDED, CODE.UNAVAILABLE}
        assert "Traceback" not in details

    send()
    assert api.predict("noop") == b"ok"


# -- messages that are no messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PREDICT, STREAM])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        message(b"short", size=100),
        prediction("noop") * 2,
        prediction("noop") + b"\0\0",
        message(b"", flag=1),
        message(b"no gzip", flag=1),
        message(b"", flag=7),
    ],
    ids=["nothing", "byte", "half-prefix", "short", "two", "rest", "compressed", "no-gzip", "flag"],
)
def test_bodies_that_are_not_one_message(target: Server, bystander: Bystander, path: str, body: bytes) -> None:
    with Http2Client(target) as client:
        client.send(call(1, path, body))
        answer = client.read_answer(1)
        assert answer.status not in {None, 0}, answer
        assert answer.messages == []
        client.send(call(3, PREDICT, body, ("grpc-encoding", "gzip")))
        assert client.read_answer(3).status not in {None, 0}
        client.send(call(5, PREDICT, prediction("noop")))
        assert client.read_answer(5).predictions == [b"ok"]
    bystander.check()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_messages_in_small_pieces(target: Server, size: int) -> None:
    """However DATA frames cut a message, empty ones between them, it is the same message."""
    body = prediction("noop", data="x" * 100)
    with Http2Client(target) as client:
        client.send(call(1, PREDICT, b"", end=False))
        for at in range(0, len(body), size):
            client.send(frame(DATA, 0, 1, body[at : at + size]) + frame(DATA, 0, 1))
        client.send(frame(DATA, END_STREAM, 1))
        assert client.read_answer(1).predictions == [b"ok"]
