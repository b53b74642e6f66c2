"""Tensors over HTTP: the Open Inference Protocol's JSON, with or without its binary extension (rest_api.md §3.6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from relight.client import tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relight.client.api import Inference, InferenceCall
    from relight.client.requests import HttpResponse

__all__ = ["decode", "encode"]

_HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_SIZE: Final = "binary_data_size"


def encode(call: InferenceCall) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request."""
    arrays = {name: tensors.as_array(value) for name, value in call.inputs.items()}
    raws = [tensors.to_raw(array) for array in arrays.values()] if call.binary else []
    inputs = [_tensor(name, array) for name, array in arrays.items()]
    for index, entry in enumerate(inputs):
        if call.binary:
            entry["parameters"] = {_SIZE: len(raws[index])}
        else:
            entry["data"] = _listed(arrays[entry["name"]])
    document: dict[str, Any] = {"inputs": inputs}
    if call.outputs:
        document["outputs"] = [{"name": name} for name in call.outputs]
    parameters = {**call.parameters, **({"binary_data_output": True} if call.binary else {})}
    if parameters:
        document["parameters"] = parameters
    text = json.dumps(document, ensure_ascii=False).encode()
    if not call.binary:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(text))}
    return b"".join((text, *raws)), headers


def decode(response: HttpResponse) -> Inference:
    """Return the outputs in an answer, by their names.

    Raises:
        ValueError: The answer does not follow the protocol.
    """
    header_length = response.headers.get(_HEADER_LENGTH.lower())
    at = len(response.content) if header_length is None else int(header_length)
    document = json.loads(response.content[:at])
    outputs: Inference = {}
    for entry in document["outputs"]:
        size = entry.get("parameters", {}).get(_SIZE)
        if size is None:
            outputs[entry["name"]] = tensors.from_values(entry["datatype"], entry["shape"], _flat(entry["data"]))
            continue
        raw = response.content[at : at + size]
        at += size
        outputs[entry["name"]] = tensors.from_raw(entry["datatype"], entry["shape"], raw)
    return outputs


def _tensor(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": tensors.datatype_of(array)}


def _listed(array: NDArray[Any]) -> list[Any]:
    values = tensors.to_values(array)
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def _flat(data: list[Any]) -> list[Any]:
    # The protocol allows nested lists as well as flat ones.
    while data and isinstance(data[0], list):
        data = [each for part in data for each in part]
    return data
