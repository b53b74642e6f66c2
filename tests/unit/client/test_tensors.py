from __future__ import annotations

import builtins
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.client import grpc_tensors, http_tensors
from relight.client.api import InferenceCall
from relight.client.requests import HttpResponse
from relight.client.tensors import as_array, datatype_of, from_raw, from_values, to_raw, to_values
from relight.protos import open_inference_grpc_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATATYPES = {
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


def example(datatype: str) -> NDArray[Any]:
    dtype: np.dtype[Any] = np.dtype(DATATYPES[datatype])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([[info.min, 0, 1], [info.max, 2, 3]], dtype)
    return np.array([[0, 1, 0], [1, 1, 0]], dtype)


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("order", ["C", "F", "big endian", "strided"])
def test_numbers_there_and_back(datatype: str, order: str) -> None:
    array = example(datatype)
    given_array = {
        "C": array,
        "F": np.asfortranarray(array),
        "big endian": array.astype(array.dtype.newbyteorder(">")),
        "strided": np.repeat(array, 2, axis=1)[:, ::2],
    }[order]
    assert datatype_of(given_array) == datatype
    for back in (
        from_raw(datatype, array.shape, to_raw(given_array)),
        from_values(datatype, array.shape, to_values(given_array)),
    ):
        assert back.dtype == array.dtype
        assert back.flags.writeable
        np.testing.assert_array_equal(back, array)


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_bytes_there_and_back(values: list[bytes]) -> None:
    array = np.empty(len(values), object)
    array[:] = values
    assert datatype_of(array) == "BYTES"
    assert from_raw("BYTES", [len(values)], to_raw(array)).tolist() == values
    assert from_values("BYTES", [len(values)], to_values(array)).tolist() == values


@given(st.binary(max_size=40))
def test_raw_bytes_never_crash(raw: bytes) -> None:
    try:
        elements = from_raw("BYTES", [len(raw)], raw).tolist()
    except ValueError:
        return
    assert raw == b"".join(len(each).to_bytes(4, "little") + each for each in elements)


@pytest.mark.parametrize("values", [["é", "b"], [b"\xc3\xa9", b"b"], np.array(["é", "b"], object)])
def test_texts(values: Any) -> None:
    assert to_values(as_array(values)) == ["é".encode(), b"b"]


def test_brain_floats() -> None:
    assert from_raw("BF16", [2], b"\x80\x3f\x20\xc0").tolist() == [1.0, -2.5]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    assert (datatype_of(array), to_raw(array)) == ("BF16", b"\x80\x3f\x20\xc0")


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("FP32", [2], b"1234"),
        ("FP32", [1], b"12345"),
        ("FP32", [-1], b"1234"),
        ("FP99", [1], b"1"),
        ("BYTES", [1], b"\x02\x00\x00\x00a"),
        ("BYTES", [1], b"\x02\x00"),
        ("BYTES", [2], b"\x00\x00\x00\x00"),
        ("BF16", [1], b"123"),
    ],
)
def test_raw_tensors_that_do_not_fit(datatype: str, shape: list[int], raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_raw(datatype, shape, raw)


def test_values_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"FP32 tensor of shape \[2\] with 3 elements"):
        from_values("FP32", [2], [1, 2, 3])


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["2026-01-01"], "datetime64[D]")])
def test_arrays_without_a_datatype(array: NDArray[Any]) -> None:
    with pytest.raises(TypeError, match="no datatype for numpy's"):
        datatype_of(array)


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return whole(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install numpy"):
        as_array([1])


INPUTS = {"x": np.array([[1.5, 2.5]], np.float32), "names": np.array(["a", "é"])}


def test_http_binary_request() -> None:
    call = InferenceCall("m", INPUTS, outputs=("y",), parameters={"p": 1})
    content, headers = http_tensors.encode(call)
    length = int(headers["Inference-Header-Content-Length"])
    assert headers["Content-Type"] == "application/octet-stream"
    assert json.loads(content[:length]) == {
        "inputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
            {"name": "names", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}},
        ],
        "outputs": [{"name": "y"}],
        "parameters": {"p": 1, "binary_data_output": True},
    }
    assert content[length:] == INPUTS["x"].tobytes() + b"\x01\0\0\0a" + b"\x02\0\0\0" + "é".encode()


def test_http_json_request() -> None:
    content, headers = http_tensors.encode(InferenceCall("m", INPUTS, binary=False))
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(content) == {
        "inputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2.5]},
            {"name": "names", "shape": [2], "datatype": "BYTES", "data": ["a", "é"]},
        ]
    }


def test_http_answers_may_mix_both_forms() -> None:
    document = {
        "outputs": [
            {"name": "a", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
            {"name": "b", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]},
            {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
            {"name": "d", "datatype": "FP64", "shape": [0], "data": []},
        ]
    }
    text = json.dumps(document).encode()
    raw = b"\x01\0\0\0\x02\0\0\0" + b"\x01\0\0\0x"
    headers = {"inference-header-content-length": str(len(text))}
    found = http_tensors.decode(HttpResponse(200, headers, text + raw))
    assert {name: value.tolist() for name, value in found.items()} == {
        "a": [1, 2],
        "b": [[1.0, 2.0], [3.0, 4.0]],
        "c": [b"x"],
        "d": [],
    }


def test_grpc_requests() -> None:
    parameters: dict[str, bool | int | str] = {"flag": True, "count": 3, "text": "t"}
    call = InferenceCall("m", INPUTS, version="2", outputs=("y",), parameters=parameters)
    request = grpc_tensors.encode(call)
    assert (request.model_name, request.model_version) == ("m", "2")
    assert [output.name for output in request.outputs] == ["y"]
    assert list(request.raw_input_contents) == [to_raw(array) for array in INPUTS.values()]
    assert not any(each.HasField("contents") for each in request.inputs)
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in request.parameters.items()}
    assert chosen == {"flag": "bool_param", "count": "int64_param", "text": "string_param"}
    typed = grpc_tensors.encode(InferenceCall("m", INPUTS, binary=False))
    assert list(typed.inputs[0].contents.fp32_contents) == [1.5, 2.5]
    assert list(typed.inputs[1].contents.bytes_contents) == [b"a", "é".encode()]
    assert not typed.raw_input_contents


def test_half_floats_have_no_typed_contents() -> None:
    with pytest.raises(TypeError, match="FP16 tensors have no typed contents"):
        grpc_tensors.encode(InferenceCall("m", {"x": np.array([1.0], np.float16)}, binary=False))


def test_grpc_answers() -> None:
    output = pb.ModelInferResponse.InferOutputTensor
    raw = pb.ModelInferResponse(
        outputs=[output(name="a", datatype="INT32", shape=[2])], raw_output_contents=[b"\x01\0\0\0\x02\0\0\0"]
    )
    assert grpc_tensors.decode(raw)["a"].tolist() == [1, 2]
    contents = pb.InferTensorContents(uint_contents=[1, 255])
    typed = pb.ModelInferResponse(outputs=[output(name="a", datatype="UINT8", shape=[2, 1], contents=contents)])
    assert grpc_tensors.decode(typed)["a"].tolist() == [[1], [255]]
    with pytest.raises(ValueError, match="shorter"):
        grpc_tensors.decode(pb.ModelInferResponse(outputs=[raw.outputs[0]] * 2, raw_output_contents=[bytes(8)]))
