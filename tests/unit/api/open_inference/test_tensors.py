"""Tensors between their raw form and values, with numpy as the oracle."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from relight.api.open_inference.json_data import bytes_of, data_of, decode, text_of
from relight.api.open_inference.tensors import (
    DATATYPES,
    TensorError,
    check_count,
    datatype_of,
    element_count,
    fit,
    from_raw,
    shorten,
    to_raw,
)

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
FEW = settings(max_examples=30, deadline=None)
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
FLOATS_32 = st.floats(width=32, allow_nan=False)


def arrays(name: str) -> Any:
    return npst.arrays(DTYPES[name], SHAPES)


@pytest.mark.parametrize("name", DTYPES)
@FEW
@given(data=st.data())
def test_raw_values_are_numpys(name: str, data: st.DataObject) -> None:
    values = data.draw(arrays(name))
    got = from_raw(DATATYPES[name], values.tobytes(), list(values.shape), "t")
    np.testing.assert_array_equal(np.array(got, values.dtype), values.ravel())
    assert all(type(value) is type(other) for value, other in zip(got, values.ravel().tolist(), strict=True))


@pytest.mark.parametrize("name", DTYPES)
@FEW
@given(data=st.data())
def test_raw_there_and_back(name: str, data: st.DataObject) -> None:
    values = data.draw(arrays(name))
    datatype = DATATYPES[name]
    back = to_raw(datatype, from_raw(datatype, values.tobytes(), list(values.shape), "t"), "t")
    np.testing.assert_array_equal(np.frombuffer(back, values.dtype), values.ravel())


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "FP16"])
@FEW
@given(data=st.data())
def test_json_there_and_back(name: str, data: st.DataObject) -> None:
    values = data.draw(arrays(name))
    datatype = DATATYPES[name]
    for short in (False, True):
        text = data_of(datatype, values.ravel().tolist(), plain_bytes=True, short=short)
        np.testing.assert_array_equal(np.array(json.loads(bytes(text)), values.dtype), values.ravel())


@FEW
@given(st.lists(st.integers(0, 2**16 - 1)))
def test_bfloats_are_read_as_others_read_them(words: list[int]) -> None:
    raw = struct.pack(f"<{len(words)}H", *words)
    expected = np.frombuffer(raw, ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(from_raw(DATATYPES["BF16"], raw, [len(words)], "t"), expected)


@FEW
@given(st.lists(st.floats(width=32)))
def test_bfloats_are_written_as_others_write_them(values: list[float]) -> None:
    expected = np.array(values, np.float32).astype(ml_dtypes.bfloat16)
    got = np.frombuffer(to_raw(DATATYPES["BF16"], values, "t"), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@FEW
@given(st.lists(st.binary(max_size=20)))
def test_bytes_there_and_back(elements: list[bytes]) -> None:
    raw = to_raw(DATATYPES["BYTES"], elements, "t")
    assert from_raw(DATATYPES["BYTES"], raw, [len(elements)], "t") == elements
    assert from_raw(DATATYPES["BYTES"], memoryview(raw), [1, len(elements)], "t") == elements


@FEW
@given(st.binary(max_size=40), st.integers(0, 5))
def test_any_bytes_are_elements_or_refused(raw: bytes, count: int) -> None:
    try:
        elements = from_raw(DATATYPES["BYTES"], raw, [count], "t")
    except TensorError:
        return
    assert to_raw(DATATYPES["BYTES"], elements, "t") == raw


@FEW
@given(st.binary(max_size=20))
def test_texts_of_elements_there_and_back(element: bytes) -> None:
    assert bytes_of(text_of(element, plain=True), plain=True) == element


@FEW
@given(st.lists(FLOATS_32, max_size=50))
def test_shortened_floats_are_the_same_floats_of_32_bits(values: list[float]) -> None:
    shortened = shorten(values)
    np.testing.assert_array_equal(np.array(shortened, np.float32), np.array(values, np.float32))
    assert all(_digits(short) <= _digits(value) for short, value in zip(shortened, values, strict=True))


def _digits(value: float) -> int:
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


@FEW
@given(st.lists(st.integers(-9_999_999, 9_999_999).map(lambda number: number / 1000), max_size=50))
def test_decimals_of_seven_digits_survive(decimals: list[float]) -> None:
    assert shorten(np.array(decimals, np.float32).tolist()) == [value + 0.0 for value in decimals]


def test_shortened_odd_floats() -> None:
    nan, *others = shorten([math.nan, math.inf, -math.inf, 5.0, 3.4028234663852886e38])
    assert math.isnan(nan)
    assert others == [math.inf, -math.inf, 5.0, 3.4028235e38]


def test_many_floats_are_shortened_in_pieces() -> None:
    values = np.arange(10_000, dtype=np.float32) / np.float32(10)
    assert shorten(values.tolist()) == [number / 10 for number in range(10_000)]


def test_json_of_odd_floats() -> None:
    assert bytes(data_of(DATATYPES["FP32"], [math.nan, math.inf, 1.0], plain_bytes=True)) == b"[NaN,Infinity,1.0]"
    assert bytes(data_of(DATATYPES["FP64"], [1e308, 1e308], plain_bytes=True)) == b"[1e+308,1e+308]"
    assert decode(b"[NaN]")[1] is True


def test_json_of_large_integers() -> None:
    assert bytes(data_of(DATATYPES["UINT64"], [2**64 - 1], plain_bytes=True)) == b"[18446744073709551615]"


@pytest.mark.parametrize(
    ("plain", "expected"), [(True, b'["abc",{"b64":"/w=="},"\xc3\xa9"]'), (False, b'["YWJj","/w==","w6k="]')]
)
def test_json_of_bytes(plain: bool, expected: bytes) -> None:
    assert bytes(data_of(DATATYPES["BYTES"], [b"abc", b"\xff", "é".encode()], plain_bytes=plain)) == expected


@pytest.mark.parametrize(
    ("value", "plain", "quoted"),
    [
        ("abc", b"abc", b'"abc"'),
        ("é", "é".encode(), '"é"'.encode()),
        (5, b"5", b"5"),
        (None, b"null", b"null"),
        (True, b"true", b"true"),
        ({"a": [1]}, b'{"a":[1]}', b'{"a":[1]}'),
        ({"b64": "/w=="}, b"\xff", b'{"b64":"/w=="}'),
    ],
)
def test_elements_of_answers(value: Any, plain: bytes, quoted: bytes) -> None:
    assert bytes_of(value, plain=True) == plain
    assert bytes_of(value, plain=False) == quoted


@pytest.mark.parametrize("value", [[1], {"b64": "*"}])
def test_values_that_are_no_elements(value: Any) -> None:
    with pytest.raises(ValueError, match=r"a list is no element|b64: "):
        bytes_of(value, plain=True)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("INT32", [1.9, -1.9, 3], [1, -1, 3]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("FP32", ["1.5", 2], [1.5, 2.0]),
        ("FP64", [10**20], [1e20]),
        ("BOOL", [True, 0, 1], [True, False, True]),
    ],
)
def test_values_are_made_to_fit(name: str, values: list[Any], expected: list[Any]) -> None:
    assert list(fit(DATATYPES[name], values, "t")) == expected


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("INT8", [128], "Tensor t: a value is out of range for INT8."),
        ("UINT8", [-1], "Tensor t: a value is out of range for UINT8."),
        ("INT32", ["1"], "Tensor t: '1' is not valid for INT32."),
        ("INT32", [1.5, math.nan], "Tensor t: nan is not valid for INT32."),
        ("INT32", [1.5, math.inf], "Tensor t: a value is out of range for INT32."),
        ("FP32", [[1.0]], "Tensor t: [1.0] is not valid for FP32."),
        ("FP32", ["abc"], "Tensor t: 'abc' is not valid for FP32."),
        ("FP32", [None], "Tensor t: None is not valid for FP32."),
        ("FP64", [10**400], "Tensor t: a value is out of range for FP64."),
        ("BOOL", ["true"], "Tensor t: 'true' is not valid for BOOL."),
        ("BOOL", [2], "Tensor t: 2 is not valid for BOOL."),
        ("FP16", [70000.0], "Tensor t: a value is out of range for FP16."),
    ],
)
def test_values_that_do_not_fit(name: str, values: list[Any], message: str) -> None:
    with pytest.raises(TensorError) as caught:
        to_raw(DATATYPES[name], values, "t")
    assert caught.value.message == message


def test_counts() -> None:
    assert element_count([], "t") == 1
    assert element_count([2, 0, 3], "t") == 0
    check_count(6, [2, 3], "t")
    for shape, message in (
        ([2, 3], "shape [2, 3] has 6 elements, but 5 were given."),
        ([2, -1], "shape [2, -1] has a negative dimension."),
        ([2**40, 2**40], "shape [1099511627776, 1099511627776] is too large."),
    ):
        with pytest.raises(TensorError) as caught:
            check_count(5, shape, "t")
        assert caught.value.message == f"Tensor t: {message}"


def test_unknown_datatypes() -> None:
    with pytest.raises(TensorError, match="Tensor t: unknown datatype 'FP8'; expected one of BOOL, INT8, "):
        datatype_of("FP8", "t")
