"""The envelope of version 2 of the KServe protocol (archives_and_handlers.md §5.7)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.handlers.support import Metrics, Recorder, context, identity, returning

from relight.handlers.envelopes.kservev2 import KServev2Envelope

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.handlers.support import Handle

    from relight.sdk.context import Context


def tensor(data: Any, shape: Any = None, datatype: str = "INT64", name: str = "input-0") -> dict[str, Any]:
    return {"name": name, "shape": [len(data)] if shape is None else shape, "datatype": datatype, "data": data}


def kservev2(handle: Handle, body: Any, bound: Context | None = None) -> Any:
    (answer,) = KServev2Envelope(handle).handle([{"body": body}], bound or context())
    return answer


def data_of(data: Any, context: Context) -> list[Any]:
    return [each["data"] for each in data]


@pytest.mark.parametrize(
    "encode", [dict, lambda body: json.dumps(body).encode(), lambda body: bytearray(json.dumps(body).encode())]
)
def test_kservev2(encode: Callable[[Any], Any]) -> None:
    answer = kservev2(data_of, encode({"id": "abc", "inputs": [tensor([1, 2, 3, 4], [2, 2])]}))
    assert list(answer) == ["id", "model_name", "model_version", "outputs"]
    assert answer == {
        "id": "abc",
        "model_name": "nums",
        "model_version": "1.0",
        "outputs": [{"name": "input-0", "datatype": "INT64", "data": [1, 2, 3, 4], "shape": [4]}],
    }


def test_kservev2_takes_what_the_grpc_service_hands_over() -> None:
    body = {"id": "", "model_name": "registered", "inputs": [tensor([0.5, 1.5], datatype="FP32")]}
    assert kservev2(data_of, body)["id"] == "id-0"


@pytest.mark.parametrize(
    ("given", "data"),
    [
        (tensor([1, 2, 3, 4], [2, 2]), [[1, 2], [3, 4]]),
        (tensor([1, 2, 3, 4], [-1, 2]), [[1, 2], [3, 4]]),
        (tensor([[1, 2], [3, 4]], [4]), [1, 2, 3, 4]),
        (tensor([1], []), 1),
        (tensor([], [2, 0]), [[], []]),
        (tensor([1, 2.5]), [1.0, 2.5]),
        (tensor([True, False], datatype="BOOL"), [True, False]),
        (tensor(["a", "b"], datatype="BYTES"), "a"),
        (tensor([None, 1]), [None, 1]),
    ],
)
def test_kservev2_inputs(given: dict[str, Any], data: Any) -> None:
    handle = Recorder()
    kservev2(handle, {"inputs": [{**given, "parameters": {"p": 1}}]})
    (((row,), *_),) = handle.calls
    assert row == {**given, "data": data, "parameters": {"p": 1}}
    assert list(row) == ["name", "shape", "datatype", "data", "parameters"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"inputs": [tensor([1, 2, 3], [2, 2])]}, ValueError),
        ({"inputs": [tensor([], [1], "BYTES")]}, IndexError),
        ({"inputs": [{"name": "a", "shape": [1], "data": [1]}]}, KeyError),
        ({"inputs": [{"name": "a", "datatype": "INT64", "data": [1]}]}, KeyError),
        ({"inputs": [{"shape": [1], "datatype": "INT64", "data": [1]}]}, KeyError),
        ({"id": 7, "inputs": [tensor([1])]}, AttributeError),
        ({}, KeyError),
        (None, TypeError),
        ({"id": "x"}, KeyError),
        ([1], TypeError),
        (b"nonsense", ValueError),
    ],
)
def test_kservev2_refuses(body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        kservev2(identity, body)


def test_kservev2_without_inputs() -> None:
    assert KServev2Envelope(identity).handle([{"body": {"inputs": []}}], context()) == []


@pytest.mark.parametrize(
    ("result", "datatype", "data"),
    [
        (1, "INT64", [1]),
        (1.5, "FP64", [1.5]),
        (True, "BOOL", [True]),
        ("abc", "BYTES", ["abc"]),
        (None, "BYTES", [None]),
        ({"a": 1}, "BYTES", [{"a": 1}]),
        (["a", 1], "BYTES", ["a", "1"]),
        ([[1, 2], [3, 4]], "INT64", [1, 2, 3, 4]),
        ([1, 2.5], "FP64", [1.0, 2.5]),
        ([], "FP64", []),
        (2**64, "BYTES", [2**64]),
    ],
)
def test_kservev2_outputs(result: Any, datatype: str, data: list[Any]) -> None:
    (output,) = kservev2(returning([result]), {"inputs": [tensor([1])]})["outputs"]
    assert list(output) == ["name", "datatype", "data", "shape"]
    assert output == {"name": "input-0", "datatype": datatype, "data": data, "shape": [len(data)]}
    assert [type(value) for value in output["data"]] == [type(value) for value in data]


@pytest.mark.parametrize(
    ("numpy_type", "datatype"),
    [
        ("bool", "BOOL"),
        ("uint8", "UINT8"),
        ("uint16", "UINT16"),
        ("uint32", "UINT32"),
        ("uint64", "UINT64"),
        ("int8", "INT8"),
        ("int16", "INT16"),
        ("int32", "INT32"),
        ("int64", "INT64"),
        ("float16", "FP16"),
        ("float32", "FP32"),
        ("float64", "FP64"),
        ("U3", "BYTES"),
        ("object", "BYTES"),
    ],
)
def test_kservev2_datatypes(numpy_type: str, datatype: str) -> None:
    np = pytest.importorskip("numpy")
    (output,) = kservev2(returning([np.ones((2, 2), numpy_type)]), {"inputs": [tensor([1])]})["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [4])
    json.dumps(output)


@pytest.mark.parametrize("numpy_type", ["complex64", "S3", "datetime64[s]"])
def test_kservev2_has_no_datatype_for_others(numpy_type: str) -> None:
    np = pytest.importorskip("numpy")
    with pytest.raises(ValueError, match="no datatype for output input-0 of numpy type"):
        kservev2(returning([np.zeros(1, numpy_type)]), {"inputs": [tensor([1])]})


def test_kservev2_tensors() -> None:
    torch = pytest.importorskip("torch")
    (output,) = kservev2(returning([torch.ones(1, 2)]), {"inputs": [tensor([1])]})["outputs"]
    assert output == {"name": "input-0", "datatype": "FP32", "data": [1.0, 1.0], "shape": [2]}


def test_kservev2_names_outputs_after_inputs() -> None:
    inputs = [tensor([1], name="a"), tensor([2], name="b")]
    assert [each["name"] for each in kservev2(data_of, {"inputs": inputs})["outputs"]] == ["a", "b"]
    assert [each["name"] for each in kservev2(returning([5]), {"inputs": inputs})["outputs"]] == ["a"]
    with pytest.raises(IndexError):
        kservev2(returning([5, 6, 7]), {"inputs": inputs})


@pytest.mark.parametrize("identifier", ["", " ", None])
def test_kservev2_blank_id(identifier: Any) -> None:
    assert kservev2(data_of, {"id": identifier, "inputs": [tensor([1])]})["id"] == "id-0"


def test_kservev2_id_of_a_failed_request_does_not_leak() -> None:
    bound = context()

    def fail(data: Any, context: Context) -> Any:
        assert vars(context)["input_request_id"] == "stale"
        assert vars(context)["input_names"] == ["old"]
        raise RuntimeError("boom")

    before = set(vars(bound))
    with pytest.raises(RuntimeError, match="boom"):
        kservev2(fail, {"id": "stale", "inputs": [tensor([1], name="old")]}, bound)
    assert set(vars(bound)) == before
    answer = kservev2(data_of, {"inputs": [tensor([1])]}, bound)
    assert (answer["id"], answer["outputs"][0]["name"]) == ("id-0", "input-0")
    assert set(vars(bound)) == before


def test_kservev2_id_of_a_malformed_request_does_not_leak() -> None:
    bound = context()
    with pytest.raises(KeyError):
        kservev2(identity, {"id": "stale", "inputs": [{"shape": [1], "datatype": "INT64", "data": [1]}]}, bound)
    assert kservev2(data_of, {"inputs": [tensor([1])]}, bound)["id"] == "id-0"


def test_kservev2_answers_every_request_of_a_batch() -> None:
    handle, metrics = Recorder(), Metrics()
    bound = context({"x-name": "A"}, {"x-name": "B"}, metrics=metrics)
    bound.cancel_probe = lambda index: index == 1
    cancelled = []

    def probing(data: Any, context: Context) -> Any:
        cancelled.append(context.is_cancelled(0))
        return handle(data, context)

    first = {"id": "mine", "inputs": [tensor([1], name="a")]}
    second = {"inputs": [tensor([2], name="b"), tensor([3], name="c")]}
    answers = KServev2Envelope(probing).handle([{"body": first}, {"body": second}], bound)
    assert [(len(data), names, ids) for data, names, ids in handle.calls] == [
        (1, ["A"], {0: "id-0"}),
        (2, ["B"], {0: "id-1"}),
    ]
    assert [answer["id"] for answer in answers] == ["mine", "id-1"]
    assert [[output["name"] for output in answer["outputs"]] for answer in answers] == [["a"], ["b", "c"]]
    assert cancelled == [False, True]
    assert bound.is_cancelled(1)
    assert bound.get_response_status(1) == (201, "by B")
    assert metrics.seen == [{0: "id-0"}, {0: "id-0", 1: "id-1"}, {0: "id-1"}, {0: "id-0", 1: "id-1"}]


def test_kservev2_request_without_an_answer_fails_its_batch() -> None:
    bodies = [{"inputs": [tensor([1])]}, {"inputs": []}]
    with pytest.raises(ValueError, match="no answer to request id-1"):
        KServev2Envelope(identity).handle([{"body": body} for body in bodies], context({}, {}))


def test_kservev2_without_a_manifest() -> None:
    bound = context()
    bound.manifest = None
    answer = kservev2(data_of, {"inputs": [tensor([1])]}, bound)
    assert (answer["model_name"], answer["model_version"]) == ("registered", None)


def test_kservev2_without_a_version() -> None:
    bound = context()
    bound.manifest = {"model": {"modelName": "nov"}}
    answer = kservev2(data_of, {"inputs": [tensor([1])]}, bound)
    assert (answer["model_name"], answer["model_version"]) == ("nov", None)


def test_kservev2_says_that_it_needs_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ModuleNotFoundError, match="kservev2 needs numpy: pip install numpy"):
        KServev2Envelope(identity)
