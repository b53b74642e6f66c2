"""Clients that break HTTP/2's rules (RFC 9113, RFC 7541), or keep them to do harm: the server serves on."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.faults.grpc_support import Bystander, Measured, start_target, stop_target
from tests.faults.http2 import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    CONVERSE,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PING_PATH,
    PREDICT,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Client,
    call,
    call_headers,
    frame,
    literal,
    message,
    prediction,
    reset,
    settings_frame,
    window_update,
)
from tests.faults.support import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

KEPT = 15 * MIB
BLOCK = literal(call_headers(PREDICT))
OPEN = call(1, CONVERSE, end=False)
"""A call that goes on."""


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = start_target(make_server)
    yield server
    stop_target(server)


@pytest.fixture(autouse=True)
def bystander(target: Server) -> Iterator[Bystander]:
    """Somebody who must not notice anything."""
    made = Bystander(target)
    yield made
    made.finish()


def assert_serves(client: Http2Client, stream: int) -> None:
    """See that the connection can still be used."""
    client.send(call(stream, PREDICT, prediction("noop")))
    answer = client.read_answer(stream)
    assert (answer.predictions, answer.status) == ([b"ok"], 0)


# -- no HTTP/2 at all --------------------------------------------------------------------------------------------------

NO_HTTP2 = {
    "http1": b"GET /ping HTTP/1.1\r\nHost: test\r\n\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    "zeros": b"\0" * 10_000,
    "almost": PREFACE[:-1] + b"\r" + settings_frame({}),
    "lower": PREFACE.lower() + settings_frame({}),
    "twice": PREFACE + PREFACE,
    "frames": settings_frame({}) + call(1, PREDICT, prediction("noop")),
}


@pytest.mark.parametrize("data", NO_HTTP2.values(), ids=NO_HTTP2.keys())
def test_no_http2(target: Server, data: bytes) -> None:
    with Http2Client(target, bare=True) as client:
        client.send(data)
        assert client.read_to_end() != 0


# -- errors of a connection --------------------------------------------------------------------------------------------

# What is sent after the preface, with the code that RFC 9113 (or RFC 7541) asks for.
CONNECTION_ERRORS = {
    "frame-too-large": (frame(DATA, 0, 1, b"x", size=(1 << 24) - 1), FRAME_SIZE_ERROR),
    "headers-too-large": (frame(HEADERS, END_HEADERS, 1, b"x", size=(1 << 24) - 1), FRAME_SIZE_ERROR),
    "settings-size": (frame(SETTINGS, 0, 0, b"12345"), FRAME_SIZE_ERROR),
    "settings-ack-size": (frame(SETTINGS, ACK, 0, b"123456"), FRAME_SIZE_ERROR),
    "settings-stream": (frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "settings-push": (settings_frame({ENABLE_PUSH: 2}), PROTOCOL_ERROR),
    "settings-window": (settings_frame({INITIAL_WINDOW_SIZE: 1 << 31}), FLOW_CONTROL_ERROR),
    "settings-frame-small": (settings_frame({MAX_FRAME_SIZE: 16_383}), PROTOCOL_ERROR),
    "settings-frame-large": (settings_frame({MAX_FRAME_SIZE: 1 << 24}), PROTOCOL_ERROR),
    "settings-overflow": (
        OPEN + window_update(1, LARGEST_WINDOW - 65_535) + settings_frame({INITIAL_WINDOW_SIZE: 100_000}),
        FLOW_CONTROL_ERROR,
    ),
    "ping-size": (frame(PING, 0, 0, b"1234567"), FRAME_SIZE_ERROR),
    "ping-stream": (frame(PING, 0, 1, b"12345678"), PROTOCOL_ERROR),
    "window-size": (frame(WINDOW_UPDATE, 0, 0, b"123"), FRAME_SIZE_ERROR),
    "window-nothing": (window_update(0, 0), PROTOCOL_ERROR),
    "window-overflow": (window_update(0, LARGEST_WINDOW), FLOW_CONTROL_ERROR),
    "window-idle": (window_update(1, 1), PROTOCOL_ERROR),
    "reset-idle": (reset(1), PROTOCOL_ERROR),
    "reset-nothing": (reset(0), PROTOCOL_ERROR),
    "reset-size": (OPEN + frame(RST_STREAM, 0, 1, b"123"), FRAME_SIZE_ERROR),
    "data-nothing": (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "data-idle": (frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "data-idle-empty": (frame(DATA, END_STREAM, 1), PROTOCOL_ERROR),
    "data-padding": (OPEN + frame(DATA, PADDED, 1, b"\x05xxxx"), PROTOCOL_ERROR),
    "data-padding-size": (OPEN + frame(DATA, PADDED, 1), FRAME_SIZE_ERROR),
    "headers-nothing": (frame(HEADERS, END_HEADERS, 0, BLOCK), PROTOCOL_ERROR),
    "headers-even": (frame(HEADERS, END_HEADERS, 2, BLOCK), PROTOCOL_ERROR),
    "headers-padding": (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK), PROTOCOL_ERROR),
    "headers-priority": (frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"123"), PROTOCOL_ERROR),
    "headers-table-size": (frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\x03" + BLOCK), COMPRESSION_ERROR),
    "headers-index": (frame(HEADERS, END_HEADERS, 1, b"\x80"), COMPRESSION_ERROR),
    "headers-index-beyond": (frame(HEADERS, END_HEADERS, 1, b"\xff\x50"), COMPRESSION_ERROR),
    "headers-index-endless": (frame(HEADERS, END_HEADERS, 1, b"\xff" * 50), COMPRESSION_ERROR),
    "headers-cut": (frame(HEADERS, END_HEADERS, 1, BLOCK[:-3]), COMPRESSION_ERROR),
    "headers-huffman": (frame(HEADERS, END_HEADERS, 1, b"\x00\x84\xff\xff\xff\xff\x01x"), COMPRESSION_ERROR),
    "headers-then-data": (frame(HEADERS, 0, 1, BLOCK) + frame(DATA, 0, 1), PROTOCOL_ERROR),
    "headers-then-ping": (frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, b"12345678"), PROTOCOL_ERROR),
    "headers-then-headers": (frame(HEADERS, 0, 1, BLOCK) + frame(HEADERS, END_HEADERS, 3, BLOCK), PROTOCOL_ERROR),
    "headers-then-other": (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, BLOCK), PROTOCOL_ERROR),
    "continuation": (frame(CONTINUATION, END_HEADERS, 1, BLOCK), PROTOCOL_ERROR),
    "continuation-late": (OPEN + frame(CONTINUATION, END_HEADERS, 1, BLOCK), PROTOCOL_ERROR),
    "push": (OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + BLOCK), PROTOCOL_ERROR),
    "goaway-stream": (frame(GOAWAY, 0, 1, b"\0" * 8), PROTOCOL_ERROR),
    "goaway-size": (frame(GOAWAY, 0, 0, b"\0" * 7), FRAME_SIZE_ERROR),
    "priority-nothing": (frame(PRIORITY, 0, 0, b"12345"), PROTOCOL_ERROR),
}


def test_stream_with_a_number_below_the_last(target: Server) -> None:
    """Its call is not served; the client must not wait for it."""
    with Http2Client(target) as client:
        assert_serves(client, 5)
        client.send(call(3, PREDICT, prediction("noop")))
        assert client.read_to_end() in {PROTOCOL_ERROR, STREAM_CLOSED}


@pytest.mark.parametrize(("data", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS.keys())
def test_errors_of_a_connection(target: Server, data: bytes, code: int) -> None:
    with Http2Client(target) as client:
        client.ping()
        client.send(data)
        with pytest.raises(ConnectionError):
            client.ping()
        assert client.goaway is not None
        assert client.goaway[1] == code


# What is sent while stream 1 is open; the stream ends with that code, or the connection does.
STREAM_ERRORS = {
    "window-nothing": (window_update(1, 0), PROTOCOL_ERROR),
    "window-overflow": (window_update(1, LARGEST_WINDOW), FLOW_CONTROL_ERROR),
    "data-after-end": (frame(DATA, END_STREAM, 1) + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    "headers-after-end": (frame(DATA, END_STREAM, 1) + frame(HEADERS, END_HEADERS, 1, BLOCK), STREAM_CLOSED),
    "headers-without-end": (frame(HEADERS, END_HEADERS, 1, literal([("x-more", "1")])), PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("data", "code"), STREAM_ERRORS.values(), ids=STREAM_ERRORS.keys())
def test_errors_of_a_stream(target: Server, data: bytes, code: int) -> None:
    gate = target.gate()
    with Http2Client(target) as client:
        client.send(call(1, PREDICT, prediction("m", mode="pid", gate=gate.name), end=False))
        client.ping()
        client.send(data)
        try:
            answer = client.read_answer(1)
        except ConnectionError:
            assert client.goaway is not None
            assert client.goaway[1] == code
        else:
            assert answer.reset in {code, PROTOCOL_ERROR}, answer
            assert_serves(client, 3)
    gate.open()


# What is odd, and allowed: a call is answered before and after.
HARMLESS = {
    "unknown-frame": frame(0x77, 0xFF, 3, b"anything"),
    "unknown-frame-on-connection": frame(0xFA, 0, 0, b"x" * 10_000),
    "unknown-setting": settings_frame({0x99: 1, 0x3: 0}),
    "no-settings": settings_frame({}),
    "settings-ack": frame(SETTINGS, ACK),
    "push-off": settings_frame({ENABLE_PUSH: 0}),
    "small-table": settings_frame({HEADER_TABLE_SIZE: 0}),
    "large-table": settings_frame({HEADER_TABLE_SIZE: 0xFFFFFFFF}),
    "ping-ack": frame(PING, ACK, 0, b"12345678"),
    "priority": frame(PRIORITY, 0, 9, b"12345"),
    "priority-idle": frame(PRIORITY, 0, 2, b"12345"),
    "window-after-end": window_update(1, 10) + window_update(1, LARGEST_WINDOW),
    "reset-after-end": reset(1) + reset(1),
    "reserved-bit": frame(PING, 0, 1 << 31, b"12345678"),
    "goaway": frame(GOAWAY, 0, 0, b"\0" * 8 + b"bye"),
}


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_is_odd_and_allowed(target: Server, data: bytes) -> None:
    with Http2Client(target) as client:
        assert_serves(client, 1)
        client.send(data)
        client.ping()
        assert_serves(client, 3)


def test_padding_priority_and_continuations(target: Server) -> None:
    """A call as odd as it may be written."""
    body = prediction("noop")
    cut = len(BLOCK) // 2
    head = b"\x03" + b"\x80\0\0\0\xff" + BLOCK[:cut] + b"\0\0\0"
    data = [
        frame(HEADERS, PADDED | WITH_PRIORITY, 7, head),
        frame(CONTINUATION, 0, 7),
        frame(CONTINUATION, 0, 7, BLOCK[cut:-1]),
        frame(CONTINUATION, END_HEADERS, 7, BLOCK[-1:]),
        frame(DATA, PADDED, 7, b"\xff" + body[:3] + b"\0" * 255),
        frame(DATA, PADDED, 7, b"\0"),
        frame(0x55, 0, 7, b"grease"),
        frame(DATA, PADDED, 7, b"\0" + body[3:]),
        frame(HEADERS, END_HEADERS | END_STREAM, 7, literal([("x-trailer", "1")])),
    ]
    with Http2Client(target) as client:
        client.send(b"".join(data))
        assert client.read_answer(7).predictions == [b"ok"]
        assert_serves(client, 101)


# -- requests that are no gRPC -----------------------------------------------------------------------------------------

GRPC = {":method": "POST", ":scheme": "http", ":path": PREDICT, ":authority": "t", "content-type": "application/grpc"}
NO_GRPC = {
    "get": {**GRPC, ":method": "GET"},
    "content-type": {**GRPC, "content-type": "application/json"},
    "no-content-type": {key: value for key, value in GRPC.items() if key != "content-type"},
    "no-path": {key: value for key, value in GRPC.items() if key != ":path"},
    "no-method": {key: value for key, value in GRPC.items() if key != ":method"},
    "nothing": {},
    "path": {**GRPC, ":path": "*"},
    "empty-path": {**GRPC, ":path": ""},
    "half-path": {**GRPC, ":path": "/x"},
    "odd-path": {**GRPC, ":path": "/" + "\xff" * 100},
    "long-path": {**GRPC, ":path": "/a/" + "b" * 5000},
    "upper": {**GRPC, "X-Upper": "1"},
    "connection": {**GRPC, "connection": "keep-alive"},
    "late-pseudo": {"content-type": "application/grpc", **GRPC},
    "unknown-pseudo": {":foo": "1", **GRPC},
    "encoding": {**GRPC, "grpc-encoding": "deflate-9000"},
    "line": {**GRPC, "x-line": "a\r\nb: c"},
    "status": {**GRPC, ":status": "200"},
}


@pytest.mark.parametrize("headers", NO_GRPC.values(), ids=NO_GRPC.keys())
def test_requests_that_are_no_grpc(target: Server, headers: dict[str, str]) -> None:
    """They are refused, or taken for what they mean; the connection stays."""
    with Http2Client(target) as client:
        for stream in (1, 3):  # the second time the same block may be known
            client.send(frame(HEADERS, END_HEADERS, stream, literal(headers.items())))
            client.send(frame(DATA, END_STREAM, stream, prediction("noop")))
            answer = client.read_answer(stream)
            assert answer.status is not None or answer.http_status not in {None, 200} or answer.reset, answer
        assert_serves(client, 5)


@pytest.mark.parametrize("size", [7_000, 9_000, 20_000, 60_000, 200_000])
def test_large_headers(target: Server, size: int) -> None:
    """More than 8 kB are refused, far more with the connection (grpc_api.md §9)."""
    block = literal([*call_headers(PREDICT), ("x-large", "x" * size)])
    with Http2Client(target) as client:
        client.send(frame(HEADERS, 0, 1, block[:5000]))
        parts = [block[at : at + 10_000] for at in range(5000, len(block), 10_000)]
        for part in parts[:-1]:
            client.send(frame(CONTINUATION, 0, 1, part))
        client.send(frame(CONTINUATION, END_HEADERS, 1, parts[-1]))
        client.send(frame(DATA, END_STREAM, 1, prediction("noop")))
        if size > 10_000:
            answer_or_end(client, 1)
            return
        answer = client.read_answer(1)
        if size < 8_000:
            assert answer.predictions == [b"ok"]
        else:
            # TorchServe's status, or the one that gRPC has for it.
            assert answer.http_status == 431 or answer.status == 8
        assert_serves(client, 3)


# -- floods ------------------------------------------------------------------------------------------------------------


def flood(client: Http2Client, data: bytes, megabytes: int) -> None:
    """Send without reading, as much as is said or as the server takes."""
    client.socket.settimeout(2)  # where the server does not read on, there is nothing more to be seen
    data *= max(1, 100_000 // len(data))
    try:
        for _ in range(megabytes * MIB // len(data) + 1):
            client.send(data)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        client.socket.settimeout(30)


EMPTY = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"")
FLOODS = {
    "ping": frame(PING, 0, 0, b"12345678"),
    "ping-ack": frame(PING, ACK, 0, b"12345678"),
    "settings": settings_frame({}),
    "settings-table": settings_frame({HEADER_TABLE_SIZE: 0}) + settings_frame({HEADER_TABLE_SIZE: 4096}),
    "settings-window": settings_frame({INITIAL_WINDOW_SIZE: 1}) + settings_frame({INITIAL_WINDOW_SIZE: 70_000}),
    "settings-large": frame(SETTINGS, 0, 0, struct.pack(">HI", 0x77, 1) * 2500),
    "window": OPEN and window_update(1, 1),
    "priority": frame(PRIORITY, 0, 3, b"12345"),
    "data-empty": frame(DATA, 0, 1),
    "data-padding": frame(DATA, PADDED, 1, b"\xff" + b"\0" * 255),
    "unknown": frame(0x42, 0, 0),
    "goaway": frame(GOAWAY, 0, 0, b"\0" * 8),
    "reset": reset(1),
}


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS.keys())
def test_floods_of_frames(target: Server, bystander: Bystander, data: bytes) -> None:
    """A client that keeps the server busy with nothing is sent away, or waits; nothing piles up for it."""
    measured = Measured(target, KEPT)
    with Http2Client(target) as client:
        client.send(OPEN)
        flood(client, data, 20)
        bystander.check()
        assert measured.grown < KEPT
    measured.assert_back()


@pytest.mark.parametrize("piece", [b"", b"x", b"\x00\x01x\x01y", b"\x00" * 16_000])
def test_header_blocks_that_do_not_end(target: Server, bystander: Bystander, piece: bytes) -> None:
    measured = Measured(target, KEPT)
    with Http2Client(target) as client:
        client.send(frame(HEADERS, 0, 1, BLOCK))
        flood(client, frame(CONTINUATION, 0, 1, piece), 20)
        assert client.read_to_end() != 0, "the connection was not broken off with an error"
    assert measured.grown < KEPT
    bystander.check()
    measured.assert_back()


def test_header_bomb(target: Server, bystander: Bystander) -> None:
    """A kilobyte or two that mean fifty megabytes of headers."""
    measured = Measured(target, KEPT)
    with Http2Client(target) as client:
        # One large header into the table, and then an index of one byte for each time that it is meant.
        first = BLOCK + b"\x40" + literal([("x", "y" * 4000)])[1:]
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, first))
        client.ping()
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, BLOCK + b"\xbe" * 15_000))
        answer_or_end(client, 3)
        assert measured.grown < KEPT
    bystander.check()
    measured.assert_back()


def answer_or_end(client: Http2Client, stream: int) -> None:
    """Wait until the call has been refused, or the connection been ended."""
    try:
        answer = client.read_answer(stream)
    except ConnectionError:
        return
    assert answer.http_status != 200 or answer.status, answer


RESETS = 20_000


@pytest.mark.parametrize("path", [PREDICT, CONVERSE, PING_PATH, "/no/Such"])
def test_rapid_resets(target: Server, bystander: Bystander, path: str) -> None:
    """Calls that are given up as soon as they are made, as fast as they can be sent."""
    measured = Measured(target, KEPT)
    with Http2Client(target) as client:
        client.socket.settimeout(5)
        try:
            for first in range(1, 2 * RESETS, 200):
                streams = range(first, first + 200, 2)
                body = prediction("streamer", "s", n="1")
                client.send(b"".join(call(stream, path, body) + reset(stream) for stream in streams))
        except (TimeoutError, ConnectionError):
            pass
        bystander.check()
        assert measured.grown < KEPT
    measured.assert_back()


def test_more_data_than_there_is_room_for(target: Server, bystander: Bystander) -> None:
    """The server names its windows, and a client that does not care is sent away (or its stream is)."""
    measured = Measured(target, KEPT)
    with Http2Client(target) as client:
        client.ping()
        # A call whose message is longer than any request may be would be refused for that.
        client.send(call(1, CONVERSE, message(b"x" * 1000, size=6_000_000), end=False))
        client.ping()
        flood(client, frame(DATA, 0, 1, b"x" * 16_384), 64)
        answer_or_end(client, 1)
        assert measured.grown < KEPT
    bystander.check()
    measured.assert_back()
