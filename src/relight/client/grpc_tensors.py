"""Tensors over gRPC: raw, or as the typed contents that TorchServe reads (grpc_api.md §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relight.client import tensors
from relight.protos import open_inference_grpc_pb2 as pb

if TYPE_CHECKING:
    from relight.client.api import Inference, InferenceCall

__all__ = ["decode", "encode"]

_FIELDS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def encode(call: InferenceCall) -> pb.ModelInferRequest:
    """Return the request.

    Raises:
        TypeError: A datatype has no typed contents (FP16, BF16), and binary contents are not wanted.
    """
    request = pb.ModelInferRequest(model_name=call.model, model_version=call.version or "")
    for name, value in call.inputs.items():
        array = tensors.as_array(value)
        entry = request.inputs.add(name=name, datatype=tensors.datatype_of(array), shape=array.shape)
        if call.binary:
            request.raw_input_contents.append(tensors.to_raw(array))
        else:
            _contents(entry.contents, entry.datatype).extend(tensors.to_values(array))
    for name in call.outputs:
        request.outputs.add(name=name)
    for name, parameter in call.parameters.items():
        field = {bool: "bool_param", int: "int64_param"}.get(type(parameter), "string_param")
        setattr(request.parameters[name], field, parameter)
    return request


def decode(response: pb.ModelInferResponse) -> Inference:
    """Return the outputs in an answer, by their names.

    Raises:
        ValueError: The answer does not follow the protocol.
    """
    if response.raw_output_contents:
        pairs = zip(response.outputs, response.raw_output_contents, strict=True)
        return {each.name: tensors.from_raw(each.datatype, each.shape, raw) for each, raw in pairs}
    return {
        each.name: tensors.from_values(each.datatype, each.shape, _contents(each.contents, each.datatype))
        for each in response.outputs
    }


def _contents(contents: pb.InferTensorContents, datatype: str) -> Any:
    field = _FIELDS.get(datatype)
    if field is None:
        raise TypeError(f"{datatype} tensors have no typed contents; they have to be sent as binary ones")
    return getattr(contents, field)
