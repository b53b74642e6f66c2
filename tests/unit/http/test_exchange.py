"""Answers to the byte: JSON, heads, streams, headers of handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.http.support import CACHE, Wire, get
from tests.unit.serving.support import on_loop

from relight.api.http.exchange import header_lines, phrase_of
from relight.api.http.json_text import dump, error_body, status_body
from relight.errors import InternalServerError, ModelNotFoundError
from relight.wire.messages import Answer

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange

HANDLER = {"X-Mine": "yes", "content-type": "text/plain"}
CORS = b"access-control-allow-origin: *\r\naccess-control-allow-methods: GET\r\n"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"status": "Healthy"}, '{\n  "status": "Healthy"\n}\n'),
        ({}, "{}\n"),
        ([], "[]\n"),
        ({"a": [], "b": {}}, '{\n  "a": [],\n  "b": {}\n}\n'),
        ({"a": [1, {"b": True}]}, '{\n  "a": [\n    1,\n    {\n      "b": true\n    }\n  ]\n}\n'),
        ({"é中": "<&>='\"\\\n\t\x01"}, '{\n  "é中": "<&>=\'\\"\\\\\\n\\t\\u0001"\n}\n'),
        ("\U0001f600", '"\U0001f600"\n'),
    ],
)
def test_json(document: object, text: str) -> None:
    assert dump(document) == text.encode()


def test_json_of_a_text_that_is_no_unicode() -> None:
    assert dump("\udcff") == b'"\xed\xb3\xbf"\n'


def test_error_and_status_bodies() -> None:
    assert error_body(ModelNotFoundError("Model not found: m")) == (
        b'{\n  "code": 404,\n  "type": "ModelNotFoundException",\n  "message": "Model not found: m"\n}\n'
    )
    assert error_body(InternalServerError("x", 513)) == (
        b'{\n  "code": 513,\n  "type": "InternalServerException",\n  "message": "x"\n}\n'
    )
    assert status_body("Healthy") == b'{\n  "status": "Healthy"\n}\n'
    assert len(status_body("Healthy")) == 26


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (200, "OK"),
        (404, "Not Found"),
        (413, "Request Entity Too Large"),
        (414, "Request-URI Too Long"),
        (503, "Service Unavailable"),
        (507, "Insufficient Storage"),
        (299, "Success (299)"),
        (499, "Client Error (499)"),
        (513, "Server Error (513)"),
        (700, "Unknown Status (700)"),
    ],
)
def test_phrases(status: int, phrase: str) -> None:
    assert phrase_of(status) == phrase


@pytest.mark.parametrize(
    ("headers", "lines"),
    [
        (None, b""),
        ({}, b""),
        ({"A": "b", "c": "D"}, b"A: b\r\nc: D\r\n"),
        ({"X-Request-Id": "1", "pragma": "2", "Cache-Control": "3", "EXPIRES": "4"}, b""),
        ({"Content-Length": "9", "Connection": "close", "Transfer-Encoding": "chunked"}, b""),
        ({"Keep-Alive": "1", "Upgrade": "h2c", "ts_stream_next": "true"}, b""),
        ({"A": "café 中"}, b"A: caf\xe9 ?\r\n"),
        ({"Set-Cookie": "a=b", "content-type": "x"}, b"Set-Cookie: a=b\r\ncontent-type: x\r\n"),
    ],
)
def test_headers_of_a_handler(headers: dict[str, str] | None, lines: bytes) -> None:
    assert header_lines(headers) == lines


async def exchange_of(data: bytes, cors: bytes = b"") -> tuple[Wire, Exchange, bytes]:
    """A connection, its request, and the header line with the request's id."""
    wire = Wire()
    wire.connection.cors = cors
    wire.connection.common_headers = cors + CACHE
    wire.listener.hold = lambda _: True
    wire.send(data)
    (exchange,) = wire.listener.held
    return wire, exchange, b"x-request-id: %b\r\n" % exchange.request_id.encode()


@pytest.mark.parametrize(
    ("answer", "head", "closed"),
    [
        (Answer(4), b"HTTP/1.1 200 OK\r\nID", False),
        (Answer(4, 200, None, HANDLER), b"HTTP/1.1 200 OK\r\nX-Mine: yes\r\ncontent-type: text/plain\r\nID", False),
        (Answer(4, 201, "Made it"), b"HTTP/1.1 201 Made it\r\nID", False),
        (Answer(4, 418, "I am a teapot"), b"HTTP/1.1 418 I am a teapot\r\nID", True),
        (Answer(4, 200, "caf\u00e9 \u4e2d"), b"HTTP/1.1 200 caf\xe9 ?\r\nID", False),
        (Answer(4, 999), b"HTTP/1.1 999 Unknown Status (999)\r\nID", True),
    ],
)
@on_loop
async def test_answers_of_a_handler(answer: Answer, head: bytes, closed: bool) -> None:
    wire, exchange, line = await exchange_of(get(b"/"))

    exchange.finish(answer, memoryview(b"body"))

    connection = b"close" if closed else b"keep-alive"
    assert wire.take() == (
        head.replace(b"ID", line) + CACHE + b"content-length: 4\r\nconnection: %b\r\n\r\nbody" % connection
    )


