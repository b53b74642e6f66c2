from __future__ import annotations

from typing import Any

import pytest

from relight.client import Inputs
from relight.client.payload import Payload, as_inputs, as_payload

BINARY = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b"a", Payload(b"a", BINARY)),
        (bytearray(b"a"), Payload(b"a", BINARY)),
        (memoryview(b"abc")[::2], Payload(b"ac", BINARY)),
        ("é", Payload("é".encode(), TEXT)),
        ("", Payload(b"", TEXT)),
        ({"é": [1, None]}, Payload('{"é": [1, null]}'.encode(), JSON)),
        ({}, Payload(b"{}", JSON)),
        (None, Payload(b"null", JSON)),
        ((1, "a"), Payload(b'[1, "a"]', JSON)),
        (Inputs(a="é", b=b"\x00", c=[1], d=None), {"a": "é".encode(), "b": b"\x00", "c": b"[1]", "d": b"null"}),
        (Inputs({"": ""}), {"": b""}),
        ({"a": bytearray(b"x"), "b": {"c": 1}}, {"a": b"x", "b": b'{"c": 1}'}),
    ],
)
def test_data(data: Any, payload: Payload | dict[str, bytes]) -> None:
    assert as_payload(data) == payload
    assert as_inputs(data) == ({"data": payload.content} if isinstance(payload, Payload) else payload)


@pytest.mark.parametrize("data", [object(), {"a": object()}, Inputs(a=object()), [b"bytes"]])
def test_what_cannot_be_sent(data: Any) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        as_payload(data)
