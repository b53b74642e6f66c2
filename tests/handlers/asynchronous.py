"""Does, asynchronously, what the request header `x-op` says; `x-gate` holds it in the middle."""

# ruff: noqa: ARG002 - one signature for all

import asyncio
import os
import threading

from gates import pass_gate_async

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException


class Asynchronous:
    """A handler whose requests run at the same time."""

    def initialize(self, context):
        self.loop = asyncio.get_event_loop()
        self.ready = self.loop.run_until_complete(asyncio.sleep(0, result=True))
        self.kept = context
        self.cancelled = []
        self.sent = 0
        context.scratch = {}
        context.lock = threading.Lock()

    async def handle(self, data, context):
        headers = context.get_all_request_header(0)
        if headers.get("describe"):
            return [{"who": "asynchronous"}]
        op = headers.get("x-op", "echo").replace("-", "_")
        return await getattr(self, f"_{op}")(data, context, headers)

    async def _gate(self, headers):
        if "x-gate" in headers:
            await pass_gate_async(headers["x-gate"])

    async def _echo(self, data, context, headers):
        context.scratch[context.get_request_id(0)] = True
        context.set_response_header(0, "x-id", context.get_request_id(0))
        await self._gate(headers)
        return [
            {
                "pid": os.getpid(),
                "n": len(data),
                "body": row["body"].decode(),
                "id": context.get_request_id(index),
                "scratch": len(context.scratch),
                "loop": asyncio.get_running_loop() is self.loop and self.ready,
                "lock": context.lock is self.kept.lock,
            }
            for index, row in enumerate(data)
        ]

    async def _raise(self, data, context, headers):
        await self._gate(headers)
        raise RuntimeError("boom")

    async def _refuse(self, data, context, headers):
        await self._gate(headers)
        raise PredictionException("not this one", 444)

    async def _cancelled_error(self, data, context, headers):
        raise asyncio.CancelledError

    async def _exit(self, data, context, headers):
        await self._gate(headers)
        os._exit(1)

    async def _hang(self, data, context, headers):
        try:
            await self._gate(headers)
            await asyncio.Event().wait()
        finally:
            self.cancelled.append(context.get_request_id(0))

    async def _cancelled(self, data, context, headers):
        return [{"cancelled": len(self.cancelled)}]

    async def _stream(self, data, context, headers):
        """`x-parts` parts through the context, the kept context, a thread and the call without a context, in turns."""
        size = int(headers.get("x-size", 0))
        for number in range(int(headers.get("x-parts", 4))):
            part = [f"{row['body'].decode()}-{number} ".ljust(size) for row in data]
            if number == 1:
                await self._gate(headers)
            await self._send(part, number % 4, context)
        return ["end"] * len(data)

    async def _sent(self, data, context, headers):
        return [{"sent": self.sent}]

    async def _send(self, part, way, context):
        self.sent += 1
        arguments = (part, context.request_ids, "Intermediate Prediction success", 200)
        if way == 0:
            send_intermediate_predict_response(*arguments, context)
        elif way == 1:
            send_intermediate_predict_response(*arguments, self.kept)
        elif way == 2:
            await self.loop.run_in_executor(None, send_intermediate_predict_response, *arguments, context)
        else:
            send_intermediate_predict_response(*arguments)
        await asyncio.sleep(0)

    async def _watch(self, data, context, headers):
        """Until the client has gone: what a later request of kind `cancelled` counts."""
        send_intermediate_predict_response(["begun"], context.request_ids, "", 200, context)
        while not context.is_cancelled():  # noqa: ASYNC110 - that is what a handler does
            await asyncio.sleep(0.001)
        self.cancelled.append(context.get_request_id(0))
        return ["seen"]

    async def _watch_without_rest(self, data, context, headers):
        """Do that without ever giving way."""
        send_intermediate_predict_response(["begun"], context.request_ids, "", 200, context)
        while not context.is_cancelled():
            pass
        self.cancelled.append(context.get_request_id(0))
        return ["seen"]
