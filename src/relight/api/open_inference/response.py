"""From what a handler answered to the answer of the protocol (grpc_api.md §5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relight.api.open_inference.json_data import bytes_of, decode, encode, exact
from relight.api.open_inference.tensors import TensorError, check_count, datatype_of, to_raw
from relight.errors import BadRequestError, InternalServerError

if TYPE_CHECKING:
    from relight.api.open_inference.request import AnswerForm


class _InvalidError(Exception):
    """What is wrong with an answer."""


@dataclass(slots=True)
class Output:
    """An output tensor as the handler gave it: its data is not looked at yet."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, Any]


@dataclass(slots=True)
class Result:
    """A handler's answer, with the outputs that the client wants.

    Attributes:
        id: Of the request.
        model_name: As the handler says, else that of the request.
        model_version: As the handler says, else the version that was asked.
        outputs: In the order asked for.
        parameters: Of the answer.
        inexact: Whether data may hold NaN or infinities.
    """

    id: str
    model_name: str
    model_version: str
    outputs: list[Output]
    parameters: dict[str, Any]
    inexact: bool


def read_result(answer: bytes | memoryview, form: AnswerForm) -> Result:
    """Read what the handler answered.

    Raises:
        InternalServerError: it is no valid answer of the protocol; the message says why.
        BadRequestError: the client wants an output that there is none of.
    """
    try:
        document, inexact = decode(answer)
    except ValueError as error:
        raise fault(form, f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise fault(form, "it is not a JSON object")
    try:
        entries = _member(document, "outputs", list)
        outputs = _chosen([_output(entry, form) for entry in entries], form)
        return Result(
            _text(document, "id", form.request_id, form),
            _text(document, "model_name", form.model_name, form),
            _text(document, "model_version", form.model_version, form),
            outputs,
            _parameters(document),
            inexact,
        )
    except _InvalidError as error:
        raise fault(form, str(error)) from error


def fault(form: AnswerForm, reason: str) -> InternalServerError:
    """The error for an answer of a handler that is not one of the protocol."""
    return InternalServerError(
        f"Model {form.model_name} gave an answer that the Open Inference Protocol does not allow: {reason}."
    )


def raw_of(output: Output, form: AnswerForm) -> bytes:
    """The raw form of an output.

    Raises:
        InternalServerError: its data does not fit its datatype or shape.
    """
    try:
        datatype = datatype_of(output.datatype, output.name)
        values: list[Any] = output.data
        check_count(len(values), output.shape, output.name)
        if datatype.kind == "bytes":
            values = bytes_elements(output, form)
        return to_raw(datatype, values, output.name)
    except TensorError as error:
        raise fault(form, error.message.rstrip(".")) from error


def bytes_elements(output: Output, form: AnswerForm) -> list[bytes]:
    """The elements of a BYTES output.

    Raises:
        InternalServerError: one of them is none.
    """
    try:
        return [bytes_of(value, plain=form.plain_bytes) for value in output.data]
    except ValueError as error:
        raise fault(form, f"tensor {output.name}: {error}") from error


def to_rest(result: Result, form: AnswerForm) -> tuple[bytes, list[bytes]]:
    """The answer of the REST API: the JSON object, and the binary data of outputs that follows it.

    Raises:
        InternalServerError: an output's data does not fit its datatype or shape.
    """
    binary = []
    entries = []
    for output in result.outputs:
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        parameters = output.parameters
        if form.wants_raw(output.name):
            raw = raw_of(output, form)
            binary.append(raw)
            parameters = {**parameters, "binary_data_size": len(raw)}
        else:
            entry["data"] = exact(output.data) if result.inexact else output.data
        if parameters:
            entry["parameters"] = parameters
        entries.append(entry)
    document: dict[str, Any] = {"model_name": result.model_name, "model_version": result.model_version}
    if result.id:
        document["id"] = result.id
    if result.parameters:
        document["parameters"] = result.parameters
    document["outputs"] = entries
    try:
        return encode(document), binary
    except ValueError as error:  # half of a surrogate pair, which JSON can say and UTF-8 cannot
        raise fault(form, str(error)) from error


def _chosen(outputs: list[Output], form: AnswerForm) -> list[Output]:
    """The outputs that the client wants.

    TorchServe gives all, whatever is asked for, so that its clients may ask for names that there are not.
    """
    if not form.outputs:
        return outputs
    by_name = {output.name: output for output in outputs}
    if form.legacy:
        return [by_name[name] for name in form.outputs if name in by_name] or outputs
    missing = [name for name in form.outputs if name not in by_name]
    if missing:
        raise BadRequestError(f"Model {form.model_name} gave no output {missing[0]}; it gave {', '.join(by_name)}.")
    return [by_name[name] for name in form.outputs]


def _output(entry: Any, form: AnswerForm) -> Output:
    if not isinstance(entry, dict):
        raise _InvalidError("an output is not a JSON object")
    shape = _member(entry, "shape", list)
    if not all(type(dimension) is int for dimension in shape):
        raise _InvalidError("the shape of an output is not a list of integers")
    data = _member(entry, "data", list)
    if data and not form.legacy and isinstance(data[0], list):
        data = _flat(data)
    return Output(_member(entry, "name", str), _member(entry, "datatype", str), shape, data, _parameters(entry))


def _flat(data: list[Any]) -> list[Any]:
    while data and isinstance(data[0], list):
        if not all(isinstance(item, list) for item in data):
            raise _InvalidError("the data of an output is nested unevenly")
        data = [element for item in data for element in item]
    return data


def _member(holder: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = holder.get(name)
    if value is None:
        raise _InvalidError(f"{name} is missing")
    if not isinstance(value, kind):
        raise _InvalidError(f"{name} is not a {'list' if kind is list else 'text'}")
    return value


def _text(document: dict[str, Any], name: str, default: str, form: AnswerForm) -> str:
    value = document.get(name)
    if value is None:
        if form.legacy:
            raise _InvalidError(f"{name} is missing")
        return default
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _InvalidError(f"{name} is neither a text nor a number")
    return str(value)


def _parameters(holder: dict[str, Any]) -> dict[str, Any]:
    value = holder.get("parameters")
    return value if isinstance(value, dict) else {}
