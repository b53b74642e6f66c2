"""Does what the request header `x-op` says."""

# ruff: noqa: ARG002 - the signatures are those of a handler

import os
import time
from pathlib import Path

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException

WAIT_LIMIT_S = 60

KINDS = {
    "dict": {"a": 1, "b": [1, 2]},
    "none": None,
    "nan": float("nan"),
    "unicode": {"k": "é中"},
    "set": {1},
    "int": 7,
    "str": "é",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"ab"),
    "tuple": (1, 2),
}
DESCRIPTIONS = {"object": {"who": "swiss", "n": [1]}, "number": 5, "text": "no json", "empty": ""}


def pass_gate(name):
    """Tell the test that somebody has come, then wait for it to open the gate."""
    folder = Path(os.environ["RELIGHT_TEST_GATES"])
    (folder / f"{name}.arrived.{os.getpid()}.{time.monotonic_ns()}").touch()
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not (folder / name).exists() and time.monotonic() < deadline:
        time.sleep(0.005)


class Swiss:
    """A handler for every purpose."""

    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        headers = [context.get_all_request_header(idx) for idx in range(len(data))]
        first = headers[0]
        if first.get("describe"):
            return self._describe(first, data)
        op = first.get("x-op", "")
        if "x-gate" in first and op != "stream":
            pass_gate(first["x-gate"])
        whole = getattr(self, f"_whole_{op.replace('-', '_')}", None)
        if whole:
            return whole(data, first)
        return [self._item(idx, row, headers[idx], len(data)) for idx, row in enumerate(data)]

    def _describe(self, first, data):
        if "x-gate" in first:
            pass_gate(first["x-gate"])
        if first.get("x-op") == "raise":
            raise RuntimeError("boom")
        if first.get("x-describe") == "headers":
            return [{"row": data[0], "describe": str(first["describe"])}]
        if first.get("x-describe") == "status":
            self.context.set_response_status(201, "Described", 0)
            self.context.set_response_header(0, "x-extra", "yes")
        return [DESCRIPTIONS.get(first.get("x-describe"), DESCRIPTIONS["object"])]

    def _item(self, idx, row, headers, n):
        op = headers.get("x-op", "")
        one = getattr(self, f"_one_{op}", None)
        if one:
            return one(idx, headers)
        shown = {key: {"py": type(value).__name__, **_shown(value)} for key, value in row.items()}
        plain = {key: value if isinstance(value, (str, dict)) else str(value) for key, value in headers.items()}
        return {
            "pid": os.getpid(),
            "n": n,
            "id": self.context.get_request_id(idx),
            "keys": list(row),
            "row": shown,
            "headers": plain,
        }

    def _one_ret(self, idx, headers):
        kind = headers["x-kind"]
        if kind == "tensor":
            import torch

            return torch.ones(2)
        return KINDS[kind]

    def _one_pid(self, idx, headers):
        return str(os.getpid())

    def _one_sleep(self, idx, headers):
        time.sleep(float(headers["x-sleep"]))
        return "slept"

    def _one_status(self, idx, headers):
        self.context.set_response_status(int(headers["x-code"]), headers.get("x-phrase", ""), idx)
        return "body with status"

    def _one_ct(self, idx, headers):
        self.context.set_response_content_type(idx, headers["x-ct"])
        return "typed"

    def _one_header(self, idx, headers):
        value = headers["x-value"]
        if headers.get("x-value-kind") == "int":
            value = int(value)
        elif headers.get("x-value-kind") == "line":
            value = "a\r\nb"
        self.context.set_response_header(idx, headers["x-name"], value)
        return "with header"

    def _one_badphrase(self, idx, headers):
        self.context.set_response_status(200, "a\r\nb", idx)
        return "x"

    def _one_big(self, idx, headers):
        return "x" * int(headers["x-n"])

    def _whole_raise(self, data, first):
        raise RuntimeError("boom")

    def _whole_mem(self, data, first):
        raise MemoryError

    def _whole_raise_cuda(self, data, first):
        raise RuntimeError("CUDA error")

    def _whole_pe(self, data, first):
        raise PredictionException("my message", int(first.get("x-code", 513)))

    def _whole_notlist(self, data, first):
        return {"str": "text", "tuple": ("a",), "none": None, "dict": {}}[first.get("x-kind", "str")]

    def _whole_wronglen(self, data, first):
        return ["x"] * (len(data) + 1)

    def _whole_exit(self, data, first):
        os._exit(int(first.get("x-code", 1)))

    def _whole_stream(self, data, first):
        context, n = self.context, len(data)
        if "x-ct" in first:
            for idx in range(n):
                context.set_response_content_type(idx, first["x-ct"])
        for part in range(3):
            items = [f"part{part} "] * n
            send_intermediate_predict_response(items, context.request_ids, "Intermediate", 200, context)
            time.sleep(float(first.get("x-pause", 0)))
            if part == 0 and "x-gate" in first:
                pass_gate(first["x-gate"])
            if part == 1 and first.get("x-then") == "raise":
                raise RuntimeError("boom")
            if part == 1 and first.get("x-then") == "exit":
                os._exit(1)
        context.set_response_status(418, "too late", 0)
        return ["last"] * n


def _shown(value):
    if isinstance(value, (bytes, bytearray)):
        return {"len": len(value), "text": bytes(value).decode("latin-1")}
    if isinstance(value, str):
        return {"len": len(value), "text": value}
    return {"value": value}
