"""`StreamPredictions2`: each message is a request of its own, and an error ends none but its own (grpc_api.md §4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.rpc.error_details_pb2 import ErrorInfo

from relight.api.grpc.call import Call, Method
from relight.api.grpc.inference import SERVICE, make_job, resolve
from relight.api.grpc.status import Code, Status, inference_status
from relight.errors import BadRequestError, RelightError, ServiceUnavailableError
from relight.protos.inference_pb2 import PredictionResponse, PredictionsRequest
from relight.serving.job import RequestIds

if TYPE_CHECKING:
    from relight.serving.job import Job
    from relight.serving.registry import Registry
    from relight.settings import Settings
    from relight.wire.messages import Answer


_STOPPING = "The server is shutting down."


class SequenceService:
    """The bidirectional method of the inference service.

    Args:
        registry: The models.
        settings: Of the server: names of the inputs that begin and end a sequence.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self.registry = registry
        self.ids = RequestIds()
        self.start_key = settings.ts_header_key_sequence_start
        self.end_key = settings.ts_header_key_sequence_end

    def methods(self) -> list[Method]:
        """The method, to be served."""
        return [Method(f"/{SERVICE}/StreamPredictions2", self._message, self._half_close)]

    def _message(self, call: Call, message: bytes) -> None:
        self._requests_of(call).add(PredictionsRequest.FromString(message))

    def _half_close(self, call: Call) -> None:
        self._requests_of(call).close()

    def _requests_of(self, call: Call) -> OpenRequests:
        if not isinstance(call.state, OpenRequests):
            call.state = OpenRequests(self, call)
        return call.state


class OpenRequests:
    """The requests of one call that are not answered yet.

    Args:
        service: The service.
        call: The call.
    """

    def __init__(self, service: SequenceService, call: Call) -> None:
        self._service = service
        self._call = call
        self._jobs: set[Job] = set()
        self._closed = False
        self._stopping = False
        call.on_stop = self._stop
        call.on_cancel = self._cancel
        call.on_drain = self._drained

    def add(self, request: PredictionsRequest) -> None:
        """Queue a request, or answer it with an error."""
        reply = MessageReply(self, request.sequence_id)
        try:
            self._submit(request, reply)
        except RelightError as error:
            reply.fail(error)

    def _submit(self, request: PredictionsRequest, reply: MessageReply) -> None:
        if self._stopping:
            raise ServiceUnavailableError(_STOPPING)
        service = self._service
        starts = request.input.get(service.start_key) == b"true"
        if not request.sequence_id and not starts:
            raise BadRequestError("Parameter sequenceId is required.")
        version = resolve(service.registry, request.model_name, request.model_version)
        job = reply.job = make_job(request, service.ids.next(), reply, self._call.arrived)
        job.sequence_start = starts
        job.sequence_end = request.input.get(service.end_key) == b"true"
        self._jobs.add(job)
        try:
            version.submit(job, request.model_version or None)
        except RelightError:
            self._jobs.discard(job)
            raise

    def send(self, response: PredictionResponse) -> bool:
        """Send a message; whether the client keeps up."""
        self._call.send(response.SerializeToString())
        return not self._call.congested

    def answered(self, job: Job | None) -> None:
        """A request is done with."""
        if job is not None:
            self._jobs.discard(job)
        self._finish_if_done()

    def close(self) -> None:
        """The client sends no more: the call ends when all it has sent is answered."""
        self._closed = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._jobs:
            return
        if self._closed:
            self._call.finish()
        elif self._stopping:
            self._call.end(Status(Code.UNAVAILABLE, _STOPPING))

    def _stop(self) -> None:
        self._stopping = True
        self._finish_if_done()

    def _cancel(self) -> None:
        for job in list(self._jobs):
            job.cancel()

    def _drained(self) -> None:
        for job in list(self._jobs):
            job.drained()


class MessageReply:
    """Answers one request of a call, by one or more messages.

    Args:
        requests: The requests of the call.
        sequence_id: The sequence that the client named.
    """

    __slots__ = ("_requests", "_sequence_id", "job")

    def __init__(self, requests: OpenRequests, sequence_id: str) -> None:
        self._requests = requests
        self._sequence_id = sequence_id
        self.job: Job | None = None

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:  # noqa: ARG002 - a Reply's signature
        """Send an intermediate result."""
        return self._requests.send(self._response(bytes(body)))

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:  # noqa: ARG002 - a Reply's signature
        """Send the result."""
        self._requests.send(self._response(bytes(body)))
        self._requests.answered(self.job)

    def fail(self, error: RelightError) -> None:
        """Send the error, and go on."""
        status = inference_status(error)
        response = self._response(b"")
        response.status.code = status.code
        response.status.message = status.message
        response.status.details.add().Pack(ErrorInfo(reason=status.label))
        self._requests.send(response)
        self._requests.answered(self.job)

    def _response(self, body: bytes) -> PredictionResponse:
        response = PredictionResponse(prediction=body)
        sequence_id = (self.job.sequence_id if self.job is not None else None) or self._sequence_id
        if sequence_id:
            response.sequence_id = sequence_id
        return response
