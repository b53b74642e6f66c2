"""One connection, byte by byte: what is malformed, too large, or not read."""

from __future__ import annotations

import pytest
from tests.unit.http.support import Wire, get, post
from tests.unit.serving.support import on_loop

from relight.api.http.protocol import MAX_HEADERS, MAX_REQUEST_LINE

LONG = b"POST /b HTTP/1.1\r\nContent-Length: 101\r\n"


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"\0" * 100,
        get(b"/" + b"x" * MAX_REQUEST_LINE),
        get(b"/", b"A: " + b"x" * MAX_HEADERS),
        get(b"/", *[b"A: b"] * (MAX_HEADERS // 4)),
        get(b"/", b"A" * MAX_HEADERS + b": b"),
        b"x" * 100_000,
    ],
)
@on_loop
async def test_malformed(data: bytes) -> None:
    wire = Wire()

    wire.send(data)

    assert wire.seen == []
    assert wire.take().startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
    assert wire.transport.eof
    wire.connection.connection_lost(None)


@on_loop
async def test_malformed_after_a_request_that_is_not_answered_yet() -> None:
    wire = Wire()
    wire.listener.hold = lambda _: True
    wire.send(get(b"/1"), b"nonsense\r\n\r\n", b"more nonsense\r\n\r\n")
    assert wire.take() == b""

    wire.listener.held[0].respond(200, b"", b"")

    assert wire.statuses == [200, 400]
    assert wire.transport.eof


@on_loop
async def test_a_head_that_never_ends() -> None:
    wire = Wire()
    sent = 0

    while not wire.transport.eof:
        wire.send(b"x" if sent else b"GET /")
        sent += 1
        assert sent < 10_000

    assert wire.statuses == [400]


@pytest.mark.parametrize(
    ("lines", "ok"),
    [
        (get(b"/" + b"x" * 4075), True),
        (get(b"/" + b"x" * 4090), False),
        (get(b"/", b"A: " + b"x" * (8190 - 5)), True),
        (get(b"/", b"A: " + b"x" * (8193 - 5)), False),
    ],
)
@on_loop
async def test_longest_head(lines: bytes, ok: bool) -> None:
    wire = Wire()

    wire.send(lines)

    assert bool(wire.seen) is ok


# -- sizes and expectations --------------------------------------------------------------------------------------

BARE_413 = b"HTTP/1.1 413 Request Entity Too Large\r\ncontent-length: 0\r\n"
BARE_417 = b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "answer", "closed"),
    [
        pytest.param(post(b"/b", b"x" * 101), BARE_413 + b"\r\n", False, id="length"),
        pytest.param(LONG + b"Expect: 100-continue\r\n\r\n", BARE_413 + b"\r\n", False, id="expect"),
        pytest.param(
            post(b"/b", b"x" * 101, b"Connection: close"), BARE_413 + b"connection: close\r\n\r\n", True, id="close"
        ),
        pytest.param(
            b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n%b\r\n40\r\n%b\r\n" % (b"x" * 64, b"x" * 64),
            BARE_413 + b"connection: close\r\n\r\n",
            True,
            id="chunked",
        ),
        pytest.param(post(b"/b", b"x", b"Expect: 200-ok"), BARE_417, False, id="other expectation"),
    ],
)
@on_loop
async def test_refused_without_the_usual_headers(data: bytes, answer: bytes, closed: bool) -> None:
    wire = Wire()

    wire.send(data)

    assert wire.take() == answer
    assert wire.seen == []
    assert wire.transport.eof is closed
    assert wire.listener.logged == ([] if b"413" in answer else [("POST", b"/b", 417, "/192.0.2.7:5000")])
    if not closed:
        wire.send(get(b"/next"))
        assert wire.statuses == [200]


@pytest.mark.parametrize("chunked", [False, True])
@on_loop
async def test_the_largest_body(chunked: bool) -> None:
    wire = Wire()
    body = b"x" * 100
    chunks = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n%b\r\n0\r\n\r\n" % body

    wire.send(chunks if chunked else post(b"/", body))

    assert wire.statuses == [200]
    assert wire.listener.exchanges[0].size == 100


@on_loop
async def test_a_body_that_is_refused_is_not_kept() -> None:
    wire = Wire()
    wire.send(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(100):
        wire.send(b"x" * 10_000)
    assert wire.connection._reading is None
    assert wire.statuses == [413]


@on_loop
async def test_continue() -> None:
    wire = Wire()
    wire.send(b"POST /a HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    assert wire.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.seen == []

    wire.send(b"ok")

    assert wire.seen == [("POST", b"/a", b"ok")]
    assert wire.statuses == [200]


@on_loop
async def test_no_continue_amid_the_answer_to_another_request() -> None:
    wire = Wire()
    wire.listener.hold = lambda exchange: exchange.target == b"/slow"
    wire.send(get(b"/slow"), b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert wire.take() == b""

    wire.send(b"ok")
    wire.listener.held[0].respond(200, b"", b"")

    assert wire.statuses == [200, 200]


# -- backpressure ------------------------------------------------------------------------------------------------


@on_loop
async def test_a_client_that_does_not_read_gets_no_more_of_its_requests_started() -> None:
    wire = Wire()
    wire.connection.pause_writing()

    wire.send(get(b"/1") + get(b"/2"))
    assert wire.seen == []
    wire.connection.resume_writing()

    assert wire.statuses == [200, 200]


@pytest.mark.parametrize("large", [False, True])
@on_loop
async def test_a_client_that_never_reads_is_dropped(large: bool) -> None:
    wire = Wire()
    wire.connection.pause_writing()

    wire.connection.write(b"x" * 1000)
    assert not wire.transport.aborted
    wire.connection.write_all([b"x" * 500, b"y" * 500]) if large else wire.connection.write(b"x")

    assert wire.transport.aborted


@on_loop
async def test_a_client_that_reads_may_be_sent_anything() -> None:
    wire = Wire()

    wire.connection.write_all([b"x" * 5000])

    assert not wire.transport.aborted
