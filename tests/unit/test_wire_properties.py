"""Properties of all that parses bytes from outside: no input breaks it, and cuts between reads change nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from relight.api.http.forms import boundary_of, media_type, parse_multipart, parse_urlencoded
from relight.api.http.paths import Parameters, parse_query, segments_of, split_target
from relight.api.http.protocol import HttpConnection
from relight.api.turn import Turn
from relight.errors import BadRequestError
from relight.runtime.channel import Channel
from relight.serving.channel import WorkerChannel
from relight.serving.job import RequestIds
from relight.wire.frames import HEADER, HEADER_SIZE, MAX_META, PROTOCOL_VERSION, Frame, FrameDecoder, WireError
from relight.wire.frames import encode_head as encode
from relight.wire.messages import Answer, Batch, Failure, Item, Kind, Loaded, LoadFailed, Reply

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange

LIMIT = 100_000
"""Largest payload in these tests."""

settings.register_profile(
    "wire",
    max_examples=3000 if os.environ.get("RELIGHT_LONG_TESTS") == "1" else 100,
    derandomize=True,
    deadline=None,
    database=None,
)
wire = settings(settings.get_profile("wire"))

u64 = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**31)
text = st.text(max_size=20)
answers = st.builds(Answer, counts, st.integers(100, 599), st.none() | text, st.none() | st.dictionaries(text, text))
items = st.builds(
    Item,
    text,
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=4),
    st.dictionaries(text, text, max_size=3),
    st.lists(st.tuples(text, text, counts), max_size=3),
)
messages: st.SearchStrategy[tuple[int, msgspec.Struct]] = st.one_of(
    st.tuples(st.just(Kind.BATCH), st.builds(Batch, u64, st.lists(items, max_size=3))),
    st.tuples(st.just(Kind.LOADED), st.builds(Loaded, counts)),
    st.tuples(st.just(Kind.LOAD_FAILED), st.builds(LoadFailed, text, counts, text, text)),
    st.tuples(
        st.sampled_from([Kind.REPLY, Kind.CHUNK]),
        st.builds(Reply, u64, st.lists(answers, max_size=3), st.none() | st.builds(Failure, counts, text)),
    ),
)
# Around the size from which payloads are handed out as views, too.
payloads = st.binary(max_size=200) | st.integers(32_700, 32_900).map(bytes)
streams = st.lists(st.tuples(messages, payloads), max_size=5)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data, cut anywhere."""
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=8))
    return [data[start:end] for start, end in pairwise([0, *sorted(cuts), len(data)]) if start < end]


def written(stream: list[tuple[tuple[int, msgspec.Struct], bytes]]) -> bytes:
    return b"".join(encode(kind, message, len(payload)) + payload for (kind, message), payload in stream)


def decoded(decoder: FrameDecoder, data: list[bytes]) -> list[Frame]:
    # Payloads may be views that are valid until the next read.
    return [
        Frame(frame.kind, bytes(frame.meta), bytes(frame.payload)) for piece in data for frame in decoder.feed(piece)
    ]


# -- frames ----------------------------------------------------------------------------------------------------------


@wire
@given(stream=streams, data=st.data())
def test_frames_survive_any_cut(stream: list[tuple[tuple[int, msgspec.Struct], bytes]], data: st.DataObject) -> None:
    decoder = FrameDecoder(LIMIT)
    frames = decoded(decoder, data.draw(pieces(written(stream))))
    assert decoder.pending == 0
    assert [(frame.kind, frame.payload) for frame in frames] == [(kind, payload) for (kind, _), payload in stream]
    for frame, ((_, message), _) in zip(frames, stream, strict=True):
        assert msgspec.msgpack.decode(frame.meta, type=type(message)) == message


