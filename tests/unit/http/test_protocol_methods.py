"""One connection, byte by byte: unknown methods, offers of other protocols, the end of a connection."""

from __future__ import annotations

import pytest
from tests.unit.http.support import Wire, get, post
from tests.unit.serving.support import on_loop


@pytest.mark.parametrize(
    "method", ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "FOO", "Xyzzy", "PROPFIND"]
)
@pytest.mark.parametrize("before", [b"", post(b"/first", b"body")])
@on_loop
async def test_any_method(method: str, before: bytes) -> None:
    wire = Wire()
    if before:
        wire.send(before)

    wire.send(method.encode() + b" /x HTTP/1.1\r\n\r\n")

    assert wire.seen[-1] == (method, b"/x", b"")
    assert wire.transport.written.count(b"HTTP/1.1 200 OK") == 1 + bool(before)


@on_loop
async def test_head_has_no_body() -> None:
    wire = Wire()

    wire.send(b"HEAD /x HTTP/1.1\r\n\r\n")

    written = wire.take()
    assert b"content-length: 2\r\n" in written
    assert written.endswith(b"\r\n\r\n")


UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")


@on_loop
async def test_upgrades_are_declined() -> None:
    wire = Wire()

    wire.send(get(b"/a", *UPGRADE) + get(b"/b"), get(b"/c", *UPGRADE), get(b"/d"))

    assert [target for _, target, _ in wire.seen] == [b"/a", b"/b", b"/c", b"/d"]
    assert wire.statuses == [200] * 4


@on_loop
async def test_the_body_of_a_request_for_an_upgrade_is_no_request() -> None:
    wire = Wire()

    wire.send(post(b"/a", get(b"/smuggled"), *UPGRADE) + get(b"/b"))

    assert wire.seen == [("POST", b"/a", get(b"/smuggled")), ("GET", b"/b", b"")]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(get(b"/1", b"Connection: close"), id="close"),
        pytest.param(b"GET /1 HTTP/1.0\r\n\r\n", id="HTTP/1.0"),
        pytest.param(post(b"/1", b"x" * 101, b"Connection: close"), id="too large"),
        pytest.param(get(b"/error"), id="error"),
    ],
)
@on_loop
async def test_what_follows_the_last_request_in_one_piece_is_not_handled(first: bytes) -> None:
    wire = Wire()
    wire.listener.errors = {b"/error"}

    wire.send(first + get(b"/2"))

    assert b"/2" not in [target for _, target, _ in wire.seen]
    assert len(wire.statuses) == 1
    assert len(wire.listener.logged) == (0 if b"101" in first else 1)


@pytest.mark.parametrize("size", [1, 2, 7, 20, 33, 64, 1000])
@on_loop
async def test_a_request_for_an_upgrade_cut_anywhere(size: int) -> None:
    wire = Wire()
    data = get(b"/a", *UPGRADE) + post(b"/b", get(b"/smuggled"), *UPGRADE) + get(b"/c")

    wire.send(*(data[at : at + size] for at in range(0, len(data), size)))

    # Served whole, or refused: but the body is never a request.
    assert wire.seen[0] == ("GET", b"/a", b"")
    assert b"/smuggled" not in [target for _, target, _ in wire.seen]
    assert wire.seen[1:] in ([], [("POST", b"/b", get(b"/smuggled")), ("GET", b"/c", b"")])
    assert wire.statuses in ([200, 400], [200, 200, 200])


@pytest.mark.parametrize("before", [b"", get(b"/first")])
@on_loop
async def test_a_body_is_left_alone(before: bytes) -> None:
    wire = Wire()
    body = b"\r\nUpgrade: h2c\r\n\r\nFOO / HTTP/1.1\r\nUpgrade: x\r\n\r\n"

    wire.send(before + post(b"/a", body) + post(b"/b", body))

    assert wire.seen[-2:] == [("POST", b"/a", body), ("POST", b"/b", body)]


@on_loop
async def test_a_body_that_looks_like_a_request() -> None:
    wire = Wire()
    body = b"FOO /x HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"

    head = post(b"/a", body)[: -len(body)]
    wire.send(head, *(body[at : at + 5] for at in range(0, len(body), 5)))

    assert wire.seen == [("POST", b"/a", body)]


@on_loop
async def test_handlers_see_the_header_of_a_declined_upgrade() -> None:
    wire = Wire()

    wire.send(post(b"/a", b"x", *UPGRADE))

    assert (b"Upgrade", b"h2c") in wire.headers()
