"""One connection, byte by byte: what is understood, in which order it is answered, what is kept open."""

from __future__ import annotations

import pytest
from tests.unit.http.support import CACHE, Wire, get, post
from tests.unit.serving.support import make_job, on_loop


@on_loop
async def test_a_request() -> None:
    wire = Wire()

    wire.send(b"POST /a?b=c HTTP/1.1\r\nHost: h\r\nX-Case: Kept\r\nContent-Length: 3\r\n\r\nxyz")

    (exchange,) = wire.listener.exchanges
    assert wire.seen == [("POST", b"/a?b=c", b"xyz")]
    assert (exchange.version, exchange.size) == ("HTTP/1.1", 3)
    assert exchange.headers == [(b"Host", b"h"), (b"X-Case", b"Kept"), (b"Content-Length", b"3")]
    assert wire.take() == (
        b"HTTP/1.1 200 OK\r\nx-request-id: %b\r\n%bcontent-length: 6\r\nconnection: keep-alive\r\n\r\n/a?b=c"
        % (exchange.request_id.encode(), CACHE)
    )
    assert wire.listener.logged == [("POST", b"/a?b=c", 200, "/192.0.2.7:5000")]


@pytest.mark.parametrize("size", [*range(1, 20), 40])
@on_loop
async def test_requests_cut_anywhere(size: int) -> None:
    wire = Wire()
    data = post(b"/a", b"one") + get(b"/b") + post(b"/c", b"three", b"X: y")

    wire.send(*(data[at : at + size] for at in range(0, len(data), size)))

    assert wire.seen == [("POST", b"/a", b"one"), ("GET", b"/b", b""), ("POST", b"/c", b"three")]
    assert wire.statuses == [200, 200, 200]


