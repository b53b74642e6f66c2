"""`StreamPredictions2` and models with state over gRPC (grpc_api.md §4.4 and §11, rows 90 to 106)."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2
from tests.support.grpc_api import (
    BAD_REQUEST,
    INTERNAL,
    ISE,
    MNF,
    MVNF,
    Outcome,
    expect_error,
    no_worker,
    predictions,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Server

    from relight.protos.inference_pb2 import PredictionResponse

OK = grpc.StatusCode.OK
INTERNAL_CODE = 13
UNAVAILABLE_CODE = 14
NO_ID = "Parameter sequenceId is required."


@pytest.fixture
def register(grpc_server: Server) -> Iterator[Callable[[str], str]]:
    """Register a model with state for one test: TorchServe's take few sequences, and do not recover from errors."""
    made: list[str] = []

    def start(url: str) -> str:
        name = f"{url.removesuffix('.mar')}-{uuid.uuid4().hex[:8]}"
        made.append(name)
        assert grpc_server.register(url, model_name=name).status == 200
        grpc_server.wait_ready(name)
        return name

    yield start
    for name in made:
        grpc_server.unregister(name)


@pytest.fixture
def sequencer(register: Callable[[str], str]) -> str:
    """A model that keeps a sum for each sequence; there may be 4 of them, with 10 waiting requests each."""
    return register("sequencer.mar")


def assert_status(message: PredictionResponse, code: int, text: str, reason: str) -> None:
    """Check an error that comes as a message."""
    assert message.HasField("status")
    assert message.prediction == b""
    assert (message.status.code, message.status.message) == (code, text)
    (detail,) = message.status.details
    assert detail.type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    info = error_details_pb2.ErrorInfo.FromString(detail.value)
    assert (info.reason, info.domain, dict(info.metadata)) == (reason, "", {})


def assert_answer(message: PredictionResponse, prediction: bytes) -> None:
    assert (message.prediction, message.HasField("status")) == (prediction, False)


def assert_ok(outcome: Outcome[PredictionResponse], *wanted: bytes) -> None:
    """Check how a call went on to its end."""
    assert (predictions(outcome), outcome.code, outcome.details) == (list(wanted), OK, "")
    assert not any(message.HasField("status") for message in outcome.messages)


