"""The inference service (grpc_api.md §4): from messages to jobs, and from results to messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.api.grpc.call import Call, Method
from relight.api.grpc.status import Code, Status, inference_status
from relight.api.json_text import json_text
from relight.errors import BadRequestError, InternalServerError, RelightError, RequestTimeoutError
from relight.protos.inference_pb2 import PredictionResponse, PredictionsRequest, TorchServeHealthResponse
from relight.serving.job import Job, RequestIds

if TYPE_CHECKING:
    from relight.serving.job import Reply
    from relight.serving.model import ModelVersion
    from relight.serving.registry import Registry
    from relight.wire.messages import Answer

SERVICE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
_PREDICTION = PredictionResponse.DESCRIPTOR.fields_by_name["prediction"].number << 3 | 2


class InferenceService:
    """`Ping`, `Predictions` and `StreamPredictions`.

    Args:
        registry: The models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ids = RequestIds()

    def methods(self) -> list[Method]:
        """The methods, to be served."""
        return [
            Method(f"/{SERVICE}/Ping", self._ping),
            Method(f"/{SERVICE}/Predictions", self._predict),
            Method(f"/{SERVICE}/StreamPredictions", self._stream),
        ]

    def _ping(self, call: Call, message: bytes) -> None:  # noqa: ARG002 - an empty message
        health = json_text({"status": self._registry.health()})
        call.finish(TorchServeHealthResponse(health=health).SerializeToString())

    def _predict(self, call: Call, message: bytes) -> None:
        request = PredictionsRequest.FromString(message)
        submit(self._registry, call, request, self._ids.next(), UnaryReply(call))

    def _stream(self, call: Call, message: bytes) -> None:
        request = PredictionsRequest.FromString(message)
        submit(self._registry, call, request, self._ids.next(), StreamReply(call), alone=True)


def resolve(registry: Registry, name: str, version: str) -> ModelVersion:
    """The version that a request is for.

    Raises:
        BadRequestError: no model is named.
        RelightError: there is no such model or version.
    """
    if not name:
        raise BadRequestError("Parameter model_name is required.")
    return registry.resolve(name, version or None)


def submit(
    registry: Registry,
    call: Call,
    request: PredictionsRequest,
    request_id: str,
    reply: Reply,
    *,
    alone: bool = False,
) -> None:
    """Queue a request for its model.

    Raises:
        RelightError: it is refused.
    """
    version = resolve(registry, request.model_name, request.model_version)
    job = make_job(request, request_id, reply, call.arrived, alone=alone and version.streams_alone)
    call.on_cancel = job.cancel
    call.on_drain = job.drained
    version.submit(job, request.model_version or None)


def make_job(
    request: PredictionsRequest,
    request_id: str,
    reply: Reply,
    arrived: float,
    *,
    alone: bool = False,
) -> Job:
    """The job of a request: its inputs have names, and no content type."""
    parts = []
    body = []
    size = 0
    inputs = request.input
    # Not `items`, which is made for each call in Python.
    for name in inputs:
        value = inputs[name]
        parts.append((name, "", len(value)))
        body.append(value)
        size += len(value)
    job = Job(request_id, [], {}, parts, body, size, reply, arrived, alone)
    job.sequence_id = request.sequence_id or None
    return job


class UnaryReply:
    """Answers with one message; what a handler sends on the way is put before what it returns.

    Args:
        call: The call.
    """

    __slots__ = ("_call", "_chunks", "_size")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._chunks: list[bytes] | None = None
        self._size = 0

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:  # noqa: ARG002 - a Reply's signature
        """Keep an intermediate result."""
        if self._chunks is None:
            self._chunks = []
        self._chunks.append(bytes(body))
        self._size += len(body)
        if self._size > self._call.connection.max_buffered:
            self._chunks.clear()
            self._call.give_up(Status(Code.RESOURCE_EXHAUSTED, "The handler streams more than one message can hold"))
        return True

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:  # noqa: ARG002 - status and headers have no place here
        """Send the result."""
        if self._chunks is not None:
            body = b"".join([*self._chunks, body])
        self.answer(body)

    def answer(self, body: bytes | memoryview) -> None:
        """Send the message that the result means."""
        self._call.finish(prediction(body))

    def fail(self, error: RelightError) -> None:
        """End the call with an error."""
        _fail(self._call, error)


class StreamReply:
    """Answers with a message for each intermediate result, and one for what the handler returns.

    Args:
        call: The call.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:  # noqa: ARG002 - a Reply's signature
        """Send an intermediate result."""
        call = self._call
        call.send(prediction(body))
        return not call.congested

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:  # noqa: ARG002 - a Reply's signature
        """Send the result."""
        self._call.finish(prediction(body))

    def fail(self, error: RelightError) -> None:
        """End the call with an error, after what was sent."""
        _fail(self._call, error)


def _fail(call: Call, error: RelightError) -> None:
    if isinstance(error, InternalServerError) and error.number == 200:
        # A handler has raised what it calls a success: TorchServe's clients get this text (Q7).
        call.finish(prediction(b"error"))
    else:
        if isinstance(error, RequestTimeoutError):
            # Time is over: the client gets no more of what it has not read.
            call.drop_pending()
        call.end(inference_status(error))


def prediction(body: bytes | memoryview) -> bytes:
    """A serialised PredictionResponse.

    Written by hand, as a result of megabytes would be copied twice by the library.
    """
    size = len(body)
    if not size:
        return b""
    if size < 128:
        return b"".join((bytes((_PREDICTION, size)), body))
    length = bytearray()
    while size >= 128:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return b"".join((bytes([_PREDICTION]), length, body))
