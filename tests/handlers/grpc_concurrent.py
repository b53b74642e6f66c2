"""Asynchronous communication: two parts and a final result, with a gate (input `gate`) between the parts."""

from gates import pass_gate_async

from ts.handler_utils.utils import send_intermediate_predict_response


class Concurrent:
    """A handler that runs its requests at the same time."""

    def initialize(self, context):
        self.context = context

    async def handle(self, data, context):
        options = {key: bytes(value).decode() for key, value in data[0].items()}
        name = options["name"]
        self._send(context, f"{name}-0")
        if "gate" in options:
            await pass_gate_async(options["gate"])
        if options.get("then") == "raise":
            raise RuntimeError("boom")
        self._send(context, f"{name}-1")
        return [f"{name}-end"]

    @staticmethod
    def _send(context, part):
        send_intermediate_predict_response([part], context.request_ids, "Intermediate Prediction success", 200, context)
