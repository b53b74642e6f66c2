"""What a caller may send, and the bytes that it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Data", "Inputs", "Payload", "as_inputs", "as_payload"]

Data = Any
"""Bytes, text, named inputs, or anything that JSON can say."""

DATA_KEY = "data"
"""The name of a single input over gRPC, where each input has one; clients of TorchServe agree on it."""


class Inputs(dict[str, Data]):
    """Named inputs: the handler finds each in its request, under its name, as a bytearray.

    A mapping with a bytes value among its values is taken for named inputs without being wrapped, as JSON has no bytes.

        Inputs(image=image_bytes, top=3)
    """


@dataclass(frozen=True)
class Payload:
    """One input without a name.

    Attributes:
        content: Its bytes.
        media_type: What they are.
    """

    content: bytes
    media_type: str


def as_payload(data: Data) -> Payload | dict[str, bytes]:
    """Return the data as one body, or as named parts.

    Raises:
        TypeError: It is neither bytes nor text, and JSON cannot say it.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        return Payload(bytes(data), "application/octet-stream")
    if isinstance(data, str):
        return Payload(data.encode(), "text/plain; charset=utf-8")
    if isinstance(data, Mapping) and (isinstance(data, Inputs) or any(_is_bytes(value) for value in data.values())):
        return {name: _part(value) for name, value in data.items()}
    return Payload(_json(data), "application/json")


def as_inputs(data: Data) -> dict[str, bytes]:
    """Return the data as named inputs; a single one is called `data`.

    Raises:
        TypeError: As `as_payload`.
    """
    payload = as_payload(data)
    return {DATA_KEY: payload.content} if isinstance(payload, Payload) else payload


def _part(value: Data) -> bytes:
    if _is_bytes(value):
        return bytes(value)
    return value.encode() if isinstance(value, str) else _json(value)


def _is_bytes(value: object) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


def _json(data: Data) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()