@pytest.mark.parametrize("status", [204, 304])
@on_loop
async def test_answers_without_a_body(status: int) -> None:
    wire, exchange, line = await exchange_of(get(b"/"))

    exchange.finish(Answer(4, status, "None"), b"body")

    assert wire.take() == b"HTTP/1.1 %d None\r\n%b%bconnection: keep-alive\r\n\r\n" % (status, line, CACHE)


@on_loop
async def test_a_large_answer_is_not_joined() -> None:
    wire, exchange, _ = await exchange_of(get(b"/"))
    body = bytes(100_000)

    exchange.finish(Answer(len(body)), body)

    head, _, written = wire.take().partition(b"\r\n\r\n")
    assert written == body
    assert b"content-length: 100000" in head


@on_loop
async def test_an_error() -> None:
    wire, exchange, line = await exchange_of(get(b"/"))
    body = error_body(ModelNotFoundError("no"))

    exchange.fail(ModelNotFoundError("no"))
    exchange.fail(ModelNotFoundError("again"))

    assert not wire.transport.aborted or wire.transport.eof
    assert wire.take() == (
        b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n%b%bcontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (line, CACHE, len(body), body)
    )


@on_loop
async def test_only_the_first_answer_counts() -> None:
    wire, exchange, _ = await exchange_of(get(b"/"))
    exchange.respond(200, b"one")
    wire.take()

    exchange.respond(200, b"two")

    assert wire.take() == b""


@on_loop
async def test_cors() -> None:
    wire, exchange, line = await exchange_of(get(b"/"), CORS)

    exchange.respond(200, b"", b"")

    assert wire.take().startswith(b"HTTP/1.1 200 OK\r\n" + line + CORS + CACHE)


@on_loop
async def test_cors_headers_of_a_handler_replace_those_of_the_server() -> None:
    wire, exchange, line = await exchange_of(get(b"/"), CORS)

    exchange.finish(Answer(0, 200, None, {"Access-Control-Allow-Origin": "me"}), b"")

    assert wire.take().startswith(
        b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: me\r\n"
        + line
        + b"access-control-allow-methods: GET\r\nPragma"
    )


# -- streams -----------------------------------------------------------------------------------------------------

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nts_stream_next: true\r\ncontent-type: text/event-stream\r\n"
EVENTS = Answer(0, 200, None, {"content-type": "text/event-stream"})


@on_loop
async def test_a_stream() -> None:
    wire, exchange, line = await exchange_of(get(b"/"))

    exchange.chunk(EVENTS, b"part0 ")
    assert wire.take() == (
        STREAM_HEAD + line + CACHE + b"transfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n6\r\npart0 \r\n"
    )
    exchange.chunk(Answer(0, 404), b"x" * 17)
    assert wire.take() == b"11\r\n" + b"x" * 17 + b"\r\n"
    exchange.chunk(EVENTS, b"")
    assert wire.take() == b""
    exchange.finish(Answer(4, 418), b"last")

    assert wire.take() == b"4\r\nlast\r\n0\r\n\r\n"
    assert wire.listener.logged == [("GET", b"/", 200, "/192.0.2.7:5000")]
    assert not wire.transport.eof


@on_loop
async def test_a_stream_with_an_empty_end() -> None:
    wire, exchange, _ = await exchange_of(get(b"/"))
    exchange.chunk(EVENTS, b"x")
    wire.take()

    exchange.finish(Answer(0), b"")

    assert wire.take() == b"0\r\n\r\n"


@on_loop
async def test_a_stream_that_fails_is_broken_off() -> None:
    wire, exchange, _ = await exchange_of(get(b"/"))
    exchange.chunk(EVENTS, b"x")
    wire.take()
    exchange.chunk(EVENTS, b"y")

    exchange.fail(InternalServerError("no"))

    assert wire.take() == b"1\r\ny\r\n"
    assert wire.transport.aborted


@on_loop
async def test_a_stream_for_http_1_0_ends_with_the_connection() -> None:
    wire, exchange, line = await exchange_of(get(b"/", b"Connection: keep-alive", version=b"1.0"))

    exchange.chunk(EVENTS, b"part")
    exchange.finish(Answer(4), b"last")

    assert wire.take() == STREAM_HEAD + line + CACHE + b"connection: close\r\n\r\npartlast"
    assert wire.transport.eof


@on_loop
async def test_a_stream_for_head_has_no_chunks() -> None:
    wire, exchange, _ = await exchange_of(b"HEAD / HTTP/1.1\r\n\r\n")

    exchange.chunk(EVENTS, b"part")
    exchange.finish(Answer(4), b"last")

    assert wire.take().endswith(b"\r\n\r\n")
    assert wire.listener.logged


@on_loop
async def test_a_stream_with_an_error_status_closes() -> None:
    wire, exchange, _ = await exchange_of(get(b"/"))

    exchange.chunk(Answer(0, 503), b"x")
    exchange.finish(Answer(0), b"")

    assert wire.take().startswith(b"HTTP/1.1 503 Service Unavailable\r\nts_stream_next: true\r\n")
    assert wire.transport.eof
