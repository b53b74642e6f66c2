"""relight.client over gRPC: sequences, tensors, and what gRPC cannot carry."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support import open_inference
from tests.support.client import Clients, addresses

from relight.client import Inputs, ModelVersionNotFound, PredictionFailed, Unavailable, Unsupported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


@pytest.fixture
def client(grpc_server: Server, clients: Clients, way: str) -> Any:
    return clients.make(way, **addresses(grpc_server, "grpc"))


@pytest.fixture
def sequencer(grpc_server: Server) -> Iterator[str]:
    """A model that keeps a sum for each sequence; one for each test, as TorchServe's do not recover from errors."""
    name = f"sequencer-{uuid.uuid4().hex[:8]}"
    assert grpc_server.register("sequencer.mar", model_name=name).status == 200
    grpc_server.wait_ready(name)
    yield name
    grpc_server.unregister(name)


def test_session(client: Any, sequencer: str) -> None:
    with client.session(sequencer, "s1") as session:
        assert (session.model, session.sequence_id) == (sequencer, "s1")
        assert [session.predict(number).content for number in ("1", "2", 3)] == [b"s1=1", b"s1=3", b"s1=6"]


def test_sessions_without_an_id_are_apart(client: Any, sequencer: str) -> None:
    with client.session(sequencer) as first, client.session(sequencer) as second:
        assert first.sequence_id != second.sequence_id
        assert first.predict("1").text == f"{first.sequence_id}=1"
        assert second.predict("5").text == f"{second.sequence_id}=5"
        assert first.predict("1").text == f"{first.sequence_id}=2"


def test_requests_sent_ahead(client: Any, sequencer: str) -> None:
    with client.session(sequencer, "s1") as session:
        for number in range(1, 5):
            session.send(str(number))
        assert [session.receive().content for _ in range(4)] == [b"s1=1", b"s1=3", b"s1=6", b"s1=10"]


def test_a_request_that_is_refused_leaves_the_session_open(client: Any, sequencer: str) -> None:
    with client.session(sequencer, "s1", version="9.9") as session:
        for _ in range(2):
            with pytest.raises(
                ModelVersionNotFound, match=r"^Model version: 9\.9 does not exist for model: "
            ) as caught:
                session.predict("1")
            assert (caught.value.code, caught.value.type) == ("INTERNAL", "ModelVersionNotFoundException")


@pytest.mark.fix
def test_end_of_a_sequence(client: Any, sequencer: str) -> None:
    with client.session(sequencer, "s1") as session:
        headers = session.predict(Inputs(mode="headers")).json()
        assert "ts_request_sequence_end" not in headers
        headers = session.predict(Inputs(mode="headers"), end=True).json()
        assert headers["ts_request_sequence_end"] == "true"


@pytest.mark.fix
def test_a_failing_handler_leaves_the_session_open(client: Any, sequencer: str) -> None:
    with client.session(sequencer, "s1") as session:
        assert session.predict("1").content == b"s1=1"
        with pytest.raises(PredictionFailed, match=r"^Prediction failed$"):
            session.predict(Inputs(mode="raise"))
        assert session.predict("2").content == b"s1=3"


@pytest.mark.fix
def test_answers_after_the_last_request(client: Any, sequencer: str) -> None:
    with client.session(sequencer, "s1") as session:
        for number in range(1, 4):
            session.send(str(number))
        session.end()
        assert [answer.content for answer in session] == [b"s1=1", b"s1=3", b"s1=6"]
        with pytest.raises(EOFError):
            session.receive()
        with pytest.raises(Unavailable):
            session.send("4")


@pytest.mark.fix
def test_stream_sequence(client: Any, sequencer: str) -> None:
    answers = client.stream_sequence(sequencer, (str(number) for number in range(1, 5)), sequence_id="s1")
    assert [answer.content for answer in answers] == [b"s1=1", b"s1=3", b"s1=6", b"s1=10"]


@pytest.mark.fix
def test_stream_sequence_from_an_asynchronous_source(grpc_server: Server, clients: Clients, sequencer: str) -> None:
    async def numbers() -> AsyncIterator[str]:
        for number in range(1, 4):
            yield str(number)

    client = clients.make("async", **addresses(grpc_server, "grpc"))
    answers = client.stream_sequence(sequencer, numbers(), sequence_id="s1")
    assert [answer.content for answer in answers] == [b"s1=1", b"s1=3", b"s1=6"]


