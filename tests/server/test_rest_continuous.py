"""Continuous batching over HTTP (rest_api.md §3.12, batching_and_llm.md §8)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.archives import HANDLERS, contents, write_mar
from tests.support.expect import assert_error
from tests.support.raw import encode
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import RawConnection, RawResponse
    from tests.support.server import Server

CONFIG = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: {size}\nmaxBatchDelay: 10\ncontinuousBatching: true\n"


@pytest.fixture(scope="module")
def stepper(server: Server) -> Iterator[str]:
    """The path of a model with continuous batching and batch size 2."""
    files = contents("stepper", "stepper", config=CONFIG.format(size=2))
    write_mar(server.store / "stepper.mar", files | {"gates.py": (HANDLERS / "gates.py").read_bytes()})
    with server.registered("stepper.mar", "stepper"):
        yield "/predictions/stepper"


def call(server: Server, path: str, body: bytes = b"x", **headers: object) -> RawResponse:
    return server.inference.request("POST", path, fields(headers), body)


def fields(headers: dict[str, object]) -> dict[str, str]:
    return {f"x-{name}": str(value) for name, value in headers.items()}


def chunks_of(response: RawResponse) -> list[bytes]:
    assert response.chunks is not None
    return response.chunks


def send(connection: RawConnection, path: str, **headers: object) -> None:
    connection.send(encode("POST", path, fields(headers), b"x"))


# -- one request -------------------------------------------------------------------------------------------------


def test_each_step_is_a_chunk(server: Server, stepper: str) -> None:
    response = call(server, stepper, n=3)

    assert (response.status, response.chunks) == (200, [b"step1 ", b"step2 ", b"step3 "])
    assert response.header("ts_stream_next") == "true"
    assert response.header("transfer-encoding") == "chunked"


def test_headers_are_those_of_the_first_step(server: Server, stepper: str) -> None:
    assert call(server, stepper, n=3).all("x-step") == ["1"]


@pytest.mark.fix
def test_a_request_of_one_step_has_an_ordinary_answer(server: Server, stepper: str) -> None:
    """TorchServe never answers it."""
    response = call(server, stepper, n=1)

    assert (response.status, response.chunks, response.body) == (200, None, b"step1 ")
    assert response.header("ts_stream_next") is None


def test_a_criterion_without_an_opinion_ends_the_request(server: Server, stepper: str) -> None:
    response = call(server, stepper, n=0)

    assert (response.status, response.chunks, response.body) == (200, None, b"step1 ")
    assert response.header("content-length") == "6"


def test_later_steps_have_the_headers_and_no_inputs(server: Server, stepper: str) -> None:
    first, second, third = map(json.loads, chunks_of(call(server, stepper, b"hello", n=3, show="row")))

    assert (first["row"], second["row"], third["row"]) == ({"body": "hello"}, {}, {})
    assert first["headers"]["body"] == {"content-type": ""}
    assert {key: value for key, value in first["headers"].items() if key != "body"} == second["headers"]
    assert second["headers"] == third["headers"]


def test_the_id_stays(server: Server, stepper: str) -> None:
    response = call(server, stepper, n=3, show="ids")

    assert {tuple(json.loads(chunk)) for chunk in chunks_of(response)} == {(response.header("x-request-id"),)}


def test_parts_without_text(server: Server, stepper: str) -> None:
    response = call(server, stepper, n=3, show="nothing")

    assert (response.status, response.chunks, response.body) == (200, [], b"")
    assert response.header("transfer-encoding") == "chunked"


# -- several requests --------------------------------------------------------------------------------------------


def test_a_request_joins_others_and_leaves_before_them(server: Server, stepper: str) -> None:
    gate, end = server.gate(), server.gate()
    with server.inference.connect() as one, server.inference.connect() as two:
        send(one, stepper, n=6, show="size", gate=gate.name, at=2)
        gate.wait_arrived()
        send(two, stepper, n=2, show="size", gate=end.name, at=2)
        server.wait_pending("stepper", 1)
        gate.open()
        end.wait_arrived()
        end.open()
        assert two.read_response().chunks == [b"2 ", b"2 "]
        assert one.read_response().chunks == [b"1 ", b"1 ", b"2 ", b"2 ", b"1 ", b"1 "]


def test_a_full_batch_lets_nobody_in(server: Server, stepper: str) -> None:
    gate = server.gate()
    with server.inference.connect() as one, server.inference.connect() as two, server.inference.connect() as three:
        send(one, stepper, n=5, show="size", gate=gate.name, at=1)
        gate.wait_arrived()
        send(two, stepper, n=2, show="size")
        send(three, stepper, n=2, show="size")
        server.wait_pending("stepper", 2)
        gate.open()
        sizes = [connection.read_response().chunks for connection in (one, two, three)]

    # One of the two that wait gets the second place at once, the other one when that is free again.
    assert sizes == [[b"1 ", *[b"2 "] * 4], [b"2 "] * 2, [b"2 "] * 2]


def test_a_client_that_leaves_is_dropped(server: Server, stepper: str) -> None:
    left, gate = server.gate(), server.gate()
    with server.inference.connect() as stays:
        send(stays, stepper, n=4, show="size", gate=gate.name, at=2)
        gate.wait_arrived()
        with server.inference.connect() as leaves:
            send(leaves, stepper, n=1000000, gate=left.name, at=2)
            server.wait_pending("stepper", 1)
            gate.open()
            left.wait_arrived()
        left.open()
        chunks = chunks_of(stays.read_response())

    assert chunks[:2] == [b"1 ", b"1 "]
    assert len(chunks) == 4
    wait_for("a batch of one", lambda: call(server, stepper, n=2, show="size").chunks == [b"1 ", b"1 "])


# -- failures ----------------------------------------------------------------------------------------------------


def test_an_error_in_the_first_step(server: Server, stepper: str) -> None:
    assert_error(call(server, stepper, n=2, op="raise"), 503, "InternalServerException", "Prediction failed")
    assert call(server, stepper, n=2).chunks == [b"step1 ", b"step2 "]


@pytest.mark.parametrize("op", ["raise", "exit"])
def test_a_failure_in_a_later_step_aborts(server: Server, stepper: str, op: str) -> None:
    """The client must not take the part for the whole."""
    with server.inference.connect() as connection:
        send(connection, stepper, n=3, op=op, at=2)
        connection.read_head()
        assert connection.read_chunk() == b"step1 "
        with pytest.raises(ConnectionError):
            connection.read_chunk()
    server.wait_ready("stepper")


def test_a_failure_concerns_all_that_are_in_the_step(server: Server, stepper: str) -> None:
    gate = server.gate()
    with server.inference.connect() as one, server.inference.connect() as two:
        send(one, stepper, n=1000, gate=gate.name, at=2)
        gate.wait_arrived()
        send(two, stepper, n=2, op="raise")
        server.wait_pending("stepper", 1)
        gate.open()
        assert_error(two.read_response(), 503, "InternalServerException", "Prediction failed")
        with pytest.raises(ConnectionError):
            one.read_response()


# -- descriptions ------------------------------------------------------------------------------------------------


@pytest.mark.fix
def test_a_customized_description_leaves_the_model_alone(server: Server, stepper: str) -> None:
    """TorchServe asks the handler again and again, and serves nothing any more."""
    gate = server.gate()
    with server.inference.connect() as one, server.management.connect() as two:
        send(one, stepper, n=3, show="size", gate=gate.name, at=2)
        gate.wait_arrived()
        two.send(encode("GET", "/models/stepper?customized=true", (), None))
        server.wait_pending("stepper", 1)
        gate.open()
        assert two.read_response().json()[0]["customizedMetadata"]["steps"] > 1
        assert one.read_response().chunks == [b"1 ", b"1 ", b"1 "]


def test_describe(server: Server, stepper: str) -> None:
    assert server.describe("stepper")["continuousBatching"] is True
