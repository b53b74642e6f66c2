"""`StreamPredictions` over gRPC (grpc_api.md §4.3, §10 and §11, rows 70 to 89)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import grpc
import pytest
from tests.support.grpc_api import (
    BAD_REQUEST,
    ISE,
    MNF,
    MVNF,
    Outcome,
    expect_error,
    metadata_of,
    predictions,
    read_all,
    results,
)
from tests.support.server import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Server

    from relight.protos.inference_pb2 import PredictionResponse

OK = grpc.StatusCode.OK
INTERNAL = grpc.StatusCode.INTERNAL
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PARTS = [b"part-0-0", b"part-0-1"]
FINAL = b"final-0 batch=1"
TWO = {"n": "2"}
DIED = f"Worker died.\n{ISE}"
FAILED = f"Prediction failed\n{ISE}"


@pytest.fixture(scope="module")
def streamer(grpc_server: Server) -> Iterator[str]:
    """A model that streams."""
    with grpc_server.registered("streamer.mar", "streamer", initial_workers=1, synchronous="true"):
        yield "streamer"


@pytest.fixture
def fresh(grpc_server: Server) -> Iterator[str]:
    """A model that streams, for one test, as TorchServe would not recover from it."""
    name = f"streamer-{uuid.uuid4().hex[:8]}"
    with grpc_server.registered("streamer.mar", name, initial_workers=1, synchronous="true"):
        yield name


def ended(outcome: Outcome[PredictionResponse]) -> tuple[list[bytes], grpc.StatusCode, str]:
    """Return what came of a stream, whose messages must have nothing but predictions."""
    assert not any(each.HasField("sequence_id") or each.HasField("status") for each in outcome.messages)
    return predictions(outcome), outcome.code, outcome.details


def streamed(api: Api, model: str, inputs: Mapping[str, str]) -> tuple[list[bytes], grpc.StatusCode, str]:
    """Stream a prediction to its end."""
    return ended(read_all(api.stream(model, inputs)))


def assert_serves(api: Api, model: str) -> None:
    """Check the next call."""
    assert streamed(api, model, TWO) == ([*PARTS, FINAL], OK, "")


def test_row_070_stream(api: Api, streamer: str) -> None:
    call = api.stream(streamer, {"n": "3"})
    assert ended(read_all(call)) == ([*PARTS, b"part-0-2", FINAL], OK, "")
    assert metadata_of(call.initial_metadata()) == {}
    assert metadata_of(call.trailing_metadata()) == {}


def test_row_071_messages_are_sent_at_once(api: Api, grpc_server: Server, streamer: str) -> None:
    for at in (1, 2, 3):
        gate = grpc_server.gate()
        call = api.stream(streamer, {"n": "3", "at": str(at), "gate": gate.name})
        assert [next(call).prediction for _ in range(at)] == [b"part-0-%d" % part for part in range(at)]
        gate.wait_arrived()
        gate.open()
        assert ended(read_all(call)) == ([b"part-0-%d" % part for part in range(at, 3)] + [FINAL], OK, "")


@pytest.mark.parametrize(
    ("model", "version", "details"),
    [
        ("nope", "", f"Model not found: nope\n{MNF}"),
        ("streamer", "9.9", f"Model version: 9.9 does not exist for model: streamer\n{MVNF}"),
        ("", "", f"Parameter model_name is required.\n{BAD_REQUEST}"),
    ],
)
def test_row_072_unknown(api: Api, streamer: str, model: str, version: str, details: str) -> None:
    assert ended(read_all(api.stream(model, {"n": "3"}, version))) == ([], INTERNAL, details)


def test_row_073_raise_after_messages(api: Api, streamer: str) -> None:
    assert streamed(api, streamer, {**TWO, "then": "raise"}) == (PARTS, UNAVAILABLE, FAILED)
    assert_serves(api, streamer)


def test_row_074_wrong_result_after_messages(api: Api, streamer: str) -> None:
    details = f"number of batch response mismatched\n{ISE}"
    assert streamed(api, streamer, {**TWO, "then": "short"}) == (PARTS, UNAVAILABLE, details)
    assert_serves(api, streamer)


def test_row_075_exit_after_messages(api: Api, fresh: str) -> None:
    assert streamed(api, fresh, {**TWO, "then": "exit"}) == (PARTS, INTERNAL, DIED)
    assert_serves(api, fresh)


ERRORS = [("503", UNAVAILABLE), ("404", grpc.StatusCode.NOT_FOUND)]


@pytest.mark.parametrize(("code", "status"), ERRORS)
def test_row_076_message_with_an_error_code(api: Api, fresh: str, code: str, status: grpc.StatusCode) -> None:
    details = f"stream went wrong\n{ISE}"
    assert streamed(api, fresh, {"n": "3", "code": code}) == (PARTS, status, details)


@pytest.mark.fix
@pytest.mark.parametrize("code", ["503", "404"])
def test_row_076_next_call(api: Api, fresh: str, code: str) -> None:
    for _ in range(3):
        assert streamed(api, fresh, {"n": "3", "code": code})[0] == PARTS
        assert_serves(api, fresh)


@pytest.mark.fix
@pytest.mark.parametrize("code", ["201", "299"])
def test_row_077_message_with_another_good_code(api: Api, streamer: str, code: str) -> None:
    assert streamed(api, streamer, {"n": "3", "code": code}) == ([*PARTS, b"part-0-2", FINAL], OK, "")
    assert_serves(api, streamer)


def test_row_078_raise_before_messages(api: Api, streamer: str) -> None:
    assert streamed(api, streamer, {"then": "raise"}) == ([], UNAVAILABLE, FAILED)


def test_row_079_prediction_exception(api: Api, streamer: str) -> None:
    assert streamed(api, streamer, {"then": "predict"}) == ([], grpc.StatusCode.NOT_FOUND, f"x\n{ISE}")
    assert_serves(api, streamer)


@pytest.mark.fix
def test_row_080_handler_that_only_returns(api: Api, grpc_server: Server, streamer: str) -> None:
    before = [worker["pid"] for worker in grpc_server.wait_ready(streamer)]
    for _ in range(3):
        assert streamed(api, streamer, {"n": "0"}) == ([FINAL], OK, "")
    assert [worker["pid"] for worker in grpc_server.ready_workers(streamer)] == before
    assert streamed(api, "noop", {"data": "x"}) == ([b"ok"], OK, "")


@pytest.mark.fix
def test_row_081_unary_call(api: Api, streamer: str) -> None:
    whole = b"".join([*PARTS, b"part-0-2", FINAL])
    for _ in range(3):
        assert api.predict(streamer, {"n": "3"}) == whole


@pytest.mark.fix
@pytest.mark.parametrize(
    ("then", "status", "details"),
    [("raise", UNAVAILABLE, FAILED), ("predict", grpc.StatusCode.NOT_FOUND, f"x\n{ISE}"), ("exit", INTERNAL, DIED)],
)
def test_unary_call_that_fails_after_messages(
    api: Api, streamer: str, then: str, status: grpc.StatusCode, details: str
) -> None:
    with expect_error(status, details):
        api.predict(streamer, {**TWO, "then": then})
    assert_serves(api, streamer)


def test_row_082_response_timeout_bounds_gaps(api: Api, grpc_server: Server) -> None:
    with grpc_server.registered("streamer.mar", "gaps", initial_workers=1, response_timeout=2):
        messages, status, _ = streamed(api, "gaps", {"n": "4", "pause": "0.9"})
        assert (len(messages), messages[-1], status) == (5, FINAL, OK)


def test_row_083_response_timeout(api: Api, grpc_server: Server) -> None:
    gate = grpc_server.gate()
    with grpc_server.registered("streamer.mar", "silent", initial_workers=1, response_timeout=2):
        inputs = {**TWO, "then": "silence", "gate": gate.name}
        assert streamed(api, "silent", inputs) == (PARTS, INTERNAL, DIED)
        assert_serves(api, "silent")
    gate.open()


def test_row_084_client_cancels(api: Api, grpc_server: Server, streamer: str) -> None:
    middle, end = grpc_server.gate(), grpc_server.gate()
    call = api.stream(streamer, {"n": "8", "at": "2", "gate": middle.name})
    assert [next(call).prediction for _ in range(2)] == PARTS
    middle.wait_arrived()
    call.cancel()
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() == grpc.StatusCode.CANCELLED
    following = api.stream(streamer, {**TWO, "at": "2", "gate": end.name})
    assert end.arrivals() == 0, "the next call did not wait"
    middle.open()
    end.wait_arrived()
    end.open()
    assert ended(read_all(following)) == ([*PARTS, FINAL], OK, "")


def test_deadline_in_the_middle_of_a_stream(api: Api, grpc_server: Server, streamer: str) -> None:
    gate = grpc_server.gate()
    call = api.stream(streamer, {"n": "3", "at": "2", "gate": gate.name}, timeout=1)
    outcome = read_all(call)
    assert (predictions(outcome), outcome.code) == (PARTS, grpc.StatusCode.DEADLINE_EXCEEDED)
    gate.open()
    assert_serves(api, streamer)


def test_row_085_client_that_reads_late(api: Api, streamer: str) -> None:
    call = api.stream(streamer, {"n": "300", "size": "100000"})
    first = next(call).prediction
    # Others are served meanwhile.
    for _ in range(20):
        assert api.predict("noop") == b"ok"
    outcome = read_all(call)
    assert outcome.code == OK
    messages = [first, *predictions(outcome)]
    assert [message.rstrip(b".") for message in messages[:-1]] == [b"part-0-%d" % part for part in range(300)]
    assert {len(message) for message in messages[:9]} == {len(PARTS[0]) + 100_000}
    assert messages[-1] == FINAL


@pytest.mark.fix
def test_row_086_a_stream_is_a_batch_of_its_own(api: Api, grpc_server: Server) -> None:
    """As published (documented_promises.md); TorchServe makes one batch of both."""
    with grpc_server.registered("streamer.mar", "pair", initial_workers=1, batch_size=2, max_batch_delay=200):
        calls = [api.stream("pair", TWO) for _ in range(2)]
        for call in calls:
            assert ended(read_all(call)) == ([*PARTS, FINAL], OK, "")


@pytest.mark.skipif(not is_reference(), reason="TorchServe's own row; relight does as its documentation says")
def test_row_086_two_streams_in_a_batch(api: Api, grpc_server: Server) -> None:
    with grpc_server.registered("streamer.mar", "pair", initial_workers=1, batch_size=2, max_batch_delay=2000):
        outcomes = [ended(read_all(call)) for call in [api.stream("pair", TWO) for _ in range(2)]]
        wanted = [([b"part-%d-0" % i, b"part-%d-1" % i, b"final-%d batch=2" % i], OK, "") for i in range(2)]
        assert sorted(outcomes) == wanted


@pytest.mark.fix
@pytest.mark.parametrize("stream_first", [True, False])
def test_row_087_a_stream_and_a_unary_call(api: Api, grpc_server: Server, streamer: str, *, stream_first: bool) -> None:
    gate = grpc_server.gate()
    with grpc_server.registered("streamer.mar", "mixed", initial_workers=1, batch_size=4, max_batch_delay=200):
        blocking = api.start("mixed", {"n": "0", "at": "0", "gate": gate.name})
        gate.wait_arrived()
        # Both lie in the queue when the worker is free.
        stream, unary = (
            (api.stream("mixed", TWO), api.start("mixed", TWO))
            if stream_first
            else (api.start("mixed", TWO), api.stream("mixed", TWO))[::-1]
        )
        grpc_server.wait_pending("mixed", 2)
        gate.open()
        assert ended(read_all(stream)) == ([*PARTS, FINAL], OK, "")
        assert results([blocking, unary]) == [FINAL, b"".join([*PARTS, FINAL])]
        assert_serves(api, "mixed")


@pytest.mark.fix
def test_streams_beside_unary_batches(api: Api, grpc_server: Server) -> None:
    """Unary calls make batches; streams between them each have one of their own."""
    gate = grpc_server.gate()
    with grpc_server.registered("streamer.mar", "crowd", initial_workers=1, batch_size=4, max_batch_delay=100):
        blocking = api.start("crowd", {"n": "0", "at": "0", "gate": gate.name})
        gate.wait_arrived()
        streams, unary = [], []
        for _ in range(4):
            streams.append(api.stream("crowd", TWO))
            unary.append(api.start("crowd", {"n": "0"}))
        grpc_server.wait_pending("crowd", 8)
        gate.open()
        assert [ended(read_all(stream)) for stream in streams] == [([*PARTS, FINAL], OK, "")] * 4
        assert all(result.startswith(b"final-") for result in results([blocking, *unary]))


def test_streams_of_many_clients(grpc_server: Server, connect: Connect) -> None:
    with grpc_server.registered("streamer.mar", "many", initial_workers=2, synchronous="true"):
        calls = [connect(grpc_server).stream("many", {"n": "20"}) for _ in range(8)]
        wanted = [*(b"part-0-%d" % part for part in range(20)), FINAL]
        assert [ended(read_all(call)) for call in calls] == [(wanted, OK, "")] * 8


# Continuous batching


@pytest.fixture(scope="module")
def stepper(grpc_server: Server) -> Iterator[str]:
    """A model with continuous batching."""
    with grpc_server.registered("stepper.mar", "stepper", initial_workers=1, synchronous="true"):
        yield "stepper"


@pytest.mark.fix
def test_row_088_continuous_stream(api: Api, stepper: str) -> None:
    wanted = [b"token0 ", b"token1 ", b"token2 "]
    assert streamed(api, stepper, {"n": "3"}) == (wanted, OK, "")
    calls = [api.stream(stepper, {"n": str(n)}) for n in (5, 1, 3, 9, 4, 2)]
    for call, n in zip(calls, (5, 1, 3, 9, 4, 2), strict=True):
        assert ended(read_all(call)) == ([b"token%d " % k for k in range(n)], OK, "")


def test_row_089_continuous_unary_call_of_one_token(api: Api, stepper: str) -> None:
    assert api.predict(stepper, {"n": "1"}) == b"token0 "


@pytest.mark.fix
def test_row_089_continuous_unary_call(api: Api, stepper: str) -> None:
    assert api.predict(stepper, {"n": "3"}) == b"token0 token1 token2 "