@wire
@given(stream=streams, data=st.data())
def test_a_worker_reads_what_the_frontend_writes(
    stream: list[tuple[tuple[int, msgspec.Struct], bytes]], data: st.DataObject
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        whole = written(stream)
        assume(len(whole) < 150_000)
        for piece in data.draw(pieces(whole)):
            ours.sendall(piece)
        ours.shutdown(socket.SHUT_WR)
        channel = Channel(theirs)
        frames = []
        while (frame := channel.receive()) is not None:
            frames.append((frame.kind, bytes(frame.payload)))
    assert frames == [(kind, payload) for (kind, _), payload in stream]


@wire
@given(data=st.data(), garbage=st.binary(max_size=400))
@example(data=None, garbage=b"\x00" * HEADER_SIZE)
def test_garbage_is_a_wire_error_or_no_frame(data: st.DataObject | None, garbage: bytes) -> None:
    decoder = FrameDecoder(LIMIT)
    try:
        decoded(decoder, [garbage] if data is None else data.draw(pieces(garbage)))
    except WireError:
        return
    assert decoder.pending <= len(garbage)


@wire
@given(
    kind=st.integers(0, 255),
    version=st.integers(0, 255),
    reserved=st.integers(0, 2**16 - 1) | st.just(0),
    meta=st.integers(0, 2**32 - 1) | st.integers(0, 100),
    payload=u64 | st.integers(0, LIMIT + 1),
)
@example(kind=1, version=PROTOCOL_VERSION, reserved=0, meta=MAX_META + 1, payload=0)
@example(kind=1, version=PROTOCOL_VERSION, reserved=0, meta=0, payload=LIMIT + 1)
@example(kind=1, version=PROTOCOL_VERSION, reserved=0, meta=MAX_META, payload=LIMIT)
def test_headers_beyond_the_limits(kind: int, version: int, reserved: int, meta: int, payload: int) -> None:
    header = struct.pack("<BBHIQ", kind, version, reserved, meta, payload)
    good = version == PROTOCOL_VERSION and not reserved and meta <= MAX_META and payload <= LIMIT
    decoder = FrameDecoder(LIMIT)
    if good:
        assert len(decoded(decoder, [header])) == (meta + payload == 0)
    else:
        with pytest.raises(WireError):
            decoded(decoder, [header])


# -- the channel to a worker -----------------------------------------------------------------------------------------


class FakeTransport:
    """Counts what is done to it."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = 0
        self.ended = 0

    def get_extra_info(self, _name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def abort(self) -> None:
        self.aborted += 1

    close = abort

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended += 1

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def fed(data: list[bytes]) -> tuple[list[int], list[Exception | None], FakeTransport]:
    """What a channel makes of bytes from a worker: kinds of frames, losses, and what it does to its transport."""

    async def feed() -> tuple[list[int], list[Exception | None], FakeTransport]:
        kinds: list[int] = []
        losses: list[Exception | None] = []
        transport = FakeTransport()

        def on_frame(frame: Frame) -> None:
            if frame.kind in (Kind.REPLY, Kind.CHUNK):
                msgspec.msgpack.decode(frame.meta, type=Reply)
            elif frame.kind == Kind.LOAD_FAILED:
                msgspec.msgpack.decode(frame.meta, type=LoadFailed)
            elif frame.kind != Kind.LOADED:
                raise ValueError(f"unexpected frame of kind {frame.kind}")
            kinds.append(frame.kind)

        channel = WorkerChannel(LIMIT, on_frame, losses.append)
        channel.connection_made(transport)  # type: ignore[arg-type]
        for piece in data:
            channel.data_received(piece)
        if not losses:
            channel.connection_lost(None)
        return kinds, losses, transport

    return asyncio.run(feed())


@wire
@given(stream=streams, garbage=st.binary(min_size=1, max_size=100), data=st.data())
def test_channel_fed_garbage_is_lost_once(
    stream: list[tuple[tuple[int, msgspec.Struct], bytes]], garbage: bytes, data: st.DataObject
) -> None:
    good = [entry for entry in stream if entry[0][0] != Kind.BATCH]
    kinds, losses, transport = fed(data.draw(pieces(written(good) + garbage)))
    # Garbage may by chance be the beginning of a frame; the channel then ends with the connection.
    assert kinds == [kind for (kind, _), _ in good]
    assert len(losses) == 1
    assert losses[0] is None or isinstance(losses[0], (WireError, ValueError, msgspec.MsgspecError))
    assert transport.aborted == 1


@wire
@given(kind=st.integers(0, 255), meta=st.binary(max_size=60), payload=st.binary(max_size=60))
def test_channel_fed_frames_of_nonsense_is_lost_once(kind: int, meta: bytes, payload: bytes) -> None:
    frame = HEADER.pack(kind, PROTOCOL_VERSION, 0, len(meta), len(payload)) + meta + payload
    kinds, losses, _ = fed([frame, b"\xff" * HEADER_SIZE])
    assert len(losses) == 1
    assert isinstance(losses[0], (WireError, ValueError, msgspec.MsgspecError))
    assert len(kinds) <= 1


# -- HTTP ------------------------------------------------------------------------------------------------------------


class FakeListener:
    """Answers each request with what it understood of it."""

    max_request_size = 1000
    max_buffered = 1 << 20
    cors = b""

    def __init__(self) -> None:
        self.ids = RequestIds()
        self.turn = Turn()
        self.connections: set[HttpConnection] = set()
        self.requests: list[tuple[str, bytes, str, list[tuple[bytes, bytes]], bytes]] = []

    def handle(self, exchange: Exchange) -> None:
        body = b"".join(exchange.body)
        self.requests.append((exchange.method, exchange.target, exchange.version, list(exchange.headers), body))
        exchange.respond(200, b"ok\r\n")

    def log(self, exchange: Exchange, peer: str) -> None:
        pass

    def forget(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)


def understood(data: list[bytes]) -> tuple[list[Any], list[int]]:
    """The requests that a connection makes of bytes, and the statuses that it answers."""

    async def feed() -> tuple[list[Any], list[int]]:
        listener, transport = FakeListener(), FakeTransport()
        connection = HttpConnection(listener)
        connection.connection_made(transport)  # type: ignore[arg-type]
        for piece in data:
            connection.data_received(piece)
        statuses = [
            int(line.split(b" ")[1]) for line in transport.written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")
        ]
        connection.connection_lost(None)
        return listener.requests, statuses

    return asyncio.run(feed())


methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
names = st.sampled_from(["x-a", "X-Long-Name", "accept", "content-type", "authorization", "cookie"])
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
bodies = st.none() | st.binary(max_size=300)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request without fault."""
    method, body = draw(methods), draw(bodies)
    lines = [f"{method} /{draw(st.from_regex(r'[a-z/%25?=&]{0,40}', fullmatch=True))} HTTP/1.1", "Host: test"]
    lines += [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(names, values), max_size=5))]
    if body is None:
        return "\r\n".join([*lines, "", ""]).encode()
    if draw(st.booleans()):
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        return "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode() + chunks
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@wire
@given(sent=st.lists(requests(), min_size=1, max_size=4), data=st.data())
def test_requests_survive_any_cut(sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    expected, statuses = understood([whole])
    assert len(expected) == len(sent)
    assert statuses == [200] * len(sent)
    assert understood(data.draw(pieces(whole))) == (expected, statuses)


@wire
@given(cut=st.integers(1, 12), method=methods)
def test_a_method_may_come_in_two_pieces(cut: int, method: str) -> None:
    data = f"{method} /ping HTTP/1.1\r\nHost: test\r\n\r\n".encode()
    requests_, statuses = understood([data[:cut], data[cut:]])
    assert [(request[0], request[1]) for request in requests_] == [(method, b"/ping")]
    assert statuses == [200]


@wire
@given(garbage=st.binary(max_size=300), sent=st.lists(requests(), max_size=2), data=st.data())
@pytest.mark.parametrize("at_once", [True, False])
def test_bytes_are_answered_or_awaited(garbage: bytes, sent: list[bytes], data: st.DataObject, at_once: bool) -> None:
    whole = b"".join(sent) + garbage
    _, statuses = understood([whole] if at_once else data.draw(pieces(whole)))
    assert statuses[: len(sent)] == [200] * len(sent)
    assert set(statuses) <= {100, 200, 400, 413, 417}


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 30_000,
        b"GET /" + b"a" * 30_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5_000,
        b"CONNECT a:1 HTTP/1.1\r\n\r\n\x00\x01",
        b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef",
    ],
    ids=lambda data: repr(data[:60]),
)
def test_hostile_bytes_at_any_cut(data: bytes) -> None:
    _, whole = understood([data])
    assert whole
    assert set(whole) <= {200, 400, 413}
    for at in (*range(1, min(len(data), 120)), len(data) // 2, len(data) - 1):
        assert understood([data[:at], data[at:]])[1] == whole, data[:at][-60:]


# -- targets and bodies ----------------------------------------------------------------------------------------------


@wire
@given(target=st.binary(max_size=100))
def test_targets(target: bytes) -> None:
    path, query = split_target(target)
    assert b"?" not in path
    parameters = Parameters(parse_query(query))
    for name, _ in parse_query(query):
        assert isinstance(parameters.text(name), str)
        number = parameters.integer(name)
        assert number is None or -(2**31) <= number < 2**31
    try:
        segments = segments_of(path)
    except BadRequestError:
        return
    assert all(isinstance(segment, str) and "/" not in segment for segment in segments)


@wire
@given(body=st.binary(max_size=200))
def test_urlencoded_bodies(body: bytes) -> None:
    try:
        fields = parse_urlencoded(body)
    except BadRequestError:
        return
    assert len({name for name, _, _ in fields}) == len(fields)


_HEADS = st.sampled_from(
    [
        b'Content-Disposition: form-data; name="a"',
        b"Content-Disposition: form-data; name*=utf-8''%e2%82%ac",
        b'Content-Disposition: form-data; name="a"; filename="b"\r\nContent-Type: text/plain; charset=x',
        b"Content-Disposition: attachment",
        b"Content-Transfer-Encoding: base64",
        b"no colon",
    ]
) | st.binary(max_size=60)
_MULTIPART = st.builds(
    lambda parts, end: b"".join(b"--b\r\n" + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts) + end,
    st.lists(st.tuples(_HEADS, st.binary(max_size=60)), max_size=4),
    st.sampled_from([b"--b--\r\n", b"--b--", b"--b", b"", b"\x00"]),
)


@wire
@given(body=st.binary(max_size=200) | _MULTIPART, boundary=st.just(b"b") | st.binary(max_size=80))
@example(body=b"", boundary=b"")
@example(body=b"--", boundary=b"")
def test_multipart_bodies(body: bytes, boundary: bytes) -> None:
    try:
        parts = parse_multipart(body, boundary)
    except BadRequestError:
        return
    for name, content_type, content in parts:
        assert isinstance(name, str)
        assert isinstance(content_type, str)
        assert content in body


@wire
@given(value=st.binary(max_size=100) | st.binary(max_size=60).map(lambda rest: b"multipart/form-data; boundary" + rest))
def test_content_types(value: bytes) -> None:
    boundary = boundary_of(value)
    assert boundary is None or isinstance(boundary, bytes)
    assert ";" not in media_type(value)
