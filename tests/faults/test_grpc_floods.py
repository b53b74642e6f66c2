"""Clients that keep the rules of HTTP/2, or most of them, to do harm: the server serves on."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.faults.grpc_support import Bystander, Measured, start_target, stop_target
from tests.faults.http2 import (
    ACK,
    CONTINUATION,
    CONVERSE,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PING_PATH,
    PREDICT,
    PRIORITY,
    SETTINGS,
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


FLOODS = {
    "ping": frame(PING, 0, 0, b"12345678"),
    "ping-ack": frame(PING, ACK, 0, b"12345678"),
    "settings": settings_frame({}),
    "settings-table": settings_frame({HEADER_TABLE_SIZE: 0}) + settings_frame({HEADER_TABLE_SIZE: 4096}),
    "settings-window": settings_frame({INITIAL_WINDOW_SIZE: 1}) + settings_frame({INITIAL_WINDOW_SIZE: 70_000}),
    "settings-large": frame(SETTINGS, 0, 0, struct.pack(">HI", 0x77, 1) * 2500),
    "window": window_update(1, 1),
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
        client.read_refusal(3)
        assert measured.grown < KEPT
    bystander.check()
    measured.assert_back()


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
        client.read_refusal(1)
        assert measured.grown < KEPT
    bystander.check()
    measured.assert_back()
