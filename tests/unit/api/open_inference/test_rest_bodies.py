"""Requests and answers of the REST API: what the handler gets, what the client gets."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.api.open_inference.request import AnswerForm, Target, read_rest
from relight.api.open_inference.response import read_result, to_rest
from relight.api.open_inference.tensors import DATATYPES, to_raw
from relight.errors import BadRequestError, InternalServerError

FEW = settings(max_examples=30, deadline=None)
KEYS = ["inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "binary_data_size"]
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda item: st.lists(item) | st.dictionaries(st.sampled_from(KEYS), item),
)
TARGET = Target("m", "1.0", {})


def read(document: object, binary: bytes = b"", target: Target = TARGET) -> tuple[dict[str, Any], AnswerForm]:
    text = json.dumps(document).encode()
    body, form = read_rest(text + binary, len(text), target)
    made = json.loads(body)
    assert isinstance(made, dict)
    return made, form


def tensor(name: str = "a", **members: object) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "INT32", **members}


def form(**members: Any) -> AnswerForm:
    return AnswerForm(**{"request_id": "r", "model_name": "m", "model_version": "1.0", **members})


def answer(*outputs: dict[str, Any], **members: object) -> bytes:
    return json.dumps({"outputs": outputs, **members}).encode()


def test_a_request_with_everything() -> None:
    document = {
        "id": 7,
        "inputs": [tensor(parameters={"binary_data_size": 4}), tensor("b", data=[[1], 2], parameters={"k": "v"})],
        "outputs": [
            {"name": "x", "parameters": {"binary_data": True, "classification": 3}},
            {"name": "y", "parameters": {"binary_data": False}},
            {"name": "z"},
        ],
        "parameters": {"binary_data_output": True, "p": [1]},
    }
    body, got = read(document, b"\x05\0\0\0")
    assert body == {
        "id": "7",
        "model_name": "m",
        "inputs": [tensor(data=[5]), tensor("b", data=[[1], 2], parameters={"k": "v"})],
        "parameters": {"p": [1]},
        "outputs": [{"name": "x", "parameters": {"classification": 3}}, {"name": "y"}, {"name": "z"}],
    }
    assert (got.request_id, got.outputs, got.plain_bytes, got.legacy) == ("7", ("x", "y", "z"), True, False)
    assert [got.wants_raw(name) for name in "xyz"] == [True, False, True]


def test_the_least_request() -> None:
    assert read({"inputs": []}) == ({"id": "", "model_name": "m", "inputs": []}, form(request_id=""))


@FEW
@given(st.data())
def test_binary_inputs_of_all_kinds(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(["BOOL", "UINT8", "INT64", "BYTES"]), max_size=4))
    elements: dict[str, Any] = {
        "BOOL": st.booleans(),
        "UINT8": st.integers(0, 255),
        "INT64": st.integers(-(2**63), 2**63 - 1),
        "BYTES": st.text(max_size=5),
    }
    values = [data.draw(st.lists(elements[name], max_size=4)) for name in names]
    raws = [
        to_raw(DATATYPES[name], [item.encode() for item in value] if name == "BYTES" else value, "t")
        for name, value in zip(names, values, strict=True)
    ]
    inputs = [
        {"name": "a", "shape": [len(value)], "datatype": name, "parameters": {"binary_data_size": len(raw)}}
        for name, value, raw in zip(names, values, raws, strict=True)
    ]
    body, _ = read({"inputs": inputs}, b"".join(raws))
    assert [each["data"] for each in body["inputs"]] == values


def test_odd_floats_of_a_request_are_kept() -> None:
    text = b'{"inputs": [{"name": "a", "shape": [3], "datatype": "FP32", "data": [NaN, -Infinity, 1.5]}]}'
    body, _ = read_rest(text, None, TARGET)
    nan, infinite, number = json.loads(body)["inputs"][0]["data"]
    assert (math.isnan(nan), infinite, number) == (True, -math.inf, 1.5)


@pytest.mark.parametrize(
    ("parameters", "config", "expected"),
    [({}, {}, True), ({}, {"plainBytes": False}, False), ({"plain_bytes": True}, {"plainBytes": False}, True)],
)
def test_who_decides_on_bytes(parameters: dict[str, object], config: dict[str, object], expected: bool) -> None:
    inputs = [tensor(datatype="BYTES", parameters={"binary_data_size": 5})]
    body, got = read({"inputs": inputs, "parameters": parameters}, b"\x01\0\0\0x", Target("m", "1", config))
    assert got.plain_bytes is expected
    assert body["inputs"][0]["data"] == ["x" if expected else "eA=="]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (5, "The request is not a JSON object."),
        ({}, "The request's inputs are not a list of JSON objects."),
        ({"inputs": [5]}, "The request's inputs are not a list of JSON objects."),
        ({"inputs": [{}]}, "An input has no name."),
        ({"inputs": [], "outputs": [{}]}, "An output has no name."),
        ({"inputs": [], "outputs": 5}, "The request's outputs are not a list of JSON objects."),
        ({"inputs": [], "parameters": 5}, "The request: parameters is not a JSON object."),
        ({"inputs": [tensor(parameters=5)]}, "Tensor a: parameters is not a JSON object."),
        ({"inputs": [tensor(parameters={"binary_data_size": True})]}, "Tensor a: binary_data_size must be a number "),
        (
            {"inputs": [tensor(shape=[1.5], parameters={"binary_data_size": 0})]},
            "Tensor a: shape is not a list of integers.",
        ),
        (
            {"inputs": [tensor(datatype=5, parameters={"binary_data_size": 0})]},
            "Tensor a: unknown datatype 5; expected ",
        ),
        (
            {"inputs": [tensor(datatype=[], parameters={"binary_data_size": 0})]},
            "Tensor a: unknown datatype []; expected ",
        ),
        ({"inputs": [tensor(parameters={"shared_memory_region": "r"})]}, "Tensor a: shared memory is not supported"),
        (
            {"inputs": [], "outputs": [{"name": "o", "parameters": {"shared_memory_region": "r"}}]},
            "Tensor o: shared memory is not supported",
        ),
        ({"inputs": [], "id": "\ud800"}, "The request is not valid JSON: "),
    ],
)
def test_malformed_requests(document: object, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read(document)
    assert caught.value.message.startswith(message)


@FEW
@given(DOCUMENTS)
def test_any_json_is_read_or_refused(document: Any) -> None:
    try:
        read(document)
    except BadRequestError:
        return


def test_an_answer_is_completed() -> None:
    result = read_result(answer({"name": "o", "datatype": "FP32", "shape": [2, 1], "data": [[1.5], [2]]}), form())
    head, binary = to_rest(result, form())
    assert json.loads(head) == {
        "model_name": "m",
        "model_version": "1.0",
        "id": "r",
        "outputs": [{"name": "o", "datatype": "FP32", "shape": [2, 1], "data": [1.5, 2]}],
    }
    assert binary == []


def test_an_answer_with_everything() -> None:
    outputs = [
        {"name": name, "datatype": "INT16", "shape": [2], "data": [1, 2], "parameters": {"k": 1}} for name in "xyz"
    ]
    wanted = form(outputs=("z", "x"), raw_outputs={"x": True})
    text = answer(*outputs, id=5, model_name="other", model_version=2, parameters={"p": 1})
    head, binary = to_rest(read_result(text, wanted), wanted)
    assert json.loads(head) == {
        "model_name": "other",
        "model_version": "2",
        "id": "5",
        "parameters": {"p": 1},
        "outputs": [
            {"name": "z", "datatype": "INT16", "shape": [2], "data": [1, 2], "parameters": {"k": 1}},
            {"name": "x", "datatype": "INT16", "shape": [2], "parameters": {"k": 1, "binary_data_size": 4}},
        ],
    }
    assert binary == [b"\1\0\2\0"]


def test_odd_floats_of_an_answer_are_kept() -> None:
    text = answer({"name": "o", "datatype": "FP32", "shape": [1], "data": [math.nan]}, id="")
    head, _ = to_rest(read_result(text, form()), form())
    assert b'"data":[NaN]' in head
    assert b'"id"' not in head


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"ok", "it is not JSON: "),
        (b"[]", "it is not a JSON object."),
        (b"{}", "outputs is missing."),
        (b'{"outputs": {}}', "outputs is not a list."),
        (b'{"outputs": [1]}', "an output is not a JSON object."),
        (b'{"outputs": [], "id": []}', "id is neither a text nor a number."),
        (b'{"outputs": [], "id": true}', "id is neither a text nor a number."),
        (answer({}), "shape is missing."),
        (answer({"shape": ["1"]}), "the shape of an output is not a list of integers."),
        (answer({"shape": [1]}), "data is missing."),
        (answer({"shape": [1], "data": "x"}), "data is not a list."),
        (answer({"shape": [1], "data": [[1], 2]}), "the data of an output is nested unevenly."),
        (answer({"shape": [1], "data": [1]}), "name is missing."),
        (answer({"shape": [1], "data": [1], "name": 5}), "name is not a text."),
        (b"[" * 100_000, "it is not JSON: it is nested too deep."),
    ],
)
def test_answers_that_are_none(text: bytes, reason: str) -> None:
    with pytest.raises(InternalServerError) as caught:
        read_result(text, form())
    lead = "Model m gave an answer that the Open Inference Protocol does not allow: "
    assert caught.value.message.startswith(lead + reason)


@pytest.mark.parametrize("missing", ["id", "model_name", "model_version"])
def test_torchserves_service_wants_every_member(missing: str) -> None:
    members: dict[str, object] = {"id": "", "model_name": "m", "model_version": "1", missing: None}
    with pytest.raises(InternalServerError, match=f"{missing} is missing"):
        read_result(answer(**members), form(legacy=True))
    assert read_result(answer(**members), form()).outputs == []


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"datatype": "FP8"}, "Tensor o: unknown datatype 'FP8'"),
        ({"data": [1, 2]}, "Tensor o: shape [1] has 1 elements, but 2 were given."),
        ({"data": ["x"]}, "Tensor o: 'x' is not valid for INT16."),
        ({"datatype": "BYTES", "data": [{"b64": "*"}]}, "tensor o: b64: "),
    ],
)
def test_outputs_without_a_raw_form(output: dict[str, Any], reason: str) -> None:
    wanted = form(raw=True)
    text = answer({"name": "o", "datatype": "INT16", "shape": [1], "data": [1], **output})
    with pytest.raises(InternalServerError) as caught:
        to_rest(read_result(text, wanted), wanted)
    assert reason in caught.value.message


def test_half_characters_of_an_answer() -> None:
    text = answer({"name": "\ud800", "datatype": "INT16", "shape": [1], "data": [1]})
    with pytest.raises(InternalServerError, match="surrogates not allowed"):
        to_rest(read_result(text, form()), form())


def test_outputs_that_there_are_none_of() -> None:
    text = answer(
        {"name": "o", "datatype": "INT16", "shape": [1], "data": [1]}, id="", model_name="m", model_version="1"
    )
    with pytest.raises(BadRequestError) as caught:
        read_result(text, form(outputs=("o", "p")))
    assert caught.value.message == "Model m gave no output p; it gave o."
    for names in (("p", "o"), ("p",)):
        assert [each.name for each in read_result(text, form(outputs=names, legacy=True)).outputs] == ["o"]