@pytest.mark.fix
def test_stream_sequence_whose_source_fails(client: Any, sequencer: str) -> None:
    def numbers() -> Iterator[str]:
        yield "1"
        raise LookupError("no more numbers")

    answers = client.stream_sequence(sequencer, numbers(), sequence_id="s1")
    assert next(answers).content == b"s1=1"
    with pytest.raises(LookupError, match="no more numbers"):
        next(answers)


def test_stream_sequence_that_is_left_early(client: Any, sequencer: str) -> None:
    answers = client.stream_sequence(sequencer, ("1" for _ in range(3)), version="9.9")
    with pytest.raises(ModelVersionNotFound):
        next(answers)


def test_parts_are_messages_of_any_size(client: Any, grpc_server: Server) -> None:
    with grpc_server.registered("streamer.mar", "large_parts", initial_workers=1) as name:
        parts = list(client.stream(name, Inputs(n=2, size=300_000)))
        assert [len(part) for part in parts[:2]] == [300_008, 300_008]


def test_no_headers(client: Any) -> None:
    for call in (client.predict, client.stream):
        with pytest.raises(Unsupported, match="handlers see no headers over gRPC"):
            call("m", b"x", headers={"x-op": "see"})


def test_no_scaling_to_nothing(client: Any) -> None:
    with pytest.raises(Unsupported, match="min_worker=0 cannot be said over gRPC"):
        client.scale("m", 0)
    with pytest.raises(Unsupported, match="timeout=0 cannot be said over gRPC"):
        client.scale("m", 1, drain_timeout=0)


def test_no_renewal_of_tokens(client: Any) -> None:
    with pytest.raises(Unsupported, match="tokens are renewed over HTTP"):
        client.renew_token("inference", api_key="x")


def test_service_that_is_off(client: Any) -> None:
    with pytest.raises(Unsupported):
        client.infer("m", {"a": [1.0]})


@pytest.fixture(scope="module")
def oip(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return open_inference.start(make_server, tmp_path_factory.mktemp("client_oip"))


@pytest.fixture
def tensors(oip: Server, clients: Clients, way: str) -> Any:
    return clients.make(way, **addresses(oip, "grpc"))


@pytest.mark.parametrize("binary", [pytest.param(True, marks=pytest.mark.fix), False], ids=["raw", "typed"])
def test_numbers(tensors: Any, binary: bool) -> None:
    inputs = {
        "a": np.array([[1.5, -2.25], [0.0, 4.0]], np.float32),
        "b": np.array([1, -(2**40)]),
        "c": np.array([[True], [False]]),
    }
    outputs = tensors.infer("oip", inputs, binary=binary)
    assert {name: (value.dtype, value.shape) for name, value in outputs.items()} == {
        "a_out": (np.float32, (2, 2)),
        "b_out": (np.int64, (2,)),
        "c_out": (np.bool_, (2, 1)),
        "rows": (np.int32, (1,)),
    }
    np.testing.assert_array_equal(outputs["a_out"], inputs["a"] * 2)
    np.testing.assert_array_equal(outputs["b_out"], inputs["b"] * 2)
    np.testing.assert_array_equal(outputs["c_out"], ~inputs["c"])


@pytest.mark.fix
def test_texts_half_numbers_and_versions(tensors: Any) -> None:
    outputs = tensors.infer("oip", {"t": ["abc", "é"], "h": np.array([0.5], np.float16)}, version="2.0")
    assert outputs["t_out"].tolist() == [b"abc!", "é!".encode()]
    assert (outputs["h_out"].dtype, outputs["h_out"].tolist()) == (np.float16, [1.0])


@pytest.mark.fix
def test_chosen_outputs(tensors: Any) -> None:
    outputs = tensors.infer("oip", {"a": [1.0], "b": [2.0]}, outputs=["b_out"])
    assert {name: value.tolist() for name, value in outputs.items()} == {"b_out": [4.0]}
