"""Requests and answers as protobuf's messages."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.api.open_inference.messages import metadata_message, read_message, result_message
from relight.api.open_inference.metadata import ModelMetadata, TensorMetadata
from relight.api.open_inference.request import AnswerForm, Target
from relight.api.open_inference.response import read_result
from relight.api.open_inference.tensors import DATATYPES, to_raw
from relight.errors import BadRequestError, InternalServerError
from relight.protos import open_inference_grpc_pb2 as pb

FEW = settings(max_examples=30, deadline=None)
TARGET = Target("m", "1.0", {})

ELEMENTS: dict[str, Any] = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-128, 127),
    "INT16": st.integers(-(2**15), 2**15 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "UINT8": st.integers(0, 255),
    "UINT16": st.integers(0, 2**16 - 1),
    "UINT32": st.integers(0, 2**32 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP64": st.floats(allow_nan=False),
    "BYTES": st.binary(max_size=6),
}


def typed(datatype: str, values: list[Any], shape: list[int] | None = None) -> pb.ModelInferRequest.InferInputTensor:
    contents = pb.InferTensorContents(**{DATATYPES[datatype].field: values})
    return pb.ModelInferRequest.InferInputTensor(
        name="a", datatype=datatype, shape=[len(values)] if shape is None else shape, contents=contents
    )


def echoed(body: bytes, form: AnswerForm) -> pb.ModelInferResponse:
    """The message of an answer that holds the request's tensors."""
    document = json.loads(body)
    answer = {"id": document["id"], "model_name": "m", "model_version": "1.0", "outputs": document["inputs"]}
    return result_message(read_result(json.dumps(answer).encode(), form), form)


@pytest.mark.parametrize("datatype", ELEMENTS)
@pytest.mark.parametrize("legacy", [True, False])
@FEW
@given(data=st.data())
def test_typed_there_and_back(datatype: str, legacy: bool, data: st.DataObject) -> None:
    values = data.draw(st.lists(ELEMENTS[datatype]))
    request = pb.ModelInferRequest(id="i", inputs=[typed(datatype, values)])
    request.parameters["plain_bytes"].bool_param = True
    message = echoed(*read_message(request, TARGET, legacy=legacy))
    (output,) = message.outputs
    assert (message.id, output.name, output.datatype, list(output.shape)) == ("i", "a", datatype, [len(values)])
    assert list(getattr(output.contents, DATATYPES[datatype].field)) == values
    assert not message.raw_output_contents


@pytest.mark.parametrize("datatype", ELEMENTS)
@FEW
@given(data=st.data())
def test_raw_there_and_back(datatype: str, data: st.DataObject) -> None:
    raw = [to_raw(DATATYPES[datatype], data.draw(st.lists(ELEMENTS[datatype], min_size=2, max_size=2)), "a")] * 2
    tensor = pb.ModelInferRequest.InferInputTensor(name="a", datatype=datatype, shape=[2, 1])
    request = pb.ModelInferRequest(inputs=[tensor, tensor], raw_input_contents=raw)
    message = echoed(*read_message(request, TARGET, legacy=False))
    assert list(message.raw_output_contents) == raw
    assert not any(output.HasField("contents") for output in message.outputs)


def test_short_decimals_for_typed_tensors_that_are_not_large() -> None:
    body, _ = read_message(pb.ModelInferRequest(inputs=[typed("FP32", [0.1])]), TARGET, legacy=False)
    assert b'"data":[0.1]' in body
    tensor = pb.ModelInferRequest.InferInputTensor(name="a", datatype="FP32", shape=[1])
    request = pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[struct.pack("<f", 0.1)])
    body, _ = read_message(request, TARGET, legacy=False)
    assert b'"data":[0.10000000149011612]' in body
    many = pb.ModelInferRequest(inputs=[typed("FP32", [0.1] * 8192), typed("FP32", [0.1] * 8193)])
    body, _ = read_message(many, TARGET, legacy=True)
    assert b'"data":[0.10000000149011612,' in body


@pytest.mark.parametrize(
    ("legacy", "raw", "config", "plain"),
    [
        (True, False, {}, False),
        (True, True, {}, True),
        (False, False, {}, True),
        (True, False, {"plainBytes": True}, True),
        (False, True, {"plainBytes": False}, False),
        (True, False, {"plainBytes": "yes"}, False),
    ],
)
def test_who_gets_plain_bytes(legacy: bool, raw: bool, config: dict[str, Any], plain: bool) -> None:
    request = pb.ModelInferRequest(inputs=[typed("BYTES", [b"x"])])
    if raw:
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(b"\1\0\0\0x")
    body, form = read_message(request, Target("m", "1.0", config), legacy=legacy)
    assert json.loads(body)["inputs"][0]["data"] == (["x"] if plain else ["eA=="])
    assert (form.plain_bytes, form.raw) == (plain, raw)


def test_parameters_of_every_type() -> None:
    request = pb.ModelInferRequest(inputs=[typed("INT8", [1])])
    request.parameters["b"].bool_param = False
    request.parameters["s"].string_param = "x"
    request.parameters["none"].SetInParent()
    body, _ = read_message(request, TARGET, legacy=True)
    assert json.loads(body)["parameters"] == {"b": False, "s": "x"}


def test_a_request_without_inputs() -> None:
    body, form = read_message(pb.ModelInferRequest(), TARGET, legacy=True)
    assert json.loads(body) == {"id": "", "model_name": "m", "inputs": []}
    assert not form.raw
    with pytest.raises(BadRequestError, match="There are 0 inputs, but 1 raw_input_contents"):
        read_message(pb.ModelInferRequest(raw_input_contents=[b""]), TARGET, legacy=True)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"shape": [2**63]}, "tensor o: "),
        ({"datatype": "INT5"}, "tensor o: unknown datatype 'INT5'"),
        ({"data": [1, 2]}, "Tensor o: shape [1] has 1 elements, but 2 were given"),
        ({"datatype": "BYTES", "data": [[1]], "shape": [1]}, "Tensor o: "),
    ],
)
def test_outputs_that_no_message_holds(output: dict[str, Any], reason: str) -> None:
    form = AnswerForm(request_id="", model_name="m", model_version="1")
    entry = {"name": "o", "datatype": "INT32", "shape": [1], "data": [1], **output}
    text = json.dumps({"outputs": [entry]}).encode()
    if reason == "Tensor o: ":
        assert list(result_message(read_result(text, form), form).outputs[0].contents.bytes_contents) == [b"1"]
        return
    with pytest.raises(InternalServerError) as caught:
        result_message(read_result(text, form), form)
    assert reason in caught.value.message


def test_parameters_that_the_protocol_has_no_type_for_are_left_out() -> None:
    form = AnswerForm(request_id="", model_name="m", model_version="1")
    parameters = {"big": 2**64, "list": [1], "none": None, "least": -(2**63)}
    text = json.dumps({"outputs": [], "parameters": parameters}).encode()
    assert {*result_message(read_result(text, form), form).parameters} == {"least"}


def test_metadata() -> None:
    tensor = TensorMetadata("a", "FP32", (-1, 2))
    message = metadata_message(ModelMetadata("m", ("1", "2"), "p", (tensor,), ()))
    assert message == pb.ModelMetadataResponse(
        name="m",
        versions=["1", "2"],
        platform="p",
        inputs=[pb.ModelMetadataResponse.TensorMetadata(name="a", datatype="FP32", shape=[-1, 2])],
    )