# -- what handlers see of the head -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        pytest.param(get(b"/"), [(b"content-length", b"0")], id="no body"),
        pytest.param(get(b"/", b"A: b"), [(b"A", b"b"), (b"content-length", b"0")], id="no body, a header"),
        pytest.param(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            [(b"A", b"b"), (b"content-length", b"5")],
            id="chunked",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nTrailer: t\r\n\r\n",
            [(b"content-length", b"1")],
            id="trailers",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
            [(b"Content-Length", b"1")],
            id="expect",
        ),
        pytest.param(
            get(b"/", b"A: 1", b"a: 2", b"A: 3"),
            [(b"A", b"1"), (b"a", b"2"), (b"A", b"3"), (b"content-length", b"0")],
            id="repeated",
        ),
    ],
)
@on_loop
async def test_headers_for_the_handler(data: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    wire = Wire()

    wire.send(data)

    assert wire.headers() == headers


@on_loop
async def test_headers_that_the_server_needs() -> None:
    wire = Wire()

    wire.send(get(b"/", b"authorization: first", b"Authorization: second", b"CONTENT-TYPE: text/plain"))

    (exchange,) = wire.listener.exchanges
    assert (exchange.authorization, exchange.content_type) == (b"first", b"text/plain")


@on_loop
async def test_each_request_has_its_own_headers_and_id() -> None:
    wire = Wire()

    wire.send(get(b"/a", b"Content-Type: a") + get(b"/b"))

    first, second = wire.listener.exchanges
    assert (first.content_type, second.content_type) == (b"a", None)
    assert first.request_id != second.request_id


# -- order -------------------------------------------------------------------------------------------------------


@on_loop
async def test_pipelined_requests_are_handled_one_after_the_other() -> None:
    wire = Wire()
    wire.listener.hold = lambda _: True

    wire.send(get(b"/1") + get(b"/2") + get(b"/3"))
    assert [target for _, target, _ in wire.seen] == [b"/1"]
    for number in range(3):
        wire.listener.held[number].respond(200, b"%d" % number, b"")

    assert [target for _, target, _ in wire.seen] == [b"/1", b"/2", b"/3"]
    assert [body[-1:] for body in wire.take().split(b"HTTP/1.1 200 OK")[1:]] == [b"0", b"1", b"2"]


@on_loop
async def test_nothing_is_answered_after_an_error() -> None:
    wire = Wire()
    wire.listener.hold = lambda _: True
    wire.send(get(b"/1") + get(b"/2"))

    wire.listener.held[0].respond(404, b"no")

    assert wire.statuses == [404]
    assert len(wire.seen) == 1
    assert wire.transport.eof


@on_loop
async def test_a_flood_of_pipelined_requests_is_not_read_on() -> None:
    wire = Wire()
    wire.listener.hold = lambda exchange: exchange.target == b"/slow"
    wire.send(get(b"/slow"))
    read = []
    for number in range(32):
        read.append(wire.transport.reading)
        wire.send(get(b"/%d" % number))
    read.append(wire.transport.reading)

    wire.listener.held[0].respond(200, b"", b"")

    assert read == [True] * 32 + [False]
    assert wire.transport.reading
    assert wire.statuses == [200] * 33


@on_loop
async def test_many_requests_in_one_piece_behind_a_slow_one() -> None:
    wire = Wire()
    wire.listener.hold = lambda exchange: exchange.target == b"/slow"
    wire.send(get(b"/slow") + get(b"/x") * 5000)

    wire.listener.held[0].respond(200, b"", b"")

    assert wire.statuses == [200] * 5001


@on_loop
async def test_an_answer_that_nobody_waits_for_any_more() -> None:
    wire = Wire()
    wire.listener.hold = lambda _: True
    wire.send(get(b"/1"))
    wire.connection.connection_lost(None)

    wire.listener.held[0].respond(200, b"", b"")

    assert wire.take() == b""


@on_loop
async def test_a_client_that_leaves_cancels_its_job() -> None:
    wire = Wire()
    wire.listener.hold = lambda _: True
    wire.send(get(b"/1") + get(b"/2"))
    job, reply = make_job()
    cancelled: list[object] = []
    job.on_cancel = cancelled.append
    wire.listener.held[0].job = job

    assert not wire.connection.eof_received()
    wire.connection.connection_lost(None)

    assert cancelled == [job]
    assert not reply.ended
    assert not wire.connection.busy
    assert wire.listener.connections == set()


# -- keep-alive --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status", "kept"),
    [
        (get(b"/"), 200, True),
        (get(b"/"), 302, True),
        (get(b"/"), 399, True),
        (get(b"/"), 400, False),
        (get(b"/"), 503, False),
        (get(b"/", b"Connection: close"), 200, False),
        (get(b"/", b"Connection: CLOSE"), 200, False),
        (get(b"/", b"Connection: keep-alive"), 200, True),
        (get(b"/", version=b"1.0"), 200, False),
        (get(b"/", b"Connection: keep-alive", version=b"1.0"), 200, True),
        (get(b"/", b"Connection: close"), 404, False),
    ],
)
@on_loop
async def test_keep_alive(data: bytes, status: int, kept: bool) -> None:
    wire = Wire()
    wire.listener.hold = lambda _: True
    wire.send(data)

    wire.listener.held[0].respond(status, b"", b"")

    assert (b"connection: keep-alive\r\n" in wire.transport.written) is kept
    assert (b"connection: close\r\n" in wire.transport.written) is not kept
    assert wire.transport.eof is not kept
    assert not wire.transport.closed
    assert not wire.transport.aborted


@on_loop
async def test_a_closed_connection_takes_nothing_more() -> None:
    wire = Wire()
    wire.send(get(b"/1", b"Connection: close"))

    wire.send(get(b"/2"))

    assert wire.statuses == [200]
    assert len(wire.seen) == 1
    wire.connection.connection_lost(None)


@on_loop
async def test_the_linger_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr("relight.api.http.protocol._LINGER", 0.001)
    wire = Wire()
    wire.send(get(b"/1", b"Connection: close"))

    await asyncio.sleep(0.01)

    assert wire.transport.closed


@pytest.mark.parametrize("busy", [False, True])
@on_loop
async def test_stopping(busy: bool) -> None:
    wire = Wire()
    wire.listener.hold = lambda _: busy
    wire.send(get(b"/1"))

    wire.connection.stop()
    assert wire.transport.eof is not busy
    for exchange in wire.listener.held:
        exchange.respond(200, b"", b"")

    assert wire.statuses == [200]
    assert wire.transport.eof
