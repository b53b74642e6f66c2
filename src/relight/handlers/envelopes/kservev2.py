"""The envelope `kservev2`: version 2 of the KServe protocol, the Open Inference Protocol.

Format: https://kserve.github.io/website/latest/modelserving/data_plane/v2_protocol/
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from relight.handlers.envelopes.base import BaseEnvelope, body_of
from relight.handlers.envelopes.batches import one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.sdk.context import Context

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "object": "BYTES",
}
"""The protocol's name of each numpy type; text is `BYTES` too, of whatever length."""

_PARKED = ("input_request_id", "input_names")


class KServev2Envelope(BaseEnvelope):
    """Hands the handler the input tensors of one request, and answers with one output tensor for each result.

    An input is the request's own object; its `data` are nested lists of its `shape` or, of datatype `BYTES`, the first
    element. An output has the name of the input at its index; its values are flattened, its datatype is what numpy
    makes of them. The context has the names in `input_names` and the request's id, where it sent one, in
    `input_request_id`. Both are gone when the request is done, also by an error; with TorchServe the next request
    without an id was then answered under the old one.

    Of a batch of several requests TorchServe answers the first alone, which fails all of them. Here they are called
    one after the other, each as if it were alone: a model may take its inputs as one sample, so they cannot be joined.

    Raises:
        ModuleNotFoundError: There is no numpy.
    """

    def __init__(self, handle_fn: Callable[[Any, Context], Any]) -> None:
        super().__init__(handle_fn)
        # Now, not by the first request, and not with this module: nothing else needs it.
        try:
            import numpy as np
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("The envelope kservev2 needs numpy: pip install numpy", name="numpy") from error
        self._numpy: Any = np

    def handle(self, data: Any, context: Context) -> Any:
        """Answer a batch."""
        if data and len(data) > 1:
            return one_by_one(self._handle_one, data, context)
        return self._handle_one(data, context)

    def parse_input(self, data: list[Any]) -> list[dict[str, Any]]:
        """Return the inputs of the first request.

        Raises:
            ValueError: The body is not JSON, or data do not fit their shape.
            TypeError: The body is not a JSON object.
            KeyError: The request or an input lacks a member.
            IndexError: An input of datatype `BYTES` is empty.
            AttributeError: The id is not text.
        """
        body = body_of(data[0])
        if isinstance(body, (bytes, bytearray)):
            body = json.loads(body)
        inputs = [{**tensor, "data": self._values(tensor)} for tensor in body["inputs"]]
        identifier = body.get("id")
        if identifier and identifier.strip():
            self._park("input_request_id", identifier)
        self._park("input_names", [tensor["name"] for tensor in inputs])
        return inputs

    def format_output(self, data: Any) -> list[dict[str, Any]]:
        """Return the answer to one request.

        Raises:
            IndexError: There are more results than inputs.
            ValueError: A result is ragged, or of a type that the protocol has no datatype for.
        """
        context = self.context
        assert context is not None
        names = getattr(context, "input_names")  # noqa: B009 - no attribute that Context declares
        model = (context.manifest or {"model": {"modelName": context.model_name}})["model"]
        return [
            {
                "id": getattr(context, "input_request_id", None) or context.get_request_id(0),
                "model_name": model.get("modelName"),
                "model_version": model.get("modelVersion"),
                "outputs": [self._output(names[index], result) for index, result in enumerate(data)],
            }
        ]

    def _handle_one(self, data: Any, context: Context) -> Any:
        try:
            return super().handle(data, context)
        finally:
            for name in _PARKED:
                with suppress(AttributeError):
                    delattr(context, name)

    def _park(self, name: str, value: Any) -> None:
        setattr(self.context, name, value)

    def _values(self, tensor: dict[str, Any]) -> Any:
        if tensor["datatype"] == "BYTES":
            return tensor["data"][0]
        return self._numpy.array(tensor["data"]).reshape(tensor["shape"]).tolist()

    def _output(self, name: str, result: Any) -> dict[str, Any]:
        values = self._numpy.asarray(result).flatten()
        datatype = "BYTES" if values.dtype.kind == "U" else DATATYPES.get(values.dtype.name)
        if datatype is None:
            raise ValueError(f"there is no datatype for output {name} of numpy type {values.dtype}")
        return {"name": name, "datatype": datatype, "data": values.tolist(), "shape": list(values.shape)}
