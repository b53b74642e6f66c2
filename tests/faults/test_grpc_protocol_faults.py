"""Clients that break the rules of HTTP/2 (RFC 9113, RFC 7541), or of gRPC over it: the server serves on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.faults.grpc_support import Bystander, start_target, stop_target
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
    Answer,
    Http2Client,
    call,
    call_headers,
    frame,
    literal,
    prediction,
    reset,
    settings_frame,
    window_update,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

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
        with contextlib.suppress(ConnectionError):
            client.ping()
        code = client.answers.get(3, Answer()).reset if client.goaway is None else client.goaway[1]
        assert code in {PROTOCOL_ERROR, STREAM_CLOSED}


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
        parts = [block[at : at + 10_000] for at in range(0, len(block), 10_000)]
        with contextlib.suppress(ConnectionError):  # in the middle, if it is that much
            for at, part in enumerate(parts):
                flags = END_HEADERS if at == len(parts) - 1 else 0
                client.send(frame(CONTINUATION if at else HEADERS, flags, 1, part))
            client.send(frame(DATA, END_STREAM, 1, prediction("noop")))
        if size > 10_000:
            client.read_refusal(1)
            return
        answer = client.read_answer(1)
        if size < 8_000:
            assert answer.predictions == [b"ok"]
        else:
            # TorchServe's status, or the one that gRPC has for it.
            assert answer.http_status == 431 or answer.status == 8
        assert_serves(client, 3)
