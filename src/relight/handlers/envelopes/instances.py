"""The envelope `json`: the instances of a batch, with binary values in base64, in TensorFlow Serving's JSON.

Format: https://www.tensorflow.org/tfx/serving/api_rest#encoding_binary_values
"""

from __future__ import annotations

import base64
import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from relight.handlers.envelopes.base import BaseEnvelope, body_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.sdk.context import Context


class JSONEnvelope(BaseEnvelope):
    """Hands the handler the instances of all requests in one list, and deals its results out to them again.

    A request is `{"instances": [...]}` with content type `application/json`, an answer `{"predictions": [...]}` as
    text. The handler has to return one result for each instance.
    """

    def __init__(self, handle_fn: Callable[[Any, Context], Any]) -> None:
        super().__init__(handle_fn)
        self._counts: list[int] = []

    def parse_input(self, data: list[Any]) -> list[Any]:
        """Return the instances of all requests.

        Where the first instance of a request is an object, `{"b64": "..."}` is decoded to bytes, as an instance and as
        a member of one.

        Raises:
            ValueError: A request has no instances; or base64 is cut short.
            TypeError: A body is not a JSON object.
            KeyError: A body has no member `instances`.
        """
        requests = [_instances(row) for row in data]
        self._counts = [len(instances) for instances in requests]
        return list(chain.from_iterable(requests))

    def format_output(self, data: Any) -> list[str]:
        """Return the JSON text of each request's predictions.

        Raises:
            TypeError: The results are not a list, or not JSON.
        """
        answers = []
        start = 0
        for count in self._counts:
            answers.append(json.dumps({"predictions": data[start : start + count]}))
            start += count
        return answers


def _instances(row: dict[str, Any]) -> list[Any]:
    instances = (body_of(row) or row)["instances"]
    if not instances:
        raise ValueError('the request has no "instances"')
    # TorchServe's rule: the first instance tells whether any are looked into.
    return [_decoded(each) for each in instances] if isinstance(instances[0], dict) else list(instances)


def _decoded(instance: dict[str, Any]) -> Any:
    if _is_base64(instance):
        return base64.b64decode(instance["b64"])
    return {name: base64.b64decode(value["b64"]) if _is_base64(value) else value for name, value in instance.items()}


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}
