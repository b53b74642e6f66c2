"""JSON as this protocol needs it: fast where possible, with NaN and infinities as Python writes them."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import TYPE_CHECKING, Any

import msgspec

from relight.api.open_inference.tensors import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relight.api.open_inference.tensors import DataType

encode = msgspec.json.encode
_B64 = "b64"


class ElementError(ValueError):
    """A value cannot be an element of a BYTES tensor."""


def decode(text: bytes | memoryview) -> tuple[Any, bool]:
    """Read a JSON document; `NaN`, `Infinity` and `-Infinity` count as numbers.

    Returns:
        The document, and whether it may hold such numbers.

    Raises:
        ValueError: it is none.
    """
    try:
        return msgspec.json.decode(text), False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The library refuses NaN; what is wrong otherwise, the standard's words tell.
        try:
            return json.loads(bytes(text)), True
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error


def exact(value: Any) -> msgspec.Raw:
    """A part of a document that may hold NaN or infinities, which `encode` would write as null."""
    return msgspec.Raw(json.dumps(value, separators=(",", ":")).encode())


def data_of(datatype: DataType, values: Sequence[Any], *, plain_bytes: bool, short: bool = False) -> msgspec.Raw:
    """The JSON text of a tensor's elements.

    Args:
        datatype: Of the tensor.
        values: Its elements; those of BYTES as bytes.
        plain_bytes: How elements of BYTES are written, see `text_of`.
        short: Whether floats of 32 bits are written with their shortest decimals.
    """
    if datatype.kind == "bytes":
        return msgspec.Raw(encode([text_of(value, plain=plain_bytes) for value in values]))
    if datatype.kind in ("bool", "integer"):
        return msgspec.Raw(encode(values))
    if short and datatype.code == "f":
        values = shorten(values)
    if math.isfinite(sum(values)):
        return msgspec.Raw(encode(values))
    return exact(list(values))


def text_of(element: bytes, *, plain: bool) -> str | dict[str, str]:
    """An element of a BYTES input as the handler gets it.

    Args:
        element: Its bytes.
        plain: If true, their text, or `{"b64": ...}` if they are not UTF-8. If not, base64, as TorchServe has it.
    """
    if plain:
        try:
            return element.decode()
        except UnicodeDecodeError:
            return {_B64: base64.b64encode(element).decode()}
    return base64.b64encode(element).decode()


def bytes_of(value: Any, *, plain: bool) -> bytes:
    """An element of a BYTES output as the client gets it.

    Args:
        value: What the handler gave.
        plain: If true, the UTF-8 of a text, the bytes of `{"b64": ...}`, the JSON text of anything else. If not, always
            the JSON text, as TorchServe has it: a text is in quotes.

    Raises:
        ValueError: it is a list, no base64, or no Unicode.
    """
    if isinstance(value, list):
        raise ElementError("a list is no element")
    if plain and isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if plain and isinstance(value, dict) and value.keys() == {_B64} and isinstance(value[_B64], str):
        try:
            return base64.b64decode(value[_B64], validate=True)
        except binascii.Error as error:
            raise ElementError(f"b64: {error}") from error
    return encode(value)
