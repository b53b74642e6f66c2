"""Frames of HTTP/2 (RFC 9113 §4, §6, §7), as far as a gRPC server needs them."""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""
FRAME_HEAD: Final = struct.Struct(">BHBBI")
"""Length in 24 bits (here 8 and 16), type, flags, stream."""
HEAD_SIZE: Final = FRAME_HEAD.size
LARGEST_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = (1 << 24) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20


class ErrorCode:
    """Why a stream or a connection ends (RFC 9113 §7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Setting:
    """Identifiers of settings (RFC 9113 §6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ConnectionBrokenError(Exception):
    """The peer has broken the protocol in a way that ends the connection.

    Args:
        code: An ErrorCode.
        text: What was wrong, for the peer's log.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in settings.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The entries of a SETTINGS frame, in order.

    Raises:
        ConnectionBrokenError: its size is wrong.
    """
    if len(payload) % 6:
        raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    return [(name, value) for name, value in struct.iter_unpack(">HI", payload)]


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def reset(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def go_away(last_stream: int, code: int, text: str = "") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + text.encode())


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of a DATA or HEADERS frame, without padding and without priority fields.

    Raises:
        ConnectionBrokenError: the frame is too short for them.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionBrokenError(ErrorCode.FRAME_SIZE_ERROR, "no room for the length of the padding")
        start, end = 1, end - payload[0]
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise ConnectionBrokenError(ErrorCode.PROTOCOL_ERROR, "padding or priority beyond the frame")
    return payload[start:end]
