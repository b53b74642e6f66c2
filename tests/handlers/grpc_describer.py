"""Describes itself as the last prediction told it, with its inputs `kind` and `gate`."""

# ruff: noqa: ARG002 - the signatures are those of a handler

from gates import pass_gate

DESCRIPTIONS = {
    "object": {"who": "describer", "n": [1, "ü"]},
    "json": '{"who": "text", "n": 1}',
    "text": "no json",
    "list": [1],
    "none": None,
    "empty": "",
}


class Describer:
    """A handler with a description."""

    def initialize(self, context):
        self.context = context
        self.options = {}

    def handle(self, data, context):
        headers = self.context.get_all_request_header(0)
        if "describe" not in headers:
            self.options = {key: bytes(value).decode() for key, value in data[0].items()}
            return ["told"]
        if "gate" in self.options:
            pass_gate(self.options["gate"])
        kind = self.options.get("kind", "object")
        if kind == "raise":
            raise RuntimeError("boom")
        if kind == "seen":
            return [{"row": data[0], "describe": str(headers["describe"])}]
        return [DESCRIPTIONS[kind]]
