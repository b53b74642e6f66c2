"""Sends parts, then answers (grpc_api.md §11, *streamer*).

Inputs, of the first request of a batch: `n` parts, `pause` seconds before each but the first, `gate` to pass before
part number `at`, `size` of a part's padding, `code` of the last part, `then` what happens instead of the answer:
`raise`, `short`, `exit`, `silence` (until the gate opens), `predict` (a PredictionException with 404).
"""

# ruff: noqa: ARG002 - the signatures are those of a handler

import os
import time

from gates import pass_gate
from grpc_inputs import text

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException


class Streamer:
    """Streams, unless there are no parts to send."""

    def initialize(self, context):
        self.ready = True

    def handle(self, data, context):
        row, size = data[0], len(data)
        n, at = int(text(row, "n", "0")), int(text(row, "at", "-1"))
        for k in range(n):
            if k == at:
                pass_gate(text(row, "gate"))
            if k:
                time.sleep(float(text(row, "pause", "0")))
            self._send(k, n, row, size, context)
        if at >= n:
            pass_gate(text(row, "gate"))
        return self._end(text(row, "then"), row, size)

    def _send(self, k, n, row, size, context):
        padding = "." * int(text(row, "size", "0"))
        code = int(text(row, "code", "200")) if k == n - 1 else 200
        message = "Intermediate Prediction success" if code == 200 else "stream went wrong"
        parts = [f"part-{i}-{k}{padding}" for i in range(size)]
        send_intermediate_predict_response(parts, context.request_ids, message, code, context)

    def _end(self, then, row, size):
        if then == "raise":
            raise RuntimeError("boom")
        if then == "predict":
            raise PredictionException("x", 404)
        if then == "exit":
            os._exit(1)
        if then == "silence":
            pass_gate(text(row, "gate"))
        finals = [f"final-{i} batch={size}" for i in range(size)]
        return finals[:-1] if then == "short" else finals
