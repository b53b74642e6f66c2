"""What handlers get (archives_and_handlers.md §2.5, §3)."""

from __future__ import annotations

from typing import Any

import pytest

from relight.runtime.inputs import decode_rows, headers_of
from relight.wire.messages import Item

Part = tuple[str, str, bytes]


def rows_of(*items: list[Part], decode: bool = True, view: bool = False) -> list[dict[str, Any]]:
    payload = b"".join(data for parts in items for _, _, data in parts)
    made = [Item("id", [], {}, [(name, kind, len(data)) for name, kind, data in parts]) for parts in items]
    return decode_rows(made, memoryview(bytearray(payload)) if view else payload, decode)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("application/json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("application/json", b"3", 3),
        ("application/json", b"NaN1", bytearray(b"NaN1")),
        ("application/json", b"{", bytearray(b"{")),
        ("application/json", b"", bytearray()),
        ("application/json", b"\xff\xfe\x00", bytearray(b"\xff\xfe\x00")),
        ("Application/JSON", b"1", bytearray(b"1")),
        ("application/jsonl", b"1", bytearray(b"1")),
        ("text/plain", b"caf\xc3\xa9", "café"),
        ("text", b"x", "x"),
        ("text/x", b"", ""),
        ("text/plain", b"\xff", bytearray(b"\xff")),
        ("Text/plain", b"x", bytearray(b"x")),
        ("image/png", b"\x89PNG", bytearray(b"\x89PNG")),
        ("", b"x", bytearray(b"x")),
        ("", b"", bytearray()),
    ],
)
def test_values(kind: str, data: bytes, value: object, view: bool, others: int) -> None:
    rows = rows_of([("body", kind, data)], *[[("body", "text/plain", b"other")]] * others, view=view)

    assert rows[0] == {"body": value}
    assert type(rows[0]["body"]) is type(value)
    assert rows[1:] == [{"body": "other"}] * others


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000])
def test_json_that_is_nested_too_deep_is_not_decoded(data: bytes) -> None:
    assert rows_of([("body", "application/json", data)]) == [{"body": bytearray(data)}]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
def test_nothing_is_decoded_when_that_is_off(kind: str) -> None:
    assert rows_of([("body", kind, b"1")], decode=False) == [{"body": bytearray(b"1")}]
    assert rows_of([("a", kind, b"1"), ("b", kind, b"2")], decode=False) == [
        {"a": bytearray(b"1"), "b": bytearray(b"2")}
    ]


def test_several_inputs_of_several_requests() -> None:
    rows = rows_of(
        [("data", "application/json", b"[1]"), ("label", "", b"cat"), ("empty", "", b"")],
        [],
        [("body", "text/plain", b"hello")],
    )

    assert rows == [{"data": [1], "label": bytearray(b"cat"), "empty": bytearray()}, {}, {"body": "hello"}]
    assert [list(row) for row in rows] == [["data", "label", "empty"], [], ["body"]]


def test_a_large_body_is_not_copied() -> None:
    body = bytearray(100_000)

    (row,) = decode_rows([Item("id", [], {}, [("body", "", len(body))])], memoryview(body), True)

    assert row["body"] is body


@pytest.mark.parametrize(
    ("parts", "headers", "added", "expected"),
    [
        ([("body", "text/plain", 1)], [], {}, {"body": {"content-type": "text/plain"}}),
        ([("a", "", 1), ("b", "x/y", 1)], [], {}, {"a": {"content-type": ""}, "b": {"content-type": "x/y"}}),
        ([], [(b"Content-Type", b"x"), (b"content-length", b"0")], {}, {"Content-Type": "x", "content-length": "0"}),
        ([], [(b"A", b"1"), (b"a", b"2"), (b"A", b"3")], {}, {"A": "3", "a": "2"}),
        ([], [(b"A", b"caf\xc3\xa9")], {}, {"A": "caf\u00c3\u00a9"}),
        ([("body", "", 1)], [(b"body", b"mine")], {}, {"body": "mine"}),
        ([], [(b"explain", b"x")], {"explain": "True", "url_path": "a/b"}, {"explain": "True", "url_path": "a/b"}),
    ],
)
def test_headers(
    parts: list[tuple[str, str, int]],
    headers: list[tuple[bytes, bytes]],
    added: dict[str, str],
    expected: dict[str, Any],
) -> None:
    assert headers_of(Item("id", headers, added, parts)) == expected
