"""Header blocks: what is remembered must be what would have been decoded."""

from __future__ import annotations

import contextlib

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from relight.api.grpc.http2.frames import ConnectionBrokenError, ErrorCode
from relight.api.grpc.http2.headers import HeaderMemory, encode_headers

NAMES = st.sampled_from([b":path", b":method", b"te", b"x-a", b"grpc-timeout", b"authorization"])
VALUES = st.sampled_from([b"", b"/a/b", b"POST", b"trailers", b"1S", b"2S", b"x" * 200])
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
ANY_HEADERS = st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=20_000)), max_size=4)


@given(st.lists(st.tuples(HEADERS, st.booleans(), st.sampled_from([0, 200, 4096])), max_size=40))
def test_remembered_blocks_mean_what_they_say(requests: list[tuple[list[tuple[bytes, bytes]], bool, int]]) -> None:
    encoder = Encoder()
    memory: HeaderMemory[list[tuple[bytes, bytes]]] = HeaderMemory()
    for headers, huffman, size in requests:
        encoder.header_table_size = size
        block = encoder.encode(headers, huffman=huffman)
        known = memory.known(block)
        if known is None:
            known = memory.decode(block)
            memory.remember(block, known)
        assert known == headers


def test_a_repeated_block_is_decoded_once() -> None:
    encoder = Encoder()
    memory: HeaderMemory[str] = HeaderMemory()
    headers = [(b":path", b"/a/b"), (b"te", b"trailers")]
    memory.decode(encoder.encode(headers))
    block = encoder.encode(headers)
    assert memory.known(block) is None
    memory.decode(block)
    memory.remember(block, "meaning")
    assert memory.known(block) == "meaning"
    memory.decode(encoder.encode([(b"new", b"entry")]))
    assert memory.known(block) is None


@pytest.mark.parametrize("block", [b"\xff", b"\x40", b"\x80", b"\x00\x05ab", b"\x3f\xff\xff\xff\x7f", b"\xbe"])
def test_malformed_blocks(block: bytes) -> None:
    with pytest.raises(ConnectionBrokenError) as caught:
        HeaderMemory[None]().decode(block)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(block: bytes) -> None:
    with contextlib.suppress(ConnectionBrokenError):
        HeaderMemory[None]().decode(block)


@given(ANY_HEADERS)
def test_encoded_headers_are_read_by_others(headers: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder(max_header_list_size=1 << 20)
    assert [tuple(pair) for pair in decoder.decode(encode_headers(headers), raw=True)] == headers
    # Literals that are never indexed: the same bytes mean the same again.
    assert [tuple(pair) for pair in decoder.decode(encode_headers(headers), raw=True)] == headers
