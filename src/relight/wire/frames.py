"""Framing: a fixed header, a MessagePack struct, then raw bytes.

    kind      u8
    version   u8     PROTOCOL_VERSION of the sender; both ends must agree
    reserved  u16    zero
    meta      u32    length of the struct, at most MAX_META
    payload   u64    length of the bytes that follow the struct

All numbers are little-endian. The header is 16 bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL_VERSION = 1
MAX_META = 64 * 1024 * 1024
"""Bytes; a batch of thousands of requests with 8 KiB of headers each stays far below."""

_VIEW = 32 * 1024
"""Payloads from this size on are handed out as views: cheaper than a copy."""

HEADER = struct.Struct("<BBHIQ")
HEADER_SIZE = HEADER.size

_encode = msgspec.msgpack.Encoder().encode


class WireError(Exception):
    """The other end sent something that is not a frame, or a frame beyond the limits: the channel is lost."""


class Frame(NamedTuple):
    """One received frame. `payload` may be a view into a receive buffer: it is valid until the next read."""

    kind: int
    meta: bytes | memoryview
    payload: bytes | memoryview


def encode_head(kind: int, message: Any, payload_length: int = 0) -> bytes:
    """Header and struct of a frame, to be written before `payload_length` bytes of payload."""
    meta = _encode(message)
    return HEADER.pack(kind, PROTOCOL_VERSION, 0, len(meta), payload_length) + meta


def decode_header(buffer: bytes | bytearray | memoryview, offset: int, max_payload: int) -> tuple[int, int, int]:
    """Kind, meta length and payload length of the header at `offset`.

    Raises:
        WireError: wrong version, reserved bits set, or a length beyond the limits.
    """
    kind, version, reserved, meta, payload = HEADER.unpack_from(buffer, offset)
    if version != PROTOCOL_VERSION or reserved:
        raise WireError(f"not a frame of protocol version {PROTOCOL_VERSION}: version {version}, reserved {reserved}")
    if meta > MAX_META:
        raise WireError(f"frame struct of {meta} bytes exceeds the limit of {MAX_META}")
    if payload > max_payload:
        raise WireError(f"frame payload of {payload} bytes exceeds the limit of {max_payload}")
    return kind, meta, payload


class FrameDecoder:
    """Cuts a byte stream into frames.

    Args:
        max_payload: Largest payload accepted, in bytes.
    """

    def __init__(self, max_payload: int) -> None:
        self._max_payload = max_payload
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = HEADER_SIZE

    @property
    def pending(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return self._held

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes.

        Raises:
            WireError: the stream is not a sequence of frames within the limits.
        """
        if self._held:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return
            data = b"".join(self._parts)
            self._parts.clear()
            self._held = 0
        offset, end = 0, len(data)
        while end - offset >= HEADER_SIZE:
            kind, meta, payload = decode_header(data, offset, self._max_payload)
            body = offset + HEADER_SIZE + meta
            if body + payload > end:
                self._needed = HEADER_SIZE + meta + payload
                break
            source = memoryview(data) if payload >= _VIEW else data
            yield Frame(kind, data[offset + HEADER_SIZE : body], source[body : body + payload])
            offset = body + payload
        else:
            self._needed = HEADER_SIZE
        if offset < end:
            rest = data[offset:] if offset else data
            self._parts.append(rest)
            self._held = len(rest)
