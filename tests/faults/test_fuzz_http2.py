"""Random HTTP/2 on the gRPC ports: each connection comes to an end, each call to the right one."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, NamedTuple

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.faults.grpc_support import Bystander, Measured, start_target, stop_target
from tests.faults.http2 import (
    CONTINUATION,
    CONVERSE,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LARGEST_WINDOW,
    PING_PATH,
    PREDICT,
    PREFACE,
    RST_STREAM,
    STREAM,
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
from tests.faults.test_fuzz_listeners import fuzz
from tests.support.grpc_api import HEALTHY, MANAGEMENT

from relight.protos import inference_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

KEPT = 15 * MIB
PORTS = ("inference", "management")
LIST_MODELS = f"/{MANAGEMENT}/ListModels"
BEGIN = PREFACE + settings_frame({})


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = start_target(make_server)
    yield server
    stop_target(server)


@pytest.fixture(autouse=True)
def bystander(target: Server) -> Iterator[Bystander]:
    """Somebody who must not notice anything; and nothing is kept of the others."""
    made = Bystander(target)
    measured = Measured(target, KEPT)
    yield made
    measured.assert_back()
    made.finish()


def exchange(server: Server, data: bytes, port: str = "inference") -> Http2Client:
    """Send bytes, end the own side, and read what comes until the server closes: a hang is a TimeoutError."""
    with Http2Client(server, bare=True, management=port == "management") as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
        client.read_to_end()
    for answer in client.answers.values():
        statuses = [value for name, value in answer.headers + answer.trailers if name == "grpc-status"]
        assert len(statuses) <= 1
        assert answer.status is None or 0 <= answer.status <= 16
    return client


# -- bytes and frames --------------------------------------------------------------------------------------------------

streams = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 7, 2, 4, (1 << 31) - 1, 1 << 31, 0xFFFFFFFF])
blocks = st.sampled_from(
    [
        literal(call_headers(PREDICT)),
        literal(call_headers(STREAM)),
        literal(call_headers(CONVERSE)),
        literal(call_headers(PING_PATH)),
        literal([("x-trailer", "1")]),
        b"\x40\x01a\x01b\xbe\xbe",
        b"\x3f\xe1\x1f",
        b"\x20",
        b"",
    ]
) | st.binary(max_size=40)
payloads = (
    st.binary(max_size=30)
    | blocks
    | st.sampled_from([prediction("noop"), prediction("nope"), prediction("streamer", "s", n="2"), message(b"\xff")])
    | st.integers(0, 0xFFFFFFFF).map(lambda number: number.to_bytes(4, "big"))
    | st.lists(st.tuples(st.integers(0, 8), st.integers(0, 0xFFFFFFFF)), max_size=4).map(
        lambda pairs: settings_frame(dict(pairs))[9:]
    )
)
anything = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255) | st.sampled_from([0, 1, 4, 5]),
    streams,
    payloads,
    size=st.none() | st.none() | st.none() | st.integers(0, 50) | st.just((1 << 24) - 1),
)
sensible = st.one_of(
    st.builds(frame, st.just(HEADERS), st.sampled_from([END_HEADERS, END_HEADERS | END_STREAM]), streams, blocks),
    st.builds(frame, st.just(DATA), st.sampled_from([0, END_STREAM]), streams, payloads),
    st.builds(call, st.sampled_from([1, 3, 5, 7, 9]), st.sampled_from([PREDICT, STREAM, CONVERSE, "/x/Y"]), payloads),
    st.builds(reset, streams, st.integers(0, 20)),
    st.builds(window_update, streams, st.integers(0, (1 << 31) - 1) | st.integers(0, 3)),
)

low = sensible.filter(lambda data: int.from_bytes(data[5:9], "big") & LARGEST_WINDOW < 1_000)
"""Frames of streams with low numbers."""


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("begin", [b"", BEGIN], ids=["bare", "begun"])
def test_random_bytes(target: Server, port: str, begin: bytes) -> None:
    @fuzz
    @given(data=st.binary(max_size=300))
    def send(data: bytes) -> None:
        exchange(target, begin + data, port)

    send()


@pytest.mark.parametrize("port", PORTS)
def test_random_frames(target: Server, port: str) -> None:
    @fuzz
    @given(frames=st.lists(sensible | anything, max_size=12))
    @example(frames=[call(1, PREDICT, prediction("noop")), reset(1), frame(DATA, END_STREAM, 1, b"late")])
    @example(frames=[frame(RST_STREAM, 0, 1, b"")])
    @example(frames=[frame(GOAWAY, 0, 0), call(1, PREDICT, prediction("noop"))])
    @example(frames=[frame(CONTINUATION, END_HEADERS, 1, b"")])
    def send(frames: list[bytes]) -> None:
        exchange(target, BEGIN + b"".join(frames), port)

    send()


def test_random_frames_beside_a_call(target: Server) -> None:
    """As long as the connection lives, a call on it is answered right."""
    body = prediction("noop", data="x" * 20)

    @fuzz
    @given(frames=st.lists(low, max_size=6), cut=st.integers(0, len(body)), head=st.lists(low, max_size=3))
    def send(frames: list[bytes], cut: int, head: list[bytes]) -> None:
        with Http2Client(target) as client:
            stream = 1_001
            try:
                client.send(b"".join(head))
                client.send(frame(HEADERS, END_HEADERS, stream, literal(call_headers(PREDICT))))
                client.send(frame(DATA, 0, stream, body[:cut]))
                # None of them is about this stream, and none opens one above.
                client.send(b"".join(frames))
                client.send(frame(DATA, END_STREAM, stream, body[cut:]))
                answer = client.read_answer(stream)
            except ConnectionError:
                # The reason is lost where the system resets the connection.
                assert client.goaway is None or client.goaway[1] != 0
                return
            assert (answer.predictions, answer.status) == ([b"ok"], 0)

    send()


@pytest.mark.parametrize("path", [PREDICT, STREAM, CONVERSE])
def test_mutilated_calls(target: Server, path: str) -> None:
    """Calls with bytes taken out, put in and repeated."""
    whole = BEGIN + b"".join(call(stream, path, prediction("streamer", "s", n="2")) for stream in (1, 3, 5))

    @fuzz
    @given(edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20), st.binary(max_size=5)), max_size=4))
    def send(edits: list[tuple[float, int, bytes]]) -> None:
        data = whole
        for at, removed, added in edits:
            start = int(at * len(data))
            data = data[:start] + added + data[start + removed :]
        exchange(target, data)

    send()


def test_truncated_calls(target: Server) -> None:
    """Cut off anywhere: the connection is closed, and what was begun is forgotten."""
    whole = BEGIN + call(1, STREAM, prediction("streamer", n="2")) + call(3, CONVERSE, prediction("streamer", "s"))
    for at in range(len(whole)):
        exchange(target, whole[:at])


# -- header blocks -----------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A call, and what has to come of it."""

    path: str
    body: bytes
    status: int
    message: bytes


