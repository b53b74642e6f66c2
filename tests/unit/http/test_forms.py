"""Form bodies (rest_api.md §3.9)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw import multipart

from relight.api.http.forms import Part, boundary_of, media_type, parse_multipart, parse_urlencoded
from relight.errors import BadRequestError

DATA = 'Content-Disposition: form-data; name="data"'
EVERY_BYTE = bytes(range(256))
FILE = DATA + '; filename="f"'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (b"", ""),
        (b"text/plain", "text/plain"),
        (b" Text/Plain ; charset=utf-8", "Text/Plain"),
        (b"a/b;c;d", "a/b"),
        (b";", ""),
        (b"caf\xe9", "café"),
    ],
)
def test_media_type(value: bytes | None, expected: str) -> None:
    assert media_type(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'multipart/form-data; boundary="a b"', b"a b"),
        (b"multipart/form-data; charset=x; BOUNDARY=abc", b"abc"),
        (b"multipart/form-data", None),
    ],
)
def test_boundary(value: bytes, expected: bytes | None) -> None:
    assert boundary_of(value) == expected


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"", []),
        (b"a=1", [("a", b"1")]),
        (b"a=1&b=2", [("a", b"1"), ("b", b"2")]),
        (b"a=1&a=2", [("a", b"2")]),
        (b"a=b+c%2B%26", [("a", b"b c+&")]),
        (b"a%20b=%FF%00", [("a b", b"\xff\0")]),
        (b"a=", [("a", b"")]),
        (b"a=1&last", [("a", b"1")]),
        (b"first&a=1", [("first", b""), ("a", b"1")]),
        (b"a=1&", [("a", b"1")]),
        (b"&&a=1", [("a", b"1")]),
        (b"=1", []),
        (b"a=b=c", [("a", b"b=c")]),
        (b"a=x\r\ny", [("a", b"x\r\ny")]),
        (b"caf%C3%A9=1", [("café", b"1")]),
        (b"a=1;b=2", [("a", b"1;b=2")]),
    ],
)
def test_urlencoded(body: bytes, fields: list[tuple[str, bytes]]) -> None:
    assert parse_urlencoded(body) == [(name, "", value) for name, value in fields]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"%zz=1", "Invalid hex byte at index '0' of the form: '%zz'"),
        (b"a=1&b=%4", "Invalid hex byte at index '6' of the form: '%4'"),
        (b"a=%", "Invalid hex byte at index '2' of the form: '%'"),
        (b"a=1&" * 1024 + b"b=1", "The form has more than 1024 fields."),
    ],
)
def test_malformed_urlencoded(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_urlencoded(body)

    assert caught.value.message == message


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([(DATA, b"x")], [("data", "", b"x")], id="plain field"),
        pytest.param([(DATA + "\r\nContent-Type: application/json", b"{}")], [("data", "", b"{}")], id="its type"),
        pytest.param([(FILE, b"x")], [("data", "application/octet-stream", b"x")], id="file"),
        pytest.param([(DATA + '; filename=""', b"x")], [("data", "application/octet-stream", b"x")], id="empty name"),
        pytest.param(
            [(FILE + "\r\nContent-Type: text/plain; charset=utf-8", b"x")], [("data", "text/plain", b"x")], id="typed"
        ),
        pytest.param([("content-DISPOSITION: form-data; name=data", b"x")], [("data", "", b"x")], id="letter case"),
        pytest.param([(DATA, b"")], [("data", "", b"")], id="empty"),
        pytest.param([(DATA, b"\r\n\r\n")], [("data", "", b"\r\n\r\n")], id="line ends"),
        pytest.param([(DATA, b"--frontie\r\n--")], [("data", "", b"--frontie\r\n--")], id="nearly a boundary"),
        pytest.param(
            [(FILE, bytes(range(256)))], [("data", "application/octet-stream", bytes(range(256)))], id="bytes"
        ),
        pytest.param(
            [(DATA, b"1"), ('Content-Disposition: form-data; name="b"', b"2"), (DATA, b"3")],
            [("b", "", b"2"), ("data", "", b"3")],
            id="the last of equal names",
        ),
        pytest.param(
            [('Content-Disposition: form-data; name="caf\u00e9"', b"x")], [("café", "", b"x")], id="name in UTF-8"
        ),
        pytest.param([(DATA + "\r\nContent-Transfer-Encoding: BINARY", b"x")], [("data", "", b"x")], id="encoding"),
        pytest.param([(DATA + "\r\nX-Other: y", b"x")], [("data", "", b"x")], id="other header"),
    ],
)
def test_multipart(parts: list[tuple[str, bytes]], expected: list[Part]) -> None:
    assert parse_multipart(multipart(parts), b"frontier") == expected


def test_multipart_with_text_around() -> None:
    body = multipart([(DATA, b"x")]) + b"epilogue"

    assert parse_multipart(body, b"frontier") == [("data", "", b"x")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"--frontier",
        b"--frontier\r\n",
        b"--frontier\r\n" + DATA.encode(),
        b"--frontier\r\n" + DATA.encode() + b"\r\n\r\nhalf of it",
        b"--frontier\r\n" + DATA.encode() + b"\r\n\r\nx\r\n--frontier",
        b"--frontier\r\n" + DATA.encode() + b"\r\n\r\nx\r\n--frontier\r\n",
        multipart([("X: y", b"x")]),
        multipart([("Content-Disposition: form-data", b"x")]),
        multipart([(DATA + "\r\nContent-Transfer-Encoding: base64", b"eA==")]),
        multipart([(DATA, b"x")], boundary="other"),
        multipart([(DATA, b"x")] * 1025),
    ],
)
def test_malformed_multipart(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_multipart(body, b"frontier")


@pytest.mark.parametrize("boundary", [b"", b"x" * 5000, b"\xff\0", b"-", b"--"])
def test_odd_boundaries(boundary: bytes) -> None:
    for body in (b"", b"----", multipart([(DATA, b"x")]), b"--" + boundary + b"--\r\n"):
        with suppress(BadRequestError):
            parse_multipart(body, boundary)


@given(st.binary(max_size=300), st.sampled_from([b"frontier", b"x"]))
def test_random_multipart(noise: bytes, boundary: bytes) -> None:
    for body in (noise, b"--" + boundary + b"\r\n" + noise, multipart([(FILE, b"x")])[:-20] + noise):
        with suppress(BadRequestError):
            parse_multipart(body, boundary)
