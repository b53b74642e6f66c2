"""Streaming over HTTP (rest_api.md §3.12, row 116)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.raw import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import Server

STREAM = {"x-op": "stream"}
PARTS = [b"part0 ", b"part1 ", b"part2 ", b"last"]
CACHE = ["Pragma", "Cache-Control", "Expires"]


@pytest.fixture(scope="module")
def streamer(server: Server) -> Iterator[str]:
    """The path of a model with batch size 2."""
    with server.registered("swiss_v3.mar", "streamer", initial_workers=1, batch_size=2):
        yield "/predictions/streamer"


def test_row_116_stream(server: Server) -> None:
    with server.inference.connect() as connection:
        response = connection.request("POST", "/predictions/swiss", STREAM, b"x")
        assert (response.status, response.chunks) == (200, PARTS)
        assert response.header("ts_stream_next") == "true"
        assert response.names == ["ts_stream_next", "x-request-id", *CACHE, "transfer-encoding", "connection"]
        assert connection.request("GET", "/ping").status == 200


def test_content_type_set_before_the_first_chunk(server: Server) -> None:
    headers = {**STREAM, "x-ct": "text/event-stream"}
    response = server.inference.request("POST", "/predictions/swiss", headers, b"x")
    assert (response.header("content-type"), response.chunks) == ("text/event-stream", PARTS)
    assert response.names.index("content-type") < response.names.index("x-request-id")


def test_chunks_are_sent_at_once(server: Server) -> None:
    gate = server.gate()
    with server.inference.connect() as connection:
        connection.send(encode("POST", "/predictions/swiss", {**STREAM, "x-gate": gate.name}, b"x"))
        connection.read_head()
        assert connection.read_chunk() == PARTS[0]
        gate.open()
        assert [connection.read_chunk() for _ in range(4)] == [*PARTS[1:], b""]


def test_stream_with_an_ordinary_client(server: Server) -> None:
    with server.inference.client.stream("POST", "/predictions/swiss", headers=STREAM, content=b"x") as response:
        assert b"".join(response.iter_raw()) == b"".join(PARTS)


def test_streams_of_one_batch(server: Server, streamer: str) -> None:
    with server.inference.connect() as one, server.inference.connect() as two:
        for connection in (one, two):
            connection.send(encode("POST", streamer, STREAM, b"x"))
        for connection in (one, two):
            response = connection.read_response()
            assert (response.status, response.chunks) == (200, PARTS)


@pytest.mark.parametrize("then", ["raise", "exit"])
def test_failure_after_the_first_chunk_aborts(server: Server, streamer: str, then: str) -> None:
    """The client must not take the part for the whole."""
    with server.inference.connect() as connection:
        connection.send(encode("POST", streamer, {**STREAM, "x-then": then}, b"x"))
        status_line, _ = connection.read_head()
        assert b" 200 " in status_line
        assert connection.read_chunk() == PARTS[0]

        def read_on() -> None:
            while connection.read_chunk():
                pass
            pytest.fail("the stream was ended properly")

        with pytest.raises(ConnectionError):
            read_on()
    server.wait_ready("streamer")


def test_client_leaves_in_the_middle(server: Server) -> None:
    gate = server.gate()
    with server.inference.connect() as connection:
        connection.send(encode("POST", "/predictions/swiss", {**STREAM, "x-gate": gate.name}, b"x"))
        connection.read_head()
        gate.wait_arrived()
    gate.open()
    response = server.inference.request("POST", "/predictions/swiss", STREAM, b"x")
    assert response.chunks == PARTS


def test_no_intermediate_result_is_an_ordinary_answer(server: Server) -> None:
    response = server.inference.request("POST", "/predictions/noop", (), b"x")
    assert (response.header("content-length"), response.header("ts_stream_next")) == ("2", None)