CALLS = [
    Wanted(PING_PATH, message(b""), 0, inference_pb2.TorchServeHealthResponse(health=HEALTHY).SerializeToString()),
    Wanted(PREDICT, prediction("noop"), 0, inference_pb2.PredictionResponse(prediction=b"ok").SerializeToString()),
    Wanted(PREDICT, prediction("nope"), 13, b""),
    Wanted(f"{PREDICT}s", prediction("noop"), 12, b""),
    Wanted(LIST_MODELS, message(b""), 12, b""),
]
names = st.sampled_from(["x-a", "x-b", "user-agent", "cookie", "accept-encoding", "authorization"])
values = st.sampled_from(["", "1", "2", "a" * 50, "b" * 1500]) | st.text(
    st.characters(min_codepoint=32, max_codepoint=126), max_size=10
).map(str.strip)


class Step(NamedTuple):
    """One call of a random conversation, and how its headers are compressed."""

    wanted: Wanted
    more: list[tuple[str, str]]
    huffman: bool
    sensitive: bool
    table: int | None
    pieces: int


steps = st.builds(
    Step,
    st.sampled_from(CALLS),
    st.lists(st.tuples(names, values), max_size=4),
    st.booleans(),
    st.booleans(),
    st.none() | st.none() | st.sampled_from([0, 50, 100, 300, 4096]),
    st.integers(1, 4),
)


def header_frames(stream: int, block: bytes, pieces: int) -> bytes:
    """Return the frames of a header block that is cut into pieces."""
    size = -(-len(block) // pieces)
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    frames = [frame(HEADERS if not at else CONTINUATION, 0, stream, part) for at, part in enumerate(parts[:-1])]
    last = HEADERS if len(parts) == 1 else CONTINUATION
    return b"".join([*frames, frame(last, END_HEADERS, stream, parts[-1])])


def test_compressed_headers(target: Server) -> None:
    """However a client makes use of header compression, its calls are taken for what they are."""

    @fuzz
    @given(chosen=st.lists(steps, min_size=1, max_size=12), at_once=st.booleans())
    def converse(chosen: list[Step], *, at_once: bool) -> None:
        encoder = hpack.Encoder()
        with Http2Client(target) as client:
            for number, step in enumerate(chosen):
                stream = 2 * number + 1
                if step.table is not None:
                    encoder.header_table_size = step.table
                kind = hpack.NeverIndexedHeaderTuple if step.sensitive else hpack.HeaderTuple
                pairs = call_headers(step.wanted.path, *step.more)
                block = encoder.encode([kind(*pair) for pair in pairs], huffman=step.huffman)
                client.send(header_frames(stream, block, step.pieces))
                client.send(frame(DATA, END_STREAM, stream, step.wanted.body))
                if not at_once:
                    client.read_answer(stream)
            for number, step in enumerate(chosen):
                answer = client.read_answer(2 * number + 1)
                wanted = [step.wanted.message] if step.wanted.status == 0 else []
                assert (answer.status, answer.messages) == (step.wanted.status, wanted)

    converse()


def test_random_header_blocks(target: Server) -> None:
    """Each is refused, or means what an independent decoder makes of it."""

    @fuzz
    @given(block=blocks, more=blocks)
    @example(block=b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", more=b"")
    @example(block=b"\x00\xff\xff\xff\xff\x0f", more=b"")
    @example(block=b"\x82" * 100, more=b"\x82" * 100)
    def send(block: bytes, more: bytes) -> None:
        data = frame(HEADERS, END_HEADERS | END_STREAM, 1, block) + frame(HEADERS, END_HEADERS | END_STREAM, 3, more)
        exchange(target, BEGIN + data)

    send()
