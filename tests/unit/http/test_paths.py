"""Targets: segments, queries, parameters (rest_api.md §1.3)."""

from __future__ import annotations

import pytest

from relight.api.http.paths import Parameters, parse_query, segments_of, split_target
from relight.errors import BadRequestError


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        (b"/", ()),
        (b"//", ()),
        (b"///", ()),
        (b"/ping", ("ping",)),
        (b"/models/", ("models",)),
        (b"/models//", ("models",)),
        (b"//models", ("", "models")),
        (b"/models//m", ("models", "", "m")),
        (b"/predictions/m/1.0/a/b", ("predictions", "m", "1.0", "a", "b")),
        (b"/a%2Fb", ("a", "b")),
        (b"/a%2f", ("a",)),
        (b"/a+b", ("a+b",)),
        (b"/a%20b", ("a b",)),
        (b"/caf%C3%A9", ("café",)),
        (b"/caf\xc3\xa9", ("café",)),
        (b"/%25zz", ("%zz",)),
        (b"/../etc", ("..", "etc")),
        (b"/%00", ("\0",)),
        (b"/v1/models/m:predict", ("v1", "models", "m:predict")),
        (b"http://h/ping", ("ping",)),
        (b"http://h:8080/models/m", ("models", "m")),
        (b"HTTPS://user@h/ping/", ("ping",)),
        (b"http://h", ()),
        (b"http://h/", ()),
        (b"*", ("*",)),
        (b"ping", ("*",)),
        (b"h:443", ("*",)),
        (b"://h/ping", ("*",)),
    ],
)
def test_segments(path: bytes, segments: tuple[str, ...]) -> None:
    assert segments_of(path) == segments


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (b"/a/%zz", "Malformed percent-encoding at index 3 of '/a/%zz': write % and two hexadecimal digits."),
        (b"/%", "Malformed percent-encoding at index 1 of '/%': write % and two hexadecimal digits."),
        (b"/%4", "Malformed percent-encoding at index 1 of '/%4': write % and two hexadecimal digits."),
        (b"/%4g", "Malformed percent-encoding at index 1 of '/%4g': write % and two hexadecimal digits."),
        (b"/%+1", "Malformed percent-encoding at index 1 of '/%+1': write % and two hexadecimal digits."),
        (b"/%FF", "The path is not UTF-8."),
        (b"/\xff", "The path is not UTF-8."),
    ],
)
def test_malformed_paths(path: bytes, message: str) -> None:
    for _ in range(2):  # the results are kept, the errors must be too
        with pytest.raises(BadRequestError) as caught:
            segments_of(path)
        assert caught.value.message == message


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"/a", (b"/a", b"")),
        (b"/a?", (b"/a", b"")),
        (b"/a?b=c", (b"/a", b"b=c")),
        (b"/a?b=c?d", (b"/a", b"b=c?d")),
        (b"/a#b?c", (b"/a", b"")),
        (b"/a?b#c", (b"/a", b"b")),
        (b"?a", (b"", b"a")),
    ],
)
def test_targets(target: bytes, parts: tuple[bytes, bytes]) -> None:
    assert split_target(target) == parts


@pytest.mark.parametrize(
    ("query", "pairs"),
    [
        (b"", []),
        (b"a=1&b=2", [("a", "1"), ("b", "2")]),
        (b"a=1;b=2", [("a", "1"), ("b", "2")]),
        (b"a=1&a=2", [("a", "1"), ("a", "2")]),
        (b"a", [("a", "")]),
        (b"a=", [("a", "")]),
        (b"=b", [("", "b")]),
        (b"a=b=c", [("a", "b=c")]),
        (b"&&a=1&", [("a", "1")]),
        (b"a=b+c%2Bd", [("a", "b c+d")]),
        (b"caf%C3%A9=%E4%B8%AD", [("café", "中")]),
        (b"a=%zz", [("a", "%zz")]),
        (b"a=%FF", [("a", "\ufffd")]),
    ],
)
def test_queries(query: bytes, pairs: list[tuple[str, str]]) -> None:
    assert parse_query(query) == pairs


def test_at_most_1024_parameters() -> None:
    pairs = parse_query(b"&".join(b"a%d=1" % number for number in range(2000)))

    assert len(pairs) == 1024
    assert pairs[-1] == ("a1023", "1")


def test_text_parameters() -> None:
    parameters = Parameters([("a", "1"), ("a", "2"), ("b", ""), ("", "c")])

    assert [parameters.text(name) for name in ("a", "b", "", "d")] == ["1", "", "c", None]
    assert [parameters.nonempty(name) for name in ("a", "b", "d")] == ["1", None, None]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("0", 0),
        ("-5", -5),
        ("+5", 5),
        ("007", 7),
        ("2147483647", 2147483647),
        ("-2147483648", -2147483648),
        ("2147483648", None),
        ("-2147483649", None),
        ("99999999999", None),
        ("5.0", None),
        ("1e3", None),
        (" 5", None),
        ("5 ", None),
        ("5\n", None),
        ("", None),
        ("+", None),
        ("--5", None),
        ("five", None),
        ("1_000", None),
    ],
)
def test_integers(value: str, number: int | None) -> None:
    assert Parameters([("n", value)]).integer("n") == number


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("1", False), ("yes", False), ("", False)],
)
def test_booleans(value: str, expected: bool, default: bool) -> None:
    assert Parameters([("b", value)]).boolean("b", default) is expected
    assert Parameters([]).boolean("b", default) is default
    assert Parameters([]).integer("b") is None
