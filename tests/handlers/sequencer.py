"""Keeps a sum for each sequence; request headers say what else to do.

`x-show` what to tell: `sum`, `pid`, `size` of the batch, or the `headers` that are text; `x-gate` to pass first; `x-op`
`raise` or `exit`; `x-close` sequences to end with the answer; `x-cancel` ends what the sequence is streaming; `x-n` the
parts of an answer, where batching is continuous.
"""

import json
import os

from gates import pass_gate


class Sequencer:
    """Stateful."""

    def initialize(self, context):
        self.context = context
        self.sums = {}
        self.made = {}
        self.cancelled = set()

    def handle(self, data, context):
        headers = [context.get_all_request_header(idx) for idx in range(len(data))]
        if headers[0].get("describe"):
            return [{"sums": self.sums}]
        for each in headers:
            self._disturb(each)
        results = [self._item(idx, row, headers[idx], len(data)) for idx, row in enumerate(data)]
        if context.model_yaml_config.get("continuousBatching"):
            context.stopping_criteria = [self._criterion(idx, each) for idx, each in enumerate(headers)]
        return results

    def _disturb(self, headers):
        if "x-gate" in headers:
            pass_gate(headers["x-gate"])
        if headers.get("x-op") == "raise":
            raise RuntimeError("boom")
        if headers.get("x-op") == "exit":
            os._exit(1)

    def _item(self, idx, row, headers, size):
        context = self.context
        sequence, request = context.get_sequence_id(idx), context.get_request_id(idx)
        context.set_response_header(idx, context.header_key_sequence_id, sequence)
        if "x-close" in headers:
            context.set_response_header(idx, context.header_key_sequence_end, headers["x-close"])
        if "x-cancel" in headers:
            self.cancelled.add(sequence)
        self.made[request] = self.made.get(request, 0) + 1
        self.sums[sequence] = self.sums.get(sequence, 0) + int(bytes(row.get("body", b"0")) or b"0")
        told = {
            "sum": f"{sequence}={self.sums[sequence]} ",
            "pid": str(os.getpid()),
            "size": f"{size} ",
            "headers": json.dumps({key: value for key, value in headers.items() if isinstance(value, str)}),
        }
        return told[headers.get("x-show", "sum")]

    def _criterion(self, idx, headers):
        if "x-n" not in headers:
            return lambda _: None
        over = self.made[self.context.get_request_id(idx)] >= int(headers["x-n"])
        if self.context.get_sequence_id(idx) in self.cancelled:
            over = True
        return lambda _: over
