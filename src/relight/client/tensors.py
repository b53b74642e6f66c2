"""Numpy arrays as tensors of the Open Inference Protocol. Numpy is imported when it is first needed."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numpy.typing import NDArray

__all__ = ["as_array", "datatype_of", "from_raw", "from_values", "to_raw", "to_values"]

_DTYPES: Final = {
    "BOOL": "|b1",
    "INT8": "|i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "|u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
_DATATYPES: Final = {
    "bool": "BOOL",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_TEXT_KINDS: Final = "SUOT"
_LENGTH: Final = struct.Struct("<I")


def numpy() -> ModuleType:
    """Return the numpy module.

    Raises:
        ImportError: It is not installed; the message says how to get it.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise ImportError("infer() works on numpy arrays, and numpy is not installed: pip install numpy") from error
    return np


def as_array(value: Any) -> NDArray[Any]:
    """Return the value as an array."""
    array: NDArray[Any] = numpy().asarray(value)
    return array


def datatype_of(array: NDArray[Any]) -> str:
    """Return the protocol's name for the type of the array's elements; texts, bytes and objects are BYTES.

    Raises:
        TypeError: It has none.
    """
    if array.dtype.kind in _TEXT_KINDS:
        return "BYTES"
    datatype = _DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise TypeError(f"the Open Inference Protocol has no datatype for numpy's {array.dtype}")
    return datatype


def to_raw(array: NDArray[Any]) -> bytes:
    """Return the elements as the protocol's binary form: row by row, little endian, BYTES each after its length."""
    if array.dtype.kind in _TEXT_KINDS:
        return b"".join(part for each in array.ravel() for part in _with_length(_bytes(each)))
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def from_raw(datatype: str, shape: Sequence[int], raw: bytes) -> NDArray[Any]:
    """Return the array of a tensor in binary form; BYTES become an array of bytes objects, BF16 becomes float32.

    Raises:
        ValueError: Length, shape and datatype do not go together.
    """
    np = numpy()
    array: NDArray[Any]
    if datatype == "BYTES":
        array = _objects(_split(raw))
    elif datatype == "BF16":
        array = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        array = np.frombuffer(raw, _dtype(datatype)).copy()
    return _shaped(array, datatype, shape)


def to_values(array: NDArray[Any]) -> list[Any]:
    """Return the elements, row by row, as Python's own; those of BYTES as bytes."""
    if array.dtype.kind in _TEXT_KINDS:
        return [_bytes(each) for each in array.ravel()]
    values: list[Any] = array.ravel().tolist()
    return values


def from_values(datatype: str, shape: Sequence[int], values: Sequence[Any]) -> NDArray[Any]:
    """Return the array of a tensor whose elements are listed; texts of BYTES become bytes in UTF-8.

    Raises:
        ValueError: Number, shape and datatype do not go together.
    """
    if datatype == "BYTES":
        return _shaped(_objects([_bytes(each) for each in values]), datatype, shape)
    dtype = "<f4" if datatype == "BF16" else _dtype(datatype)
    return _shaped(numpy().asarray(values, dtype).ravel(), datatype, shape)


def _dtype(datatype: str) -> str:
    try:
        return _DTYPES[datatype]
    except KeyError:
        raise ValueError(f"unknown datatype {datatype!r}") from None


def _shaped(array: NDArray[Any], datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    if array.size != math.prod(shape):
        raise ValueError(f"a {datatype} tensor of shape {list(shape)} with {array.size} elements")
    return array.reshape(tuple(shape))


def _objects(values: list[bytes]) -> NDArray[Any]:
    array: NDArray[Any] = numpy().empty(len(values), object)
    array[:] = values
    return array


def _bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, (bytes, bytearray)) else str(value).encode()


def _with_length(value: bytes) -> tuple[bytes, bytes]:
    return _LENGTH.pack(len(value)), value


def _split(raw: bytes) -> list[bytes]:
    values: list[bytes] = []
    at = 0
    while at < len(raw):
        if at + _LENGTH.size > len(raw):
            raise ValueError("a BYTES tensor ends inside a length")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if at + length > len(raw):
            raise ValueError("a BYTES tensor ends inside an element")
        values.append(raw[at : at + length])
        at += length
    return values
