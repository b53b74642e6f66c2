"""relight.client over HTTP: bodies, headers, unix sockets, tensors, and what HTTP cannot carry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support import open_inference
from tests.support.client import Clients, addresses

from relight.client import (
    AsyncClient,
    Inputs,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PredictionFailed,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def client(server: Server, clients: Clients, way: str) -> Any:
    return clients.make(way, **addresses(server, "http"))


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"\x00\xff", {"body": {"py": "bytearray", "len": 2, "text": "\x00\xff"}}),
        ("grüße", {"body": {"py": "str", "len": 5, "text": "grüße"}}),
        ({"a": [1, None]}, {"body": {"py": "dict", "value": {"a": [1, None]}}}),
        ([1.5, "x"], {"body": {"py": "list", "value": [1.5, "x"]}}),
        (None, {"body": {"py": "NoneType", "value": None}}),
        (
            Inputs(a="é", b=2),
            {"a": {"py": "bytearray", "len": 2, "text": "Ã©"}, "b": {"py": "bytearray", "len": 1, "text": "2"}},
        ),
        ({"raw": memoryview(b"\r\n--")}, {"raw": {"py": "bytearray", "len": 4, "text": "\r\n--"}}),
    ],
    ids=["bytes", "text", "object", "list", "null", "inputs", "mapping"],
)
def test_data(client: Any, data: object, seen: dict[str, Any]) -> None:
    assert client.predict("swiss", data).json()["row"] == seen


def test_headers(client: Any) -> None:
    headers = {"X-Own": "yes", "Content-Type": "application/x-own"}
    answer = client.predict("swiss", b"{}", headers=headers)
    seen = {name.lower(): value for name, value in answer.json()["headers"].items()}
    assert (seen["x-own"], seen["content-type"]) == ("yes", "application/x-own")
    assert seen["user-agent"].startswith("relight-client/")
    assert answer.json()["row"]["body"]["py"] == "bytearray"


def test_content_type_and_headers_of_the_answer(client: Any) -> None:
    assert client.predict("swiss", b"", headers={"x-op": "ct", "x-ct": "text/csv"}).content_type == "text/csv"
    answer = client.predict("swiss", b"", headers={"x-op": "header", "x-name": "X-Answer", "x-value": "42"})
    assert (answer.headers["x-answer"], answer.content_type) == ("42", None)


def test_status_that_the_handler_chose(client: Any) -> None:
    created = client.predict("swiss", b"", headers={"x-op": "status", "x-code": "201"})
    assert created.content == b"body with status"
    for status in ("302", "404", "503"):
        with pytest.raises(PredictionFailed, match=r"^body with status$") as caught:
            client.predict("swiss", b"", headers={"x-op": "status", "x-code": status})
        assert (caught.value.status, caught.value.type, caught.value.body) == (int(status), None, b"body with status")


def test_stream_headers(client: Any) -> None:
    parts = list(client.stream("swiss", b"", headers={"x-op": "stream"}))
    assert parts == [b"part0 ", b"part1 ", b"part2 ", b"last"]


def test_stream_whose_worker_dies(client: Any) -> None:
    parts = client.stream("swiss", b"", headers={"x-op": "stream", "x-then": "exit"})
    assert next(parts) == b"part0 "
    with pytest.raises(PredictionFailed, match=r"^the stream broke off: "):
        list(parts)


def test_stream_of_a_plain_answer(client: Any) -> None:
    assert list(client.stream("noop", b"")) == [b"ok"]


def test_many_calls_at_a_time(server: Server, clients: Clients) -> None:
    async def ask() -> list[bytes]:
        async with AsyncClient(server.inference.url) as client:
            answers = await asyncio.gather(*(client.predict("noop", b"x") for _ in range(50)))
            return [answer.content for answer in answers]

    assert clients.run(ask()) == [b"ok"] * 50


def test_customized_description(client: Any) -> None:
    assert client.describe("swiss", customized=True).customized_metadata == {"who": "swiss", "n": [1]}
    assert client.describe("swiss").customized_metadata is None


def test_scaling_to_nothing(client: Any, server: Server) -> None:
    with server.registered("noop.mar", "resting", initial_workers=1) as name:
        assert client.scale(name, 0) == "Workers scaled to 0 for model: resting"
        with pytest.raises(Unavailable):
            client.predict(name, b"")
        with pytest.raises(InvalidRequest, match=r"^max_worker cannot be less than min_worker\.$"):
            client.scale(name, 2, max_worker=1)


def test_body_over_the_limit(closed_server: Server, clients: Clients, way: str) -> None:
    client = clients.make(way, **addresses(closed_server, "http"))
    with pytest.raises(TooLarge) as caught:
        client.predict("only", bytes(1001))
    assert caught.value.status == 413
    assert client.predict("only", bytes(1000), headers={"x-op": "pid"}).content.isdigit()


def test_no_sequences(client: Any) -> None:
    with pytest.raises(Unsupported, match="sequences need a gRPC address"):
        client.session("swiss")
    with pytest.raises(Unsupported, match="sequences need a gRPC address"):
        client.stream_sequence("swiss", ["1"])


def test_no_management_without_its_address(server: Server, clients: Clients, way: str) -> None:
    client = clients.make(way, url=server.inference.url)
    with pytest.raises(Unsupported, match="give its address"):
        client.models()


def test_no_tokens_to_renew(client: Any) -> None:
    with pytest.raises(NotFound):
        client.renew_token("inference", api_key="x")
    with pytest.raises(ValueError, match="the API key"):
        client.renew_token("inference")


def test_renewal_with_a_wrong_key(make_server: ServerFactory, clients: Clients, way: str) -> None:
    closed = make_server({"disable_token_authorization": "false"})
    client = clients.make(way, **addresses(closed, "http"), token="wrong", management_token="wrong")
    with pytest.raises(Unauthorized, match=r"^Token Authentication failed\."):
        client.renew_token("inference", api_key="wrong")
    with pytest.raises(Unauthorized, match=r"^Token Authorization failed\.") as caught:
        client.ping()
    assert (caught.value.status, caught.value.type) == (400, "InvalidKeyException")


def test_unix_sockets(
    make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory, clients: Clients, way: str
) -> None:
    folder = tmp_path_factory.mktemp("u")
    paths = {f"{role}_address": f"unix:{folder / role}" for role in ("inference", "management", "metrics")}
    server = make_server(paths)
    client = clients.make(way, **addresses(server, "http"))
    assert client.wait_healthy(10).healthy
    client.register("noop.mar", initial_workers=1)
    assert client.predict("noop", b"x").content == b"ok"
    assert list(client.stream("noop", b"x")) == [b"ok"]


def test_prefix_of_a_proxy(server: Server, clients: Clients, way: str) -> None:
    client = clients.make(way, url=f"{server.inference.url}/v2/models/")
    with pytest.raises(NotFound) as caught:
        client.predict("noop", b"x")
    assert (caught.value.status, caught.value.type) == (404, "ResourceNotFoundException")


def test_names_cannot_be_empty(client: Any) -> None:
    for call in (client.describe, client.unregister, lambda name: client.predict(name, b"")):
        with pytest.raises(ValueError, match="cannot be empty"):
            call("")


@pytest.fixture(scope="module")
def oip(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return open_inference.start(make_server, tmp_path_factory.mktemp("client_oip"))


@pytest.fixture
def tensors(oip: Server, clients: Clients, way: str) -> Any:
    return clients.make(way, **addresses(oip, "http"))


@pytest.mark.parametrize("binary", [pytest.param(True, marks=pytest.mark.fix), False], ids=["binary", "json"])
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
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_chosen_outputs(tensors: Any, binary: bool) -> None:
    outputs = tensors.infer("oip", {"a": [1.0], "b": [2.0]}, outputs=["b_out"], binary=binary)
    assert {name: value.tolist() for name, value in outputs.items()} == {"b_out": [4.0]}


def test_tensors_for_nobody(tensors: Any) -> None:
    with pytest.raises(ModelNotFound, match=r"^Model not found: nope$"):
        tensors.infer("nope", {"a": [1.0]}, binary=False)