def test_row_090_sums(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    for number, total in ((1, 1), (2, 3), (3, 6)):
        conversation.send(sequencer, {"data": str(number)}, "s1")
        assert_answer(conversation.read(), b"s1=%d" % total)
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_090_answers_name_their_sequence(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    for sequence in ("s1", "ü", "s1"):
        conversation.send(sequencer, {"data": "1"}, sequence)
        assert conversation.read().sequence_id == sequence


def seen(api: Api, model: str, sequence: str, **inputs: str) -> dict[str, str]:
    """Return the request's headers as the handler sees them."""
    conversation = api.converse()
    conversation.send(model, {"mode": "headers", **inputs}, sequence)
    headers: dict[str, str] = json.loads(conversation.read().prediction)
    assert_ok(conversation.finish())
    return headers


def test_row_091_headers(api: Api, sequencer: str) -> None:
    assert seen(api, sequencer, "s2")["ts_request_sequence_id"] == "s2"
    assert seen(api, sequencer, "s3", ts_request_sequence_end="true") == {
        "ts_request_sequence_id": "s3",
        "ts_request_sequence_end": "true",
    }


@pytest.mark.fix
def test_row_091_end_only_when_asked(api: Api, sequencer: str) -> None:
    assert seen(api, sequencer, "s2") == {"ts_request_sequence_id": "s2"}
    assert seen(api, sequencer, "s3", ts_request_sequence_end="no") == {"ts_request_sequence_id": "s3"}


def test_row_092_two_streams(grpc_server: Server, connect: Connect, sequencer: str) -> None:
    one, two = (connect(grpc_server).converse() for _ in range(2))
    for number, (first, second) in enumerate([(1, 10), (3, 30), (6, 60)], 1):
        one.send(sequencer, {"data": str(number)}, "a")
        two.send(sequencer, {"data": str(number * 10)}, "b")
        assert_answer(one.read(), b"a=%d" % first)
        assert_answer(two.read(), b"b=%d" % second)
    assert_ok(one.finish())
    assert_ok(two.finish())


def test_many_sequences_and_models_in_one_stream(api: Api, register: Callable[[str], str]) -> None:
    models = [register("sequencer.mar") for _ in range(2)]
    conversation = api.converse()
    wanted = []
    for number in range(1, 4):
        for sequence in ("a", "b", "c"):
            for model in models:
                conversation.send(model, {"data": str(number)}, sequence)
                wanted.append(f"{sequence}={number * (number + 1) // 2}".encode())
    answers = [conversation.read() for _ in wanted]
    assert sorted(answer.prediction for answer in answers) == sorted(wanted)
    for prefix in (b"a", b"b", b"c"):
        sums = [int(each.prediction[2:]) for each in answers if each.prediction.startswith(prefix)]
        for end in range(len(sums)):
            # The sequences of two models, each in order and both at the same time.
            ones, threes, sixes = (sums[: end + 1].count(total) for total in (1, 3, 6))
            assert ones >= threes >= sixes, "a sequence was not handled in order"
    assert_ok(conversation.finish())


@pytest.mark.parametrize("sequence", [None, ""])
def test_row_093_no_sequence_id(api: Api, sequencer: str, sequence: str | None) -> None:
    conversation = api.converse()
    conversation.send(sequencer, {"data": "1"}, sequence)
    assert_status(conversation.read(), INTERNAL_CODE, NO_ID, BAD_REQUEST)
    conversation.send(sequencer, {"data": "1"}, "after")
    assert_answer(conversation.read(), b"after=1")
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_094_new_sequence(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send(sequencer, {"data": "1", "ts_request_sequence_start": "true"})
    first = conversation.read()
    assert re.fullmatch(r"ts-seq-[0-9a-f-]{36}", first.sequence_id)
    assert uuid.UUID(first.sequence_id.removeprefix("ts-seq-")).version == 4
    assert_answer(first, f"{first.sequence_id}=1".encode())
    conversation.send(sequencer, {"data": "2"}, first.sequence_id)
    assert_answer(conversation.read(), f"{first.sequence_id}=3".encode())
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_094_header_of_a_new_sequence(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send(sequencer, {"mode": "headers", "ts_request_sequence_start": "true"})
    answer = conversation.read()
    assert json.loads(answer.prediction) == {
        "ts_request_sequence_id": answer.sequence_id,
        "ts_request_sequence_start": "true",
    }


@pytest.mark.fix
def test_row_094_start_must_be_true(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send(sequencer, {"data": "1", "ts_request_sequence_start": "false"})
    assert_status(conversation.read(), INTERNAL_CODE, NO_ID, BAD_REQUEST)
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_095_unknown_model(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send("nope", {"data": "1"}, "s1")
    assert_status(conversation.read(), INTERNAL_CODE, "Model not found: nope", MNF)
    conversation.send(sequencer, {"data": "2"}, "g1")
    assert_answer(conversation.read(), b"g1=2")
    assert_ok(conversation.finish())


def test_row_096_unknown_version(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send(sequencer, {"data": "1"}, "s1", version="9.9")
    text = f"Model version: 9.9 does not exist for model: {sequencer}"
    assert_status(conversation.read(), INTERNAL_CODE, text, MVNF)
    conversation.send(sequencer, {"data": "1"}, "g2")
    assert_answer(conversation.read(), b"g2=1")
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_097_no_model_name(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send("", {"data": "1"}, "s1")
    assert_status(conversation.read(), INTERNAL_CODE, "Parameter model_name is required.", BAD_REQUEST)
    conversation.send(sequencer, {"data": "1"}, "g3")
    assert_answer(conversation.read(), b"g3=1")
    assert_ok(conversation.finish())


def test_row_098_no_request(api: Api) -> None:
    assert_ok(api.converse().finish())


@pytest.mark.fix
def test_row_099_half_close_at_once(api: Api, sequencer: str) -> None:
    for start in (0, 6):
        conversation = api.converse()
        for number in (1, 2, 3):
            conversation.send(sequencer, {"data": str(number)}, "s1")
        assert_ok(conversation.finish(), *(b"s1=%d" % (start + total) for total in (1, 3, 6)))


def test_row_100_queue_of_a_sequence_is_full(api: Api, grpc_server: Server, register: Callable[[str], str]) -> None:
    model = register("sequencer_full.mar")
    gate = grpc_server.gate()
    conversation = api.converse()
    conversation.send(model, {"data": "1", "gate": gate.name}, "s1")
    gate.wait_arrived()
    for _ in range(5):
        conversation.send(model, {"data": "1"}, "s1")
    text = no_worker(model).partition("\n")[0]
    for _ in range(3):
        assert_status(conversation.read(), INTERNAL_CODE, text, INTERNAL)
    gate.open()
    for total in (1, 2, 3):
        assert_answer(conversation.read(), b"s1=%d" % total)
    assert_ok(conversation.finish())


def test_row_101_too_many_sequences(api: Api, register: Callable[[str], str]) -> None:
    model = register("sequencer_full.mar")
    conversations = [api.converse() for _ in range(4)]
    text = no_worker(model).partition("\n")[0]
    for number, conversation in enumerate(conversations):
        conversation.send(model, {"data": "1"}, f"s{number}")
        if number < 2:
            assert_answer(conversation.read(), b"s%d=1" % number)
        else:
            assert_status(conversation.read(), INTERNAL_CODE, text, INTERNAL)
    for conversation in conversations:
        assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_102_handler_raises(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    for inputs in ({"data": "1"}, {"mode": "raise"}, {"data": "2"}):
        conversation.send(sequencer, inputs, "s1")
    assert_answer(conversation.read(), b"s1=1")
    error = conversation.read()
    assert_status(error, UNAVAILABLE_CODE, "Prediction failed", ISE)
    assert error.sequence_id == "s1"
    assert_answer(conversation.read(), b"s1=3")
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_worker_dies(api: Api, sequencer: str) -> None:
    conversation = api.converse()
    conversation.send(sequencer, {"data": "1"}, "s1")
    assert_answer(conversation.read(), b"s1=1")
    conversation.send(sequencer, {"mode": "exit"}, "s1")
    assert_status(conversation.read(), INTERNAL_CODE, "Worker died.", ISE)
    conversation.send(sequencer, {"data": "5"}, "s1")
    assert_answer(conversation.read(), b"s1=5")
    assert_ok(conversation.finish())


def test_row_103_handler_that_streams(api: Api, register: Callable[[str], str]) -> None:
    model = register("streamer_seq.mar")
    conversation = api.converse()
    conversation.send(model, {"n": "2"}, "s1")
    for wanted in (b"part-0-0", b"part-0-1", b"final-0 batch=1"):
        assert_answer(conversation.read(), wanted)
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_104_model_without_state(api: Api) -> None:
    conversation = api.converse()
    for _ in range(3):
        conversation.send("noop", {"data": "x"}, "s1")
        assert_answer(conversation.read(), b"ok")
    assert_ok(conversation.finish())
    conversation = api.converse()
    for _ in range(3):
        conversation.send("noop", {"data": "x"}, "s1")
    assert_ok(conversation.finish(), b"ok", b"ok", b"ok")


def test_row_105_client_cancels(api: Api, grpc_server: Server, connect: Connect, sequencer: str) -> None:
    gone, stays = api.converse(), connect(grpc_server).converse()
    for conversation, name in ((gone, b"gone"), (stays, b"stays")):
        conversation.send(sequencer, {"data": "1"}, name.decode())
        assert_answer(conversation.read(), name + b"=1")
    gone.cancel()
    with pytest.raises(grpc.RpcError):
        gone.read()
    assert gone.call.code() == grpc.StatusCode.CANCELLED
    for total in (2, 3):
        stays.send(sequencer, {"data": "1"}, "stays")
        assert_answer(stays.read(), b"stays=%d" % total)
    assert_ok(stays.finish())


@pytest.mark.fix
def test_client_cancels_while_its_requests_wait(api: Api, grpc_server: Server, sequencer: str) -> None:
    """What waits is dropped; the sequence, and the others, go on."""
    gate = grpc_server.gate()
    gone = api.converse()
    gone.send(sequencer, {"data": "1", "gate": gate.name}, "s1")
    gate.wait_arrived()
    for _ in range(3):
        gone.send(sequencer, {"data": "100"}, "s1")
    grpc_server.wait_pending(sequencer, 3)
    gone.cancel()
    grpc_server.wait_pending(sequencer, 0)
    gate.open()
    conversation = api.converse()
    conversation.send(sequencer, {"data": "1"}, "s1")
    assert_answer(conversation.read(), b"s1=2")
    assert_ok(conversation.finish())


@pytest.mark.fix
def test_row_106_unary_call(api: Api, sequencer: str) -> None:
    for total in (1, 2):
        message = request(sequencer, {"data": "1"}, sequence_id="s1")
        assert api.inference.Predictions(message, timeout=60).prediction == b"s1=%d" % total
    for sequence in (None, ""):
        with expect_error(grpc.StatusCode.INTERNAL, f"{NO_ID}\n{BAD_REQUEST}"):
            api.predict(sequencer, {"data": "1"}, sequence_id=sequence)
