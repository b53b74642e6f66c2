"""HTTP/2 over a bare socket (RFC 9113), for clients that do what no library would."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import hpack
from tests.faults.support import Client

from relight.protos import inference_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.support.server import Server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

PROTOCOL_ERROR = 0x1
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
LARGEST_WINDOW = (1 << 31) - 1

TIMEOUT_S = 30.0
_ROOM = 20_000
"""Received bytes after which a client gives room for more; the least window is 65,535 bytes."""
SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
PING_PATH = f"{SERVICE}/Ping"
PREDICT = f"{SERVICE}/Predictions"
STREAM = f"{SERVICE}/StreamPredictions"
CONVERSE = f"{SERVICE}/StreamPredictions2"


class Frame(NamedTuple):
    """A frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, size: int | None = None) -> bytes:
    """Return the bytes of a frame; `size` is what it says of its length, where that is a lie."""
    length = len(payload) if size is None else size
    return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def settings_frame(settings: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in settings.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def reset(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def literal(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block of literals that are not indexed: it means the same wherever it stands."""
    return b"".join(
        b"\x00" + b"".join(_integer(len(text)) + text for text in (name.encode(), value.encode("latin-1")))
        for name, value in headers
    )


def _integer(value: int) -> bytes:
    if value < 127:
        return bytes([value])
    value -= 127
    parts = [127]
    while value >= 128:
        parts.append(value % 128 + 128)
        value //= 128
    return bytes([*parts, value])


def call_headers(path: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a gRPC call."""
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
    return [*pairs, ("content-type", "application/grpc"), ("te", "trailers"), *more]


def message(body: bytes, *, flag: int = 0, size: int | None = None) -> bytes:
    """Return a message with its prefix; `size` is what the prefix says, where that is a lie."""
    return struct.pack(">BI", flag, len(body) if size is None else size) + body


def prediction(model: str, sequence: str | None = None, **inputs: str) -> bytes:
    """Return the message of a request for a prediction."""
    entries = {key: value.encode() for key, value in inputs.items()}
    made = inference_pb2.PredictionsRequest(model_name=model, input=entries, sequence_id=sequence)
    return message(made.SerializeToString())


def call(stream: int, path: str, body: bytes = b"", *more: tuple[str, str], end: bool = True) -> bytes:
    """Return the frames of a call; large bodies are cut, and must fit the server's windows."""
    frames = [frame(HEADERS, END_HEADERS, stream, literal(call_headers(path, *more)))]
    parts = [body[at : at + 16384] for at in range(0, len(body), 16384)] or [b""]
    frames += [frame(DATA, 0, stream, part) for part in parts[:-1]]
    frames.append(frame(DATA, END_STREAM if end else 0, stream, parts[-1]))
    return b"".join(frames)


@dataclass
class Answer:
    """What has come of a call."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    trailers: list[tuple[str, str]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int | None:
        """The gRPC status; None without one."""
        found = dict(self.headers + self.trailers).get("grpc-status")
        return None if found is None else int(found)

    @property
    def http_status(self) -> int | None:
        """The status of HTTP; None without headers."""
        found = dict(self.headers).get(":status")
        return None if found is None else int(found)

    @property
    def messages(self) -> list[bytes]:
        """The messages that have come whole."""
        found, at = [], 0
        while len(self.data) - at >= 5:
            (size,) = struct.unpack_from(">xI", self.data, at)
            if len(self.data) - at - 5 < size:
                break
            found.append(bytes(self.data[at + 5 : at + 5 + size]))
            at += 5 + size
        return found

    @property
    def predictions(self) -> list[bytes]:
        """The predictions in the messages that have come."""
        return [inference_pb2.PredictionResponse.FromString(each).prediction for each in self.messages]


class Http2Client(Client):
    """A client that sends what it is told.

    Args:
        server: The server whose inference port to use.
        settings: What to send with the preface.
        bare: Send nothing of itself.
        management: Use the other port.
    """

    def __init__(
        self,
        server: Server,
        settings: Mapping[int, int] | None = None,
        *,
        bare: bool = False,
        management: bool = False,
    ) -> None:
        port = server.config["grpc_management_port" if management else "grpc_inference_port"]
        super().__init__(("127.0.0.1", int(port)), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers: dict[int, Answer] = {}
        self.goaway: tuple[int, int, bytes] | None = None
        self.gives_room = True
        """Whether received data is acknowledged by WINDOW_UPDATE frames."""
        self._used: dict[int, int] = {}
        self._decoder = hpack.Decoder(1 << 20)
        self._decoder.max_allowed_table_size = 1 << 32
        if not bare:
            self.send(PREFACE + settings_frame(settings or {}))

    def read_frame(self) -> Frame:
        """Read the next frame, and do what a client has to do about it.

        Raises:
            ConnectionError: There is none: the connection is closed.
        """
        high, low, kind, flags, stream = struct.unpack(">BHBBI", self._exactly(9))
        received = Frame(kind, flags, stream, self._exactly(high << 16 | low))
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK))
        elif kind == GOAWAY:
            last, code = struct.unpack_from(">II", received.payload)
            self.goaway = (last, code, received.payload[8:])
        elif kind in {HEADERS, DATA, RST_STREAM}:
            self._note(received)
        return received

    def _note(self, received: Frame) -> None:
        answer = self.answers.setdefault(received.stream, Answer())
        if received.kind == HEADERS:
            pairs = [(str(name), str(value)) for name, value in self._decoder.decode(received.payload)]
            (answer.trailers if answer.headers else answer.headers).extend(pairs)
        elif received.kind == DATA:
            answer.data += received.payload
            if self.gives_room:
                for stream in (0, received.stream):
                    self._make_room(stream, len(received.payload))
        else:
            (answer.reset,) = struct.unpack(">I", received.payload)
        # A reset without an error follows a whole answer to a request that is not whole.
        answer.ended = answer.ended or answer.reset is not None or bool(received.flags & END_STREAM)

    def _make_room(self, stream: int, size: int) -> None:
        used = self._used[stream] = self._used.get(stream, 0) + size
        if used >= _ROOM:
            self._used[stream] = 0
            self.send(window_update(stream, used))

    def read_answer(self, stream: int) -> Answer:
        """Read until the call has ended.

        Raises:
            ConnectionError: The connection was closed before.
        """
        while not (answer := self.answers.setdefault(stream, Answer())).ended:
            self.read_frame()
        return answer

    def read_refusal(self, stream: int) -> None:
        """Read until the call has been refused, or the connection been ended."""
        try:
            answer = self.read_answer(stream)
        except ConnectionError:
            return
        assert answer.http_status != 200 or answer.status, answer

    def read_messages(self, stream: int, count: int) -> list[bytes]:
        """Read until that many predictions of the call have come."""
        while len((answer := self.answers.setdefault(stream, Answer())).messages) < count:
            assert not answer.ended, answer
            self.read_frame()
        return answer.predictions

    def ping(self, payload: bytes = b"are you?") -> None:
        """Wait for the answer to a PING: everything sent before has been seen.

        Raises:
            ConnectionError: The connection was closed before.
        """
        self.send(frame(PING, 0, 0, payload))
        while self.read_frame() != Frame(PING, ACK, 0, payload):
            pass

    def read_to_end(self) -> int | None:
        """Wait until the server closes the connection.

        Returns:
            The error code of its GOAWAY, if it sent one.
        """
        try:
            while True:
                self.read_frame()
        except ConnectionError:
            return None if self.goaway is None else self.goaway[1]
