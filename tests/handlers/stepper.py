"""Continuous batching: each call gives each request its next part; request headers say which, and how many.

`x-n` parts in all (0: the answer is a plain one); `x-show` what they tell: `step`, `size` of the batch, `ids` in it,
the `row` and its headers, or `nothing`; `x-gate` to pass before part `x-at`; `x-op` `raise` or `exit` at part `x-at`.
"""

import json
import os

from gates import pass_gate


class Stepper:
    """A handler that works in steps."""

    def initialize(self, context):
        self.context = context
        self.made = {}

    def handle(self, data, context):
        headers = [context.get_all_request_header(idx) for idx in range(len(data))]
        if headers[0].get("describe"):
            return [{"steps": sum(self.made.values())}]
        results, criteria = [], []
        for idx, row in enumerate(data):
            made = self._count(context.get_request_id(idx))
            self._disturb(headers[idx], made)
            context.set_response_header(idx, "x-step", str(made))
            results.append(self._part(headers[idx], made, row, len(data)))
            criteria.append(self._criterion(int(headers[idx].get("x-n", "1")), made))
        context.stopping_criteria = criteria
        return results

    def _count(self, request):
        self.made[request] = self.made.get(request, 0) + 1
        return self.made[request]

    def _disturb(self, headers, made):
        if made != int(headers.get("x-at", "1")):
            return
        if "x-gate" in headers:
            pass_gate(headers["x-gate"])
        if headers.get("x-op") == "raise":
            raise RuntimeError("boom")
        if headers.get("x-op") == "exit":
            os._exit(1)

    def _part(self, headers, made, row, size):
        show = headers.get("x-show", "step")
        if show == "size":
            return f"{size} "
        if show == "ids":
            return json.dumps([self.context.get_request_id(idx) for idx in range(size)]) + "\n"
        if show == "row":
            inputs = {key: bytes(value).decode() for key, value in row.items()}
            return json.dumps({"row": inputs, "headers": headers}) + "\n"
        return "" if show == "nothing" else f"step{made} "

    def _criterion(self, wanted, made):
        if not wanted:
            return lambda _: None
        return lambda _: made >= wanted
