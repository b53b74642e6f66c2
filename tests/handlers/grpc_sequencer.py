"""Keeps a sum for each sequence id (grpc_api.md §11, *sequencer*).

Inputs: `data` to add; `mode` `headers` (answers with the headers seen), `raise`, `exit`; `gate` to pass first.
"""

# ruff: noqa: ARG002 - the signatures are those of a handler

import json
import os

from gates import pass_gate
from grpc_inputs import text


class Sequencer:
    """Stateful."""

    def initialize(self, context):
        self.sums = {}

    def handle(self, data, context):
        for row in data:
            if "gate" in row:
                pass_gate(text(row, "gate"))
            if text(row, "mode") == "raise":
                raise RuntimeError("boom")
            if text(row, "mode") == "exit":
                os._exit(1)
        return [self._item(idx, row, context) for idx, row in enumerate(data)]

    def _item(self, idx, row, context):
        sequence = context.get_sequence_id(idx)
        if text(row, "mode") == "headers":
            headers = context.get_all_request_header(idx)
            return json.dumps({key: value for key, value in headers.items() if isinstance(value, str)})
        self.sums[sequence] = self.sums.get(sequence, 0) + int(text(row, "data", "0"))
        return f"{sequence}={self.sums[sequence]}"
