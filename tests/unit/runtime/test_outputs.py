"""What becomes of a handler's result (archives_and_handlers.md §2.5)."""

from __future__ import annotations

import http
from typing import Any

import pytest

from relight.runtime.outputs import UnsupportedOutputError, build_answer, encode_item
from relight.sdk.context import RequestProcessor
from relight.wire.messages import Answer


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("item", "body"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (b"", b""),
        ("é中", "é中".encode()),
        ("", b""),
        (Text("x"), b"x"),
        ("\udcff", b"\xff"),
        (None, b"null"),
        (7, b"7"),
        (1.5, b"1.5"),
        (True, b"true"),
        (float("nan"), b"NaN"),
        (float("-inf"), b"-Infinity"),
        ([], b"[]"),
        ({}, b"{}"),
        ((1, 2), b"[\n  1,\n  2\n]"),
        ({"k": "é中"}, b'{\n  "k": "\\u00e9\\u4e2d"\n}'),
        ({"a": [1, {"b": None}]}, b'{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}'),
        ({2: "a", None: "b", True: "c"}, b'{\n  "2": "a",\n  "null": "b",\n  "true": "c"\n}'),
    ],
)
def test_items(item: object, body: bytes) -> None:
    assert encode_item(item) == body


_loop: list[Any] = []
_loop.append(_loop)
_deep: list[Any] = []
for _ in range(100_000):
    _deep = [_deep]


@pytest.mark.parametrize(
    "item", [{1, 2}, object(), {"a": {1}}, {(1, 2): 3}, [b"x"], 1j, range(3), memoryview(b"x"), _loop, _deep],
    ids=["set", "object", "nested set", "tuple key", "nested bytes", "complex", "range", "view", "loop", "deep"],
)  # fmt: skip
def test_items_that_cannot_be_sent(item: object) -> None:
    with pytest.raises(UnsupportedOutputError):
        encode_item(item)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    from io import BytesIO

    body = encode_item(torch.ones(2))

    assert torch.load(BytesIO(body)).tolist() == [1.0, 1.0]


def answer_of(
    body: bytes = b"body", *, limit: int = 100, status: Any = 200, phrase: Any = None, **headers: Any
) -> tuple[Answer, bytes]:
    processor = RequestProcessor({})
    processor.report_status(status, phrase)
    for name, value in headers.items():
        processor.add_response_property(name.replace("_", "-"), value)
    answer, sent = build_answer(body, processor, limit)
    assert answer.length == len(sent)
    return answer, bytes(sent)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({}, Answer(4)),
        ({"status": 201}, Answer(4, 201)),
        ({"status": 418, "phrase": "I am a teapot"}, Answer(4, 418, "I am a teapot")),
        ({"phrase": ""}, Answer(4)),
        ({"status": None}, Answer(4)),
        ({"status": 999}, Answer(4, 999)),
        ({"status": http.HTTPStatus.CREATED}, Answer(4, 201)),
        ({"X_Mine": "yes"}, Answer(4, headers={"X-Mine": "yes"})),
        ({"A": "", "B": "a\tb"}, Answer(4, headers={"A": "", "B": "a\tb"})),
        ({"A": "é中"}, Answer(4, headers={"A": "é中"})),
    ],
)
def test_answers(given: dict[str, Any], answer: Answer) -> None:
    assert answer_of(**given) == (answer, b"body")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"status": 0}, "Invalid response status 0: must be an integer from 200 to 999."),
        ({"status": -1}, "Invalid response status -1: must be an integer from 200 to 999."),
        ({"status": 1000}, "Invalid response status 1000: must be an integer from 200 to 999."),
        ({"status": "200"}, "Invalid response status '200': must be an integer from 200 to 999."),
        ({"status": 200.0, "A": "b"}, "Invalid response status 200.0: must be an integer from 200 to 999."),
        ({"phrase": "a\r\nb"}, "Invalid response status phrase 'a\\r\\nb': must be one line of text."),
        ({"phrase": 5}, "Invalid response status phrase 5: must be one line of text."),
        ({"A": 5}, "Invalid value 5 of response header A: must be one line of text."),
        ({"A": "b\r\nEvil: c"}, "Invalid value 'b\\r\\nEvil: c' of response header A: must be one line of text."),
        ({"A": "b\0"}, "Invalid value 'b\\x00' of response header A: must be one line of text."),
        ({"A b": "c"}, "Invalid response header name 'A b'."),
        ({"A:": "c"}, "Invalid response header name 'A:'."),
        ({"": "c"}, "Invalid response header name ''."),
        ({"é": "c"}, "Invalid response header name 'é'."),
    ],
)
def test_what_a_handler_sets_wrongly_concerns_its_request_alone(given: dict[str, Any], message: str) -> None:
    assert answer_of(**given) == (Answer(len(message.encode()), 500, error=True), message.encode())


@pytest.mark.parametrize("status", [100, 101, 199])
def test_an_interim_status_is_no_answer(status: int) -> None:
    assert answer_of(status=status)[0].error


@pytest.mark.parametrize(("size", "refused"), [(100, False), (101, True)])
def test_the_largest_answer(size: int, refused: bool) -> None:
    answer, body = answer_of(b"x" * size)

    assert answer.error is refused
    if refused:
        assert (answer.status, body) == (500, b"Response of 101 bytes exceeds max_response_size 100.")
