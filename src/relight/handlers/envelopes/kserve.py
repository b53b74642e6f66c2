"""The envelope `kserve`: version 1 of the KServe protocol.

Format: https://kserve.github.io/website/latest/modelserving/data_plane/v1_protocol/
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from relight.handlers.envelopes.base import BaseEnvelope, body_of
from relight.handlers.envelopes.batches import narrowed, one_by_one

if TYPE_CHECKING:
    from relight.sdk.context import Context


class KServeEnvelope(BaseEnvelope):
    """Hands the handler the instances of one request: `{"instances": [...]}` in, `{"predictions": [...]}` out.

    To an explanation the answer is `{"explanations": [...]}`. Whatever the handler returns is put in there as it is.

    Of a batch of several requests TorchServe answers the first alone, which fails all of them. Here the predictions
    of a batch are one call with the instances of all of them; its result has to be a list with one item for each
    instance, and each request gets its own. Explanations are called one after the other.
    """

    def handle(self, data: Any, context: Context) -> Any:
        """Answer a batch.

        Raises:
            ValueError: Several predictions, and their instances are not lists or the results not one for each.
        """
        if not data or len(data) == 1:
            return super().handle(data, context)
        explain = [_is_explain(context, position) for position in range(len(data))]
        answers: list[Any] = [None] * len(data)
        for call, wanted in ((self._predict, False), (self._explain, True)):
            positions = [position for position, each in enumerate(explain) if each is wanted]
            with narrowed(context, positions):
                results = call([data[position] for position in positions], context)
            for position, result in zip(positions, results, strict=True):
                answers[position] = result
        return answers

    def parse_input(self, data: list[Any]) -> Any:
        """Return the instances of the first request, None if it has none.

        Raises:
            ValueError: Its body is not JSON.
            AttributeError: Its body is not a JSON object.
        """
        body = body_of(data[0])
        if isinstance(body, (bytes, bytearray)):
            body = json.loads(body)
        return body.get("instances")

    def format_output(self, data: Any) -> list[Any]:
        """Return the answer to one request."""
        assert self.context is not None
        return [{"explanations" if _is_explain(self.context, 0) else "predictions": data}]

    def _explain(self, data: list[Any], context: Context) -> list[Any]:
        return one_by_one(super().handle, data, context)

    def _predict(self, data: list[Any], context: Context) -> list[Any]:
        if len(data) < 2:
            return one_by_one(super().handle, data, context)
        self.context = context
        requests = [self.parse_input([row]) for row in data]
        if not all(isinstance(instances, list) for instances in requests):
            raise ValueError('"instances" has to be a list')
        rows = list(chain.from_iterable(requests))
        results = self._handle_fn(rows, context)
        if not isinstance(results, list) or len(results) != len(rows):
            raise ValueError(
                f"{len(rows)} instances of {len(data)} requests need a list of as many predictions; "
                "a handler that returns anything else needs batchSize 1"
            )
        remaining = iter(results)
        return self._answers([[next(remaining) for _ in instances] for instances in requests], context)

    def _answers(self, predictions: list[list[Any]], context: Context) -> list[Any]:
        answers = []
        for position, each in enumerate(predictions):
            with narrowed(context, [position]):
                answers += self.format_output(each)
        return answers


def _is_explain(context: Context, position: int) -> bool:
    return bool(context.get_request_header(position, "explain") == "True")
