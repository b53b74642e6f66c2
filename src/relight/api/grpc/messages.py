"""Messages on a stream: length prefix and compression (gRPC over HTTP/2, "Length-Prefixed-Message")."""

from __future__ import annotations

import zlib
from typing import Final

from relight.api.grpc.status import Code, Status

PREFIX: Final = 5
"""Bytes before each message: a flag, and the length in 4 bytes."""
_WORTH_COMPRESSING = 1024
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ENCODINGS: Final = b"identity, deflate, gzip"
"""What clients may compress with."""


class MessageError(Exception):
    """A message cannot be taken.

    Args:
        status: What its call ends with.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


class MessageReader:
    """Puts the messages of one stream together.

    Args:
        limit: Largest message, in bytes, compressed or not.
        encoding: What the client compresses with; None without compression.
    """

    __slots__ = ("_buffer", "_encoding", "_limit")

    def __init__(self, limit: int, encoding: bytes | None) -> None:
        self._limit = limit
        self._encoding = encoding
        self._buffer: bytearray | None = None

    @property
    def empty(self) -> bool:
        """Whether no message is begun."""
        return self._buffer is None

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now.

        Raises:
            MessageError: one is too large, or cannot be decompressed.
        """
        buffer = self._buffer
        if buffer is None:
            size = len(data)
            if size >= PREFIX and not data[0]:
                length = int.from_bytes(data[1:PREFIX], "big")
                if length + PREFIX == size and length <= self._limit:
                    # What nearly every request is: one message in one frame.
                    return [data[PREFIX:]]
            buffer = self._buffer = bytearray(data)
        else:
            buffer += data
        messages = []
        at = 0
        while len(buffer) - at >= PREFIX:
            length = int.from_bytes(buffer[at + 1 : at + PREFIX], "big")
            if length > self._limit:
                raise MessageError(_too_large(length, self._limit))
            end = at + PREFIX + length
            if end > len(buffer):
                break
            messages.append(self._content(buffer[at], bytes(memoryview(buffer)[at + PREFIX : end])))
            at = end
        if at == len(buffer):
            self._buffer = None
        elif at:
            del buffer[:at]
        return messages

    def _content(self, flag: int, data: bytes) -> bytes:
        if flag == 0:
            return data
        if flag != 1 or self._encoding is None:
            raise MessageError(Status(Code.INTERNAL, "A message is compressed, but grpc-encoding does not say how"))
        unpacker = zlib.decompressobj(_WINDOW_BITS[self._encoding])
        try:
            content = unpacker.decompress(data, self._limit + 1)
        except zlib.error as error:
            raise MessageError(Status(Code.INTERNAL, f"A message cannot be decompressed: {error}")) from error
        if len(content) > self._limit:
            raise MessageError(_too_large(len(content), self._limit))
        if not unpacker.eof:
            raise MessageError(Status(Code.INTERNAL, "A message cannot be decompressed: it is cut off"))
        return content


def _too_large(size: int, limit: int) -> Status:
    return Status(Code.RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {limit}: {size}")


def decodes(encoding: bytes) -> bool:
    """Whether messages compressed so can be read."""
    return encoding in _WINDOW_BITS


def framed(message: bytes, encoding: bytes | None) -> bytes:
    """A message with its prefix, compressed if that is wanted and worth it."""
    if encoding is not None and len(message) >= _WORTH_COMPRESSING:
        packer = zlib.compressobj(6, zlib.DEFLATED, _WINDOW_BITS[encoding])
        packed = packer.compress(message) + packer.flush()
        return b"\x01" + len(packed).to_bytes(4, "big") + packed
    return b"\x00" + len(message).to_bytes(4, "big") + message
