"""Does what the input `mode` says (grpc_api.md §11, *probe*); before that it passes the gate of the input `gate`."""

# ruff: noqa: ARG002 - the signatures are those of a handler

import os
import time

from gates import pass_gate
from grpc_inputs import text

from ts.utils.util import PredictionException

KINDS = {
    "bytes": b"\x00\xffraw",
    "bytearray": bytearray(b"\x01array"),
    "empty": b"",
    "str": "grüße",
    "int": 7,
    "float": 1.5,
    "nan": float("nan"),
    "none": None,
    "true": True,
    "list": [1, "two", None],
    "tuple": (1, 2),
    "dict": {"ü": "ü"},
    "object": object(),
}


class Probe:
    """A handler for every purpose."""

    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        for row in data:
            if "gate" in row:
                pass_gate(text(row, "gate"))
        for row in data:
            whole = getattr(self, f"_whole_{text(row, 'mode')}", None)
            if whole:
                return whole(data, row)
        return [self._item(idx, row, len(data)) for idx, row in enumerate(data)]

    def _item(self, idx, row, n):
        one = getattr(self, f"_one_{text(row, 'mode', 'see')}")
        return one(idx, row, n)

    def _one_see(self, idx, row, n):
        return {
            "row": {key: {"type": type(value).__name__, "text": bytes(value).decode()} for key, value in row.items()},
            "headers": self.context.get_all_request_header(idx),
            "sequence": self.context.get_sequence_id(idx),
            "id": self.context.get_request_id(idx),
            "ids": list(self.context.request_ids.values()),
        }

    def _one_place(self, idx, row, n):
        return f"{text(row, 'data')} {idx} of {n}"

    def _one_pid(self, idx, row, n):
        return str(os.getpid())

    def _one_ret(self, idx, row, n):
        kind = text(row, "kind")
        if kind == "tensor":
            import torch

            return torch.ones(2)
        return KINDS[kind]

    def _one_status(self, idx, row, n):
        self.context.set_response_status(404, "Not Here", idx)
        return "with status"

    def _one_header(self, idx, row, n):
        self.context.set_response_header(idx, "x-extra", "yes")
        self.context.set_response_content_type(idx, "text/x-extra")
        return "with header"

    def _one_big(self, idx, row, n):
        return b"x" * int(text(row, "size"))

    def _one_cancelled(self, idx, row, n):
        """Wait until the client is known to have gone, then pass the gate `gone`."""
        deadline = time.monotonic() + 60
        while not self.context.is_cancelled(idx) and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.context.is_cancelled(idx):
            pass_gate(text(row, "gone"))
        return "cancelled"

    def _whole_raise(self, data, row):
        raise RuntimeError("boom")

    def _whole_memory(self, data, row):
        raise MemoryError

    def _whole_cuda(self, data, row):
        raise RuntimeError("CUDA error: out of memory")

    def _whole_predict(self, data, row):
        raise PredictionException("custom", int(text(row, "code")))

    def _whole_nolist(self, data, row):
        return {"no": "list"}

    def _whole_short(self, data, row):
        return ["x"] * (len(data) - 1)

    def _whole_long(self, data, row):
        return ["x"] * (len(data) + 1)

    def _whole_exit(self, data, row):
        os._exit(1)
