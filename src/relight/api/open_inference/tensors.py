"""Tensors: their datatypes, their raw form (little endian, row by row), and lists of values.

Sources: the Open Inference Protocol, "Tensor Data" and "Tensor Data Types"; its binary tensor data extension.
No numpy: the frontend does without, and `array` is as fast for what is needed here.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from relight.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Raw = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")
_LARGEST = 2**63 - 1


class TensorError(BadRequestError):
    """A tensor is not what its datatype and shape say."""


@dataclass(frozen=True, slots=True)
class DataType:
    """A datatype of tensor elements.

    Args:
        name: As the protocol spells it.
        kind: How its elements are turned from and into Python values.
        code: Type code of an `array` of its elements; empty where there is none.
        size: Bytes of an element in the raw form; 0 where elements differ.
        field: Field of `InferTensorContents`; empty where only the raw form holds it.
    """

    name: str
    kind: Literal["bool", "integer", "float", "half", "bfloat", "bytes"]
    code: str
    size: int
    field: str


DATATYPES: dict[str, DataType] = {
    each.name: each
    for each in (
        DataType("BOOL", "bool", "", 1, "bool_contents"),
        DataType("INT8", "integer", "b", 1, "int_contents"),
        DataType("INT16", "integer", "h", 2, "int_contents"),
        DataType("INT32", "integer", "i", 4, "int_contents"),
        DataType("INT64", "integer", "q", 8, "int64_contents"),
        DataType("UINT8", "integer", "B", 1, "uint_contents"),
        DataType("UINT16", "integer", "H", 2, "uint_contents"),
        DataType("UINT32", "integer", "I", 4, "uint_contents"),
        DataType("UINT64", "integer", "Q", 8, "uint64_contents"),
        DataType("FP16", "half", "", 2, ""),
        DataType("BF16", "bfloat", "", 2, ""),
        DataType("FP32", "float", "f", 4, "fp32_contents"),
        DataType("FP64", "float", "d", 8, "fp64_contents"),
        DataType("BYTES", "bytes", "", 0, "bytes_contents"),
    )
}
"""The datatypes by name."""


def datatype_of(name: object, tensor: str) -> DataType:
    """The datatype of that name.

    Args:
        name: As the protocol spells it, or whatever stands in its place.
        tensor: Name of the tensor, for the message.

    Raises:
        TensorError: there is none.
    """
    found = DATATYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise TensorError(f"Tensor {tensor}: unknown datatype {_shown(name)}; expected one of {', '.join(DATATYPES)}.")
    return found


def element_count(shape: Sequence[int], tensor: str) -> int:
    """How many elements a tensor of this shape has; one if the shape is empty.

    Raises:
        TensorError: a dimension is negative, or there are more elements than any tensor can have.
    """
    if any(dimension < 0 for dimension in shape):
        raise TensorError(f"Tensor {tensor}: shape {list(shape)} has a negative dimension.")
    count = math.prod(shape)
    if count > _LARGEST:
        raise TensorError(f"Tensor {tensor}: shape {list(shape)} is too large.")
    return count


def check_count(given: int, shape: Sequence[int], tensor: str) -> None:
    """Compare a number of elements with a shape.

    Raises:
        TensorError: they do not fit.
    """
    expected = element_count(shape, tensor)
    if given != expected:
        raise TensorError(f"Tensor {tensor}: shape {list(shape)} has {expected} elements, but {given} were given.")


# -- from the raw form ---------------------------------------------------------------------------------------------


def from_raw(datatype: DataType, raw: Raw, shape: Sequence[int], tensor: str) -> list[Any]:
    """The elements of a tensor in raw form, those of BYTES as bytes.

    Raises:
        TensorError: the length does not fit datatype and shape.
    """
    if datatype.kind == "bytes":
        elements = _split_bytes(raw, tensor)
        check_count(len(elements), shape, tensor)
        return elements
    expected = element_count(shape, tensor) * datatype.size
    if len(raw) != expected:
        raise TensorError(
            f"Tensor {tensor}: {datatype.name} of shape {list(shape)} has {expected} bytes, but {len(raw)} were given."
        )
    return _FROM_RAW[datatype.kind](datatype.code, raw)


def _split_bytes(raw: Raw, tensor: str) -> list[bytes]:
    elements: list[bytes] = []
    at, end = 0, len(raw)
    while at < end:
        start = at + _LENGTH.size
        if start > end:
            raise TensorError(f"Tensor {tensor}: the BYTES end within the length of element {len(elements)}.")
        at = start + _LENGTH.unpack_from(raw, at)[0]
        if at > end:
            raise TensorError(f"Tensor {tensor}: the BYTES end within element {len(elements)}.")
        elements.append(bytes(raw[start:at]))
    return elements


def _numbers(code: str, raw: Raw) -> list[Any]:
    values = array(code)
    values.frombytes(raw)
    return _little_endian(values).tolist()


def _halves(_: str, raw: Raw) -> list[Any]:
    return list(struct.unpack(f"<{len(raw) // 2}e", raw))


def _bfloats(_: str, raw: Raw) -> list[Any]:
    # The upper half of a float of 32 bits.
    wide = bytearray(2 * len(raw))
    wide[2::4] = raw[0::2]
    wide[3::4] = raw[1::2]
    return _numbers("f", wide)


_FROM_RAW: dict[str, Callable[[str, Raw], list[Any]]] = {
    "bool": lambda _, raw: list(map(bool, raw)),
    "integer": _numbers,
    "float": _numbers,
    "half": _halves,
    "bfloat": _bfloats,
}


def _little_endian(values: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


# -- from values ---------------------------------------------------------------------------------------------------


def fit(datatype: DataType, values: Sequence[Any], tensor: str) -> Sequence[Any]:
    """The values as elements of a number type or BOOL, in a form that protobuf's repeated fields take.

    As TorchServe does, floats are cut towards zero for integer types, and numbers in texts count for float types.

    Raises:
        TensorError: one of them is no number, or out of range.
    """
    try:
        if datatype.kind == "bool":
            return [_bool(value) for value in values]
        if datatype.kind == "integer":
            return _integers(datatype.code, values)
        return _floats("d" if datatype.code == "d" else "f", values)
    except (TypeError, ValueError) as error:
        raise TensorError(f"Tensor {tensor}: {error} for {datatype.name}.") from error
    except OverflowError as error:
        raise TensorError(f"Tensor {tensor}: a value is out of range for {datatype.name}.") from error


def _bool(value: Any) -> bool:
    if value in (0, 1) and not isinstance(value, str):
        return bool(value)
    raise ValueError(f"{_shown(value)} is not valid")


def _integers(code: str, values: Sequence[Any]) -> array[int]:
    try:
        return array(code, values)
    except TypeError:
        return array(code, [_integer(value) for value in values])


def _integer(value: Any) -> int:
    if isinstance(value, (int, float)):
        try:
            return int(value)
        except ValueError as error:
            raise ValueError(f"{value} is not valid") from error
    raise ValueError(f"{_shown(value)} is not valid")


def _floats(code: str, values: Sequence[Any]) -> array[float]:
    try:
        return array(code, values)
    except TypeError:
        return array(code, [_float(value) for value in values])


def _float(value: Any) -> float:
    if isinstance(value, (int, float, str)):
        try:
            return float(value)
        except ValueError as error:
            raise ValueError(f"{_shown(value)} is not valid") from error
    raise ValueError(f"{_shown(value)} is not valid")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


# -- into the raw form ---------------------------------------------------------------------------------------------


def to_raw(datatype: DataType, values: Sequence[Any], tensor: str) -> bytes:
    """The raw form of elements: numbers or bools, or bytes for BYTES.

    Raises:
        TensorError: a value does not fit the datatype.
    """
    if datatype.kind == "bytes":
        return join_bytes(values)
    fitting = fit(datatype, values, tensor)
    if isinstance(fitting, array):
        if datatype.kind == "half":
            return _to_halves(fitting, tensor)
        if datatype.kind == "bfloat":
            return _to_bfloats(fitting)
        return _little_endian(fitting).tobytes()
    return bytes(fitting)


def join_bytes(elements: Iterable[bytes]) -> bytes:
    """The raw form of BYTES: each element after its length in 4 bytes."""
    parts: list[bytes] = []
    for element in elements:
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def _to_halves(values: array[float], tensor: str) -> bytes:
    try:
        return struct.pack(f"<{len(values)}e", *values)
    except OverflowError as error:
        raise TensorError(f"Tensor {tensor}: a value is out of range for FP16.") from error


def _to_bfloats(values: array[float]) -> bytes:
    words = array("I", values.tobytes())
    for index, word in enumerate(words):
        if word & 0x7FFFFFFF > 0x7F800000:
            words[index] = word | 0x00400000  # a NaN stays one, whichever bits are cut off
        else:
            words[index] = min(word + 0x7FFF + (word >> 16 & 1), 0xFFFFFFFF)  # to the nearest, ties to even
    raw = _little_endian(words).tobytes()
    halves = bytearray(len(raw) // 2)
    halves[0::2] = raw[2::4]
    halves[1::2] = raw[3::4]
    return bytes(halves)


# -- decimals ------------------------------------------------------------------------------------------------------

_MOST_AT_ONCE = 4096


def shorten(values: Sequence[float]) -> list[float]:
    """For floats of 32 bits, the numbers that decimals of seven, or else eight or nine digits stand for.

    So 0.10000000149011612 becomes 0.1. They are the same floats of 32 bits.

    Args:
        values: Floats that 32 bits hold exactly.
    """
    result: list[float] = []
    for at in range(0, len(values), _MOST_AT_ONCE):
        result += _shorten(list(values[at : at + _MOST_AT_ONCE]))
    return result


def _shorten(values: list[float]) -> list[float]:
    # Seven digits do for what people write, and leave trailing zeros out; nine do for every float of 32 bits.
    result = _rounded("%.7g ", values)
    for form in ("%.8g ", "%.9g "):
        if (back := array("f", result).tolist()) == values:
            break
        wrong = [index for index, (value, got) in enumerate(zip(values, back, strict=True)) if value != got]
        for index, better in zip(wrong, _rounded(form, [values[index] for index in wrong]), strict=True):
            result[index] = better
    return result


def _rounded(form: str, values: list[float]) -> list[float]:
    return list(map(float, (form * len(values) % tuple(values)).split()))
