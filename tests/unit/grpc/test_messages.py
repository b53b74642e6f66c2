"""Messages in any pieces, with and without compression."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.api.grpc.messages import MessageError, MessageReader, framed
from relight.api.grpc.status import Code

LIMIT = 3000


@given(
    st.lists(st.binary(max_size=LIMIT), max_size=5),
    st.sampled_from([None, b"gzip", b"deflate"]),
    st.lists(st.integers(min_value=1, max_value=2000), max_size=20),
)
def test_messages_in_any_pieces(messages: list[bytes], encoding: bytes | None, cuts: list[int]) -> None:
    data = b"".join(framed(message, encoding) for message in messages)
    reader = MessageReader(LIMIT + 100, encoding)
    received = []
    for cut in cuts:
        received += reader.feed(data[:cut])
        data = data[cut:]
    received += reader.feed(data)
    assert received == messages
    assert reader.empty


def test_a_message_that_is_not_complete() -> None:
    reader = MessageReader(LIMIT, None)
    assert reader.feed(framed(b"abc", None)[:-1]) == []
    assert not reader.empty


def test_long_messages_are_compressed_and_short_ones_are_not() -> None:
    assert framed(b"x" * 10, b"gzip")[0] == 0
    packed = framed(b"x" * 10_000, b"gzip")
    assert packed[0] == 1
    assert len(packed) < 200
    assert gzip.decompress(packed[5:]) == b"x" * 10_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" + (LIMIT + 1).to_bytes(4, "big"),
        b"\x01" + (LIMIT + 1).to_bytes(4, "big"),
        b"\x01" + len(packed := gzip.compress(b"x" * (LIMIT + 1))).to_bytes(4, "big") + packed,
    ],
    ids=["plain", "compressed", "decompressed"],
)
def test_too_large(data: bytes) -> None:
    with pytest.raises(MessageError) as caught:
        MessageReader(LIMIT, b"gzip").feed(data)
    assert caught.value.status.code == Code.RESOURCE_EXHAUSTED
    assert str(LIMIT) in caught.value.status.message


@pytest.mark.parametrize(
    ("flag", "encoding", "content"),
    [(1, None, b"abc"), (2, b"gzip", b"abc"), (1, b"gzip", b"abc"), (1, b"deflate", zlib.compress(b"x" * 100)[:-3])],
    ids=["not announced", "unknown flag", "no gzip", "cut off"],
)
def test_bad_compression(flag: int, encoding: bytes | None, content: bytes) -> None:
    with pytest.raises(MessageError) as caught:
        MessageReader(LIMIT, encoding).feed(bytes([flag]) + len(content).to_bytes(4, "big") + content)
    assert caught.value.status.code == Code.INTERNAL
