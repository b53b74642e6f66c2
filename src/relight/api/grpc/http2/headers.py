"""Header blocks: decoding with a memory, as the requests of a client look alike; encoding of what servers send."""

from __future__ import annotations

from typing import Generic, TypeVar

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from relight.api.grpc.http2.frames import ConnectionBrokenError, ErrorCode

Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")

MAX_HEADER_LIST = 64 * 1024
"""Bytes of decoded headers (RFC 9113 §6.5.2) beyond which a connection is broken off."""
_MOST_REMEMBERED = 64
_LONGEST_REMEMBERED = 1024
_STATIC = {name: index for index, (name, _) in reversed(list(enumerate(HeaderTable.STATIC_TABLE, 1)))}
_STATUS_200 = b"\x88"


class _WatchedTable(HeaderTable):
    """A dynamic table that tells when it has changed."""

    changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().add(name, value)


class HeaderMemory(Generic[T]):
    """Decodes the header blocks of one connection into what the caller makes of them.

    After its first requests a client sends nothing but references to the dynamic table, the same bytes for each call
    of a method: as long as the table does not change, equal blocks mean equal headers.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_LIST)
        self._table = _WatchedTable()
        self._decoder.header_table = self._table
        self._known: dict[bytes, T] = {}

    def known(self, block: bytes) -> T | None:
        """What was made of an equal block."""
        return self._known.get(block)

    def decode(self, block: bytes) -> Headers:
        """The headers of a block.

        Raises:
            ConnectionBrokenError: the block is malformed, or far too large.
        """
        self._table.changed = self._table.resized = False
        try:
            headers = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except (HPACKError, IndexError, ValueError) as error:
            raise ConnectionBrokenError(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error
        if self._table.changed or self._table.resized:
            self._known.clear()
        return headers

    def remember(self, block: bytes, meaning: T) -> None:
        """Keep what was made of the block that was decoded last; blocks that change the table are not kept."""
        if not (self._table.changed or self._table.resized) and len(block) <= _LONGEST_REMEMBERED:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[block] = meaning


def encode_headers(headers: Headers) -> bytes:
    """A block of literals that are never indexed: it means the same at any time, so it can be made once.

    Lengths of 127 bytes and more take the prefix form of RFC 7541 §5.1.
    """
    parts = []
    for name, value in headers:
        if (name, value) == (b":status", b"200"):
            parts.append(_STATUS_200)
            continue
        index = _STATIC.get(name)
        if index is None:
            parts += [b"\x00", _integer(len(name), 7), name]
        else:
            parts.append(_integer(index, 4))
        parts += [_integer(len(value), 7), value]
    return b"".join(parts)


def _integer(value: int, bits: int) -> bytes:
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([value])
    value -= limit
    encoded = [limit]
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
