"""The worker's end of the channel."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.runtime.channel import Channel
from relight.wire.frames import HEADER, PROTOCOL_VERSION, FrameDecoder, WireError, encode_head

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = bytes(range(256)) * 1024
"""A payload that gets a buffer of its own."""


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    channel = Channel(theirs)
    with ours:
        yield channel, ours
    channel.close()


def frame(kind: int, message: Any, payload: bytes = b"") -> bytes:
    return encode_head(kind, message, len(payload)) + payload


def feed(sock: socket.socket, *pieces: bytes) -> threading.Thread:
    """Send from a thread, for more than a socket holds; then close."""

    def send() -> None:
        for piece in pieces:
            sock.sendall(piece)
        sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def received(channel: Channel) -> list[tuple[int, bytes, bytes]]:
    frames = []
    while (got := channel.receive()) is not None:
        frames.append((got.kind, bytes(got.meta), bytes(got.payload)))
    return frames


def test_frames(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    thread = feed(sock, frame(1, "a"), frame(2, "b", b"payload"), frame(3, "c", LARGE), frame(4, "d", b"after"))

    frames = received(channel)
    thread.join()

    assert [(kind, payload) for kind, _, payload in frames] == [(1, b""), (2, b"payload"), (3, LARGE), (4, b"after")]
    assert [meta for _, meta, _ in frames] == [b"\xa1a", b"\xa1b", b"\xa1c", b"\xa1d"]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 100, 32 * 1024 - 1, 32 * 1024, 100_000, 300_000]), min_size=1, max_size=8),
    st.lists(st.sampled_from([1, 40, 70_000]), min_size=1, max_size=4),
    st.integers(1, 200_000),
)
def test_frames_across_the_ends_of_the_buffer(sizes: list[int], metas: list[int], step: int) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(theirs)
        texts = ["m" * metas[index % len(metas)] for index in range(len(sizes))]
        data = b"".join(frame(index, texts[index], LARGE[:size] or b"") for index, size in enumerate(sizes))
        size_of = [len(LARGE[:size]) for size in sizes]
        thread = feed(ours, *(data[at : at + step] for at in range(0, len(data), step)))
        frames = received(channel)
        thread.join()
        channel.close()

    assert [(kind, len(payload)) for kind, _, payload in frames] == list(enumerate(size_of))
    assert all(payload == LARGE[: len(payload)] for _, _, payload in frames)


def test_a_struct_larger_than_the_buffer(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    text = "x" * 1_000_000
    thread = feed(sock, frame(1, "first") + frame(2, text, b"body") + frame(3, "last"))

    frames = received(channel)
    thread.join()

    assert [(kind, len(meta)) for kind, meta, _ in frames] == [(1, 6), (2, 1_000_005), (3, 5)]


def test_a_large_payload_belongs_to_the_caller(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    thread = feed(sock, frame(1, "", LARGE), frame(2, "", LARGE[::-1]))

    first = channel.receive()
    assert first is not None
    second = channel.receive()
    thread.join()

    assert isinstance(first.payload, memoryview)
    assert isinstance(first.payload.obj, bytearray)
    assert len(first.payload.obj) == len(LARGE)
    assert bytes(first.payload) == LARGE
    assert second is not None
    assert second.payload == LARGE[::-1]


def test_a_small_payload_stays_valid(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    sock.sendall(frame(1, "", b"one") + frame(2, "", b"two"))

    first, second = channel.receive(), channel.receive()

    assert first is not None
    assert second is not None
    assert (first.payload, second.payload) == (b"one", b"two")


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 18, 20, 40_000])
def test_the_end_of_the_stream(pair: tuple[Channel, socket.socket], cut: int) -> None:
    channel, sock = pair
    thread = feed(sock, frame(1, "meta", LARGE)[:cut])

    assert channel.receive() is None
    thread.join()


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(1, PROTOCOL_VERSION + 1, 0, 0, 0),
        HEADER.pack(1, PROTOCOL_VERSION, 1, 0, 0),
        HEADER.pack(1, PROTOCOL_VERSION, 0, 1 << 31, 0),
    ],
)
def test_what_is_no_frame(pair: tuple[Channel, socket.socket], header: bytes) -> None:
    channel, sock = pair
    sock.sendall(header)

    with pytest.raises(WireError):
        channel.receive()


@pytest.mark.parametrize(
    "bodies", [None, [], [b""], [b"small"], [b"a", bytearray(b"b")], [LARGE], [b"head", LARGE, b"tail"]]
)
def test_sending(pair: tuple[Channel, socket.socket], bodies: list[bytes | bytearray] | None) -> None:
    channel, sock = pair
    whole = b"".join(bodies or [])
    got = bytearray()
    thread = threading.Thread(target=lambda: channel.send(7, "meta", bodies, len(whole)))
    thread.start()
    while len(got) < 16 + 5 + len(whole):
        got += sock.recv(65536)
    thread.join()

    (made,) = FrameDecoder(1 << 30).feed(bytes(got))
    assert (made.kind, bytes(made.meta), bytes(made.payload)) == (7, b"\xa4meta", whole)


# -- without waiting ---------------------------------------------------------------------------------------------


def polled(channel: Channel) -> list[tuple[int, bytes, bytes]] | None:
    frames = channel.poll()
    return None if frames is None else [(got.kind, bytes(got.meta), bytes(got.payload)) for got in frames]


def test_polling_waits_for_nothing(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    whole = frame(2, "b", b"payload")
    assert polled(channel) == []

    sock.sendall(frame(1, "a") + whole[:-1])
    assert polled(channel) == [(1, b"\xa1a", b"")]
    assert polled(channel) == []
    sock.sendall(whole[-1:])
    assert polled(channel) == [(2, b"\xa1b", b"payload")]
    sock.close()

    assert polled(channel) is None


def test_polling_goes_on_where_receiving_ended(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    second = frame(2, "b", b"payload")
    sock.sendall(frame(1, "a") + second[:5])
    first = channel.receive()
    assert first is not None
    sock.sendall(second[5:])

    assert channel.fileno() > 0
    assert polled(channel) == [(2, b"\xa1b", b"payload")]


def test_polling_large_frames(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    thread = feed(sock, frame(1, "a", LARGE), frame(2, "b"))
    found: list[tuple[int, bytes, bytes]] = []
    while (got := polled(channel)) is not None:
        found += got
    thread.join()

    assert found == [(1, b"\xa1a", LARGE), (2, b"\xa1b", b"")]


def test_polling_what_is_no_frame(pair: tuple[Channel, socket.socket]) -> None:
    channel, sock = pair
    sock.sendall(b"\xff" * HEADER.size)

    with pytest.raises(WireError):
        polled(channel)
