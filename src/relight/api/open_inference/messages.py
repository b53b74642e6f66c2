"""Between protobuf's messages and what the protocol means (grpc_api.md §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relight.api.open_inference.json_data import data_of
from relight.api.open_inference.request import AnswerForm, handler_body, refuse_shared_memory
from relight.api.open_inference.response import bytes_elements, fault, raw_of
from relight.api.open_inference.tensors import (
    DATATYPES,
    TensorError,
    check_count,
    datatype_of,
    fit,
    from_raw,
)
from relight.errors import BadRequestError
from relight.protos import open_inference_grpc_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

    from relight.api.open_inference.metadata import ModelMetadata
    from relight.api.open_inference.request import Target
    from relight.api.open_inference.response import Output, Result
    from relight.api.open_inference.tensors import DataType

_Input = pb.ModelInferRequest.InferInputTensor
_MOST_SHORTENED = 16384
"""Floats of a request that get their shortest decimals: that takes 1 µs for each, in which nobody else is served."""


def read_message(message: pb.ModelInferRequest, target: Target, *, legacy: bool) -> tuple[bytes, AnswerForm]:
    """Read a request.

    Args:
        message: The request.
        target: The model that it is for.
        legacy: Whether it came by the service of TorchServe's name, which checks less.

    Returns:
        The JSON text for the handler, and how the answer is wanted: raw if the request is raw.

    Raises:
        BadRequestError: the request is malformed.
    """
    raw = _raw_contents(message)
    parameters = _parameters(message.parameters)
    plain = target.plain_bytes(parameters, default=raw is not None or not legacy)
    short = sum(len(tensor.contents.fp32_contents) for tensor in message.inputs) <= _MOST_SHORTENED
    inputs = []
    for index, tensor in enumerate(message.inputs):
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype}
        own = _parameters(tensor.parameters)
        refuse_shared_memory(own, tensor.name)
        if own:
            entry["parameters"] = own
        data = _typed(tensor, plain, legacy, short) if raw is None else _raw(tensor, raw[index], plain)
        if data is not None:
            entry["data"] = data
        inputs.append(entry)
    form = AnswerForm(
        request_id=message.id,
        model_name=target.name,
        model_version=target.version,
        outputs=tuple(output.name for output in message.outputs),
        raw=raw is not None,
        plain_bytes=plain,
        legacy=legacy,
    )
    return handler_body(target, message.id, inputs, parameters, [_wanted(output) for output in message.outputs]), form


def _raw_contents(message: pb.ModelInferRequest) -> list[bytes] | None:
    """The tensors in raw form, one for each input; None if they are typed."""
    raw = list(message.raw_input_contents)
    if not raw:
        return None
    for tensor in message.inputs:
        if tensor.HasField("contents"):
            raise BadRequestError(f"Tensor {tensor.name} has contents, though raw_input_contents are given.")
    if len(raw) != len(message.inputs):
        raise BadRequestError(f"There are {len(message.inputs)} inputs, but {len(raw)} raw_input_contents.")
    return raw


def _raw(tensor: _Input, raw: bytes, plain: bool) -> msgspec.Raw:
    datatype = datatype_of(tensor.datatype, tensor.name)
    return data_of(datatype, from_raw(datatype, raw, tensor.shape, tensor.name), plain_bytes=plain)


def _typed(tensor: _Input, plain: bool, legacy: bool, short: bool) -> msgspec.Raw | None:
    """The data of a typed tensor: of the field for its datatype, whatever the others hold."""
    if legacy and (tensor.datatype not in DATATYPES or not DATATYPES[tensor.datatype].field):
        return None
    datatype = datatype_of(tensor.datatype, tensor.name)
    if not datatype.field:
        raise BadRequestError(f"Tensor {tensor.name}: {datatype.name} has to be sent in raw_input_contents.")
    values = list(getattr(tensor.contents, datatype.field))
    if not legacy:
        check_count(len(values), tensor.shape, tensor.name)
    return data_of(datatype, values, plain_bytes=plain, short=short)


def _wanted(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> dict[str, Any]:
    parameters = _parameters(output.parameters)
    refuse_shared_memory(parameters, output.name)
    return {"name": output.name, "parameters": parameters} if parameters else {"name": output.name}


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    parameters = {}
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            parameters[name] = getattr(parameter, choice)
    return parameters


# -- answers -------------------------------------------------------------------------------------------------------


def result_message(result: Result, form: AnswerForm) -> pb.ModelInferResponse:
    """The answer to a request.

    Raises:
        InternalServerError: an output's data does not fit its datatype or shape.
    """
    message = pb.ModelInferResponse(id=result.id, model_name=result.model_name, model_version=result.model_version)
    raw = form.raw or (not form.legacy and any(_only_raw(output) for output in result.outputs))
    for output in result.outputs:
        try:
            tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        except ValueError as error:
            raise fault(form, f"tensor {output.name}: {error}") from error
        if not form.legacy:
            _set_parameters(tensor.parameters, output.parameters)
        if raw:
            message.raw_output_contents.append(raw_of(output, form))
        else:
            _fill(tensor.contents, output, form)
    if not form.legacy:
        _set_parameters(message.parameters, result.parameters)
    return message


def _only_raw(output: Output) -> bool:
    """Whether only the raw form holds this datatype."""
    return output.datatype in DATATYPES and not DATATYPES[output.datatype].field


def _fill(contents: pb.InferTensorContents, output: Output, form: AnswerForm) -> None:
    """Set the field of the output's datatype; TorchServe's service leaves all empty where there is none."""
    datatype = DATATYPES.get(output.datatype)
    if datatype is None or not datatype.field:
        if not form.legacy:
            raise fault(form, f"tensor {output.name}: unknown datatype {output.datatype!r}")
        contents.SetInParent()
        return
    try:
        if not form.legacy:
            check_count(len(output.data), output.shape, output.name)
        values = _elements(datatype, output, form)
    except TensorError as error:
        raise fault(form, error.message.rstrip(".")) from error
    contents.SetInParent()
    getattr(contents, datatype.field).extend(values)


def _elements(datatype: DataType, output: Output, form: AnswerForm) -> Any:
    if datatype.kind == "bytes":
        return bytes_elements(output, form)
    return fit(datatype, output.data, output.name)


def _set_parameters(message: Any, parameters: Mapping[str, Any]) -> None:
    """Pass on the parameters that the protocol has a type for."""
    for name, value in parameters.items():
        if isinstance(value, bool):
            message[name].bool_param = value
        elif isinstance(value, int) and -(2**63) <= value < 2**64:
            if value < 2**63:
                message[name].int64_param = value
            else:
                message[name].uint64_param = value
        elif isinstance(value, float):
            message[name].double_param = value
        elif isinstance(value, str):
            message[name].string_param = value


def metadata_message(metadata: ModelMetadata) -> pb.ModelMetadataResponse:
    """The answer to a question for a model's metadata."""
    message = pb.ModelMetadataResponse(name=metadata.name, versions=metadata.versions, platform=metadata.platform)
    for declared, field in ((metadata.inputs, message.inputs), (metadata.outputs, message.outputs)):
        for tensor in declared:
            field.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return message
