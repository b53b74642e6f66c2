"""From a request of the protocol to the JSON text that a handler gets, and how its answer is wanted.

The handler gets the same object however the request came (grpc_api.md §5.1): `id`, `model_name` and `inputs`, a list of
`name`, `shape`, `datatype` and flat `data`; `parameters` and `outputs` where the client gave some.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relight.api.open_inference.json_data import data_of, decode, encode, exact
from relight.api.open_inference.tensors import datatype_of, from_raw
from relight.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """How the answer to a request is wanted, and what it says of the request.

    Args:
        request_id: Of the client; may be empty.
        model_name: Name of the model that was asked.
        model_version: Its version.
        outputs: Names of the outputs that the client wants; all if empty.
        raw: Whether outputs are wanted in raw form.
        raw_outputs: Of single outputs, where that differs.
        plain_bytes: Whether BYTES are given as bytes, not as JSON text (grpc_api.md, Q17).
        legacy: Whether the answer has to be as complete as TorchServe's service wants it, and is read as it does.
    """

    request_id: str
    model_name: str
    model_version: str
    outputs: tuple[str, ...] = ()
    raw: bool = False
    raw_outputs: Mapping[str, bool] = field(default_factory=dict)
    plain_bytes: bool = True
    legacy: bool = False

    def wants_raw(self, output: str) -> bool:
        """Whether this output is wanted in raw form."""
        return self.raw_outputs.get(output, self.raw)

    @property
    def any_raw(self) -> bool:
        """Whether some output may be wanted in raw form."""
        return self.raw or any(self.raw_outputs.values())


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a request is for.

    Args:
        name: Its name.
        version: Its version.
        config: The document of its configuration file.
    """

    name: str
    version: str
    config: Mapping[str, Any]

    def plain_bytes(self, parameters: Mapping[str, Any], *, default: bool) -> bool:
        """How BYTES are handled: as the request says, else as the model's configuration says, else the default."""
        for value in (parameters.get("plain_bytes"), self.config.get("plainBytes")):
            if isinstance(value, bool):
                return value
        return default


def handler_body(
    target: Target,
    request_id: str,
    inputs: list[dict[str, Any]],
    parameters: Mapping[str, Any],
    outputs: list[dict[str, Any]],
) -> bytes:
    """The JSON text that the handler gets."""
    document: dict[str, Any] = {"id": request_id, "model_name": target.name, "inputs": inputs}
    if parameters:
        document["parameters"] = parameters
    if outputs:
        document["outputs"] = outputs
    return encode(document)


def refuse_shared_memory(parameters: Mapping[str, Any], tensor: str) -> None:
    """Refuse a tensor that is in memory which the client shares with another server.

    Raises:
        BadRequestError: it is.
    """
    if _SHARED_MEMORY in parameters:
        raise BadRequestError(f"Tensor {tensor}: shared memory is not supported; send the data.")


# -- REST ----------------------------------------------------------------------------------------------------------


def read_rest(body: bytes, json_length: int | None, target: Target) -> tuple[bytes, AnswerForm]:
    """Read a request of the REST API, with or without binary tensor data.

    Args:
        body: The JSON object, and after it the binary data of inputs.
        json_length: Bytes of the JSON object; None if it is the whole body.
        target: The model.

    Returns:
        The JSON text for the handler, and how the answer is wanted.

    Raises:
        BadRequestError: the request is malformed.
    """
    length = len(body) if json_length is None else json_length
    if length > len(body):
        raise BadRequestError(f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes.")
    try:
        document, inexact = decode(memoryview(body)[:length])
    except ValueError as error:
        raise BadRequestError(f"The request is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadRequestError("The request is not a JSON object.")
    parameters = _object(document, "parameters", "The request")
    binary_output = parameters.pop("binary_data_output", False) is True
    plain = target.plain_bytes(parameters, default=True)
    binary = _BinaryData(memoryview(body)[length:], plain)
    inputs = [_rest_input(entry, binary, inexact) for entry in _objects(document, "inputs", required=True)]
    binary.check_end()
    outputs = _objects(document, "outputs", required=False)
    raw_outputs = {_name(entry, "output"): flag for entry in outputs if (flag := _binary_flag(entry)) is not None}
    given = document.get("id")
    form = AnswerForm(
        request_id="" if given is None else str(given),
        model_name=target.name,
        model_version=target.version,
        outputs=tuple(_name(entry, "output") for entry in outputs),
        raw=binary_output,
        raw_outputs=raw_outputs,
        plain_bytes=plain,
    )
    try:
        return handler_body(target, form.request_id, inputs, parameters, outputs), form
    except ValueError as error:  # half of a surrogate pair, which JSON can say and UTF-8 cannot
        raise BadRequestError(f"The request is not valid JSON: {error}") from error


class _BinaryData:
    """The binary data behind the JSON object: that of one input after the other."""

    def __init__(self, data: memoryview, plain_bytes: bool) -> None:
        self.plain_bytes = plain_bytes
        self._data = data
        self._at = 0

    def take(self, size: Any, tensor: str) -> memoryview:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadRequestError(f"Tensor {tensor}: binary_data_size must be a number of bytes.")
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            left = len(self._data) - start
            raise BadRequestError(f"Tensor {tensor}: binary_data_size is {size}, but {left} bytes are left.")
        return self._data[start : self._at]

    def check_end(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise BadRequestError(f"{left} bytes of binary data belong to no input.")


def _rest_input(entry: dict[str, Any], binary: _BinaryData, inexact: bool) -> dict[str, Any]:
    name = _name(entry, "input")
    parameters = _object(entry, "parameters", f"Tensor {name}")
    refuse_shared_memory(parameters, name)
    size = parameters.pop("binary_data_size", None)
    if entry.get("parameters") is not None and not parameters:
        del entry["parameters"]
    if size is not None:
        datatype = datatype_of(entry.get("datatype", ""), name)
        values = from_raw(datatype, binary.take(size, name), _shape(entry, name), name)
        entry["data"] = data_of(datatype, values, plain_bytes=binary.plain_bytes)
    elif inexact:
        entry["data"] = exact(entry.get("data"))
    return entry


def _binary_flag(entry: dict[str, Any]) -> bool | None:
    """Whether an output is wanted in binary form; None if its entry does not say."""
    name = _name(entry, "output")
    parameters = _object(entry, "parameters", f"Tensor {name}")
    refuse_shared_memory(parameters, name)
    flag = parameters.pop("binary_data", None)
    if entry.get("parameters") is not None and not parameters:
        del entry["parameters"]
    return None if flag is None else flag is True


def _object(holder: dict[str, Any], member: str, what: str) -> dict[str, Any]:
    value = holder.get(member)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequestError(f"{what}: {member} is not a JSON object.")
    return value


def _objects(document: dict[str, Any], member: str, *, required: bool) -> list[dict[str, Any]]:
    value = document.get(member)
    if value is None and not required:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadRequestError(f"The request's {member} are not a list of JSON objects.")
    return value


def _name(entry: dict[str, Any], kind: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str):
        raise BadRequestError(f"An {kind} has no name.")
    return name


def _shape(entry: dict[str, Any], tensor: str) -> list[int]:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(type(dimension) is int for dimension in shape):
        raise BadRequestError(f"Tensor {tensor}: shape is not a list of integers.")
    return shape
