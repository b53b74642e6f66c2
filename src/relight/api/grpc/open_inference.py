"""The Open Inference Protocol's service (grpc_api.md §5), by TorchServe's name and by the protocol's own."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from relight.api.grpc.call import Method
from relight.api.grpc.inference import UnaryReply, resolve
from relight.api.grpc.status import Code, Status, inference_status, management_status
from relight.api.open_inference import metadata
from relight.api.open_inference.messages import metadata_message, read_message, result_message
from relight.api.open_inference.request import Target
from relight.api.open_inference.response import read_result
from relight.errors import BadRequestError, InternalServerError, RelightError
from relight.protos import open_inference_grpc_pb2 as pb
from relight.serving.job import Job, RequestIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.api.grpc.call import Call
    from relight.api.open_inference.request import AnswerForm
    from relight.serving.model import ModelVersion
    from relight.serving.registry import Registry

logger = logging.getLogger("relight.grpc")

TORCHSERVE_SERVICE = "org.pytorch.serve.grpc.openinference.GRPCInferenceService"
OFFICIAL_PACKAGE = "inference"
OFFICIAL_SERVICE = f"{OFFICIAL_PACKAGE}.GRPCInferenceService"
_BAD_REQUEST = "BadRequestException.()"
_LIVE = pb.ServerLiveResponse(live=True).SerializeToString()
_READY = pb.ServerReadyResponse(ready=True).SerializeToString()
_SERVER = pb.ServerMetadataResponse(
    name=metadata.SERVER_NAME, version=metadata.SERVER_VERSION, extensions=()
).SerializeToString()


class OpenInferenceService:
    """All methods of the protocol, under both names of the service.

    They differ where TorchServe's clients rely on what the protocol has otherwise: which errors it makes, and how
    BYTES are written (docs/open_inference.md).

    Args:
        registry: The models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ids = RequestIds()

    def methods(self) -> list[Method]:
        """The methods, to be served."""
        return [*self._methods(TORCHSERVE_SERVICE, legacy=True), *self._methods(OFFICIAL_SERVICE, legacy=False)]

    def _methods(self, service: str, *, legacy: bool) -> list[Method]:
        return [
            Method(f"/{service}/ServerLive", partial(_constant, _LIVE)),
            Method(f"/{service}/ServerReady", partial(_constant, _READY)),
            Method(f"/{service}/ServerMetadata", partial(_constant, _SERVER)),
            Method(
                f"/{service}/ModelReady", partial(self._ready, metadata.is_healthy if legacy else metadata.is_ready)
            ),
            Method(f"/{service}/ModelMetadata", self._metadata),
            Method(f"/{service}/ModelInfer", partial(self._infer, legacy)),
        ]

    def _ready(self, is_ready: Callable[[ModelVersion], bool], call: Call, message: bytes) -> None:
        request = pb.ModelReadyRequest.FromString(message)
        if not request.name:
            raise BadRequestError("Parameter name is required.")
        try:
            found = self._registry.resolve(request.name, request.version or None)
        except RelightError as error:
            call.end(management_status(error))
            return
        call.finish(pb.ModelReadyResponse(ready=is_ready(found)).SerializeToString())

    def _metadata(self, call: Call, message: bytes) -> None:
        request = pb.ModelMetadataRequest.FromString(message)
        if not request.name:
            raise BadRequestError("Parameter model_name is required.")
        try:
            found = metadata.of_model(self._registry, request.name, request.version or None)
        except RelightError as error:
            call.end(management_status(error))
            return
        call.finish(metadata_message(found).SerializeToString())

    def _infer(self, legacy: bool, call: Call, message: bytes) -> None:
        request = pb.ModelInferRequest.FromString(message)
        found = resolve(self._registry, request.model_name, request.model_version)
        settings = found.settings
        target = Target(settings.name, settings.version, settings.config)
        try:
            body, form = read_message(request, target, legacy=legacy)
        except BadRequestError as error:
            call.end(_malformed(error))
            return
        parts = [("body", "application/json", len(body))]
        job = Job(self._ids.next(), [], {}, parts, [body], len(body), InferReply(call, form), call.arrived)
        call.on_cancel = job.cancel
        found.submit(job, request.model_version or None)


def _constant(answer: bytes, call: Call, message: bytes) -> None:  # noqa: ARG001 - an empty message
    call.finish(answer)


def _malformed(error: BadRequestError) -> Status:
    return Status(Code.INVALID_ARGUMENT, error.message, _BAD_REQUEST)


class InferReply(UnaryReply):
    """Answers with the message that the handler's answer means.

    Args:
        call: The call.
        form: How the answer is wanted.
    """

    __slots__ = ("_form",)

    def __init__(self, call: Call, form: AnswerForm) -> None:
        super().__init__(call)
        self._form = form

    def answer(self, body: bytes | memoryview) -> None:
        """Send the result."""
        try:
            message = result_message(read_result(body, self._form), self._form)
        except BadRequestError as error:
            self._call.end(_malformed(error))
        except RelightError as error:
            self.fail(error)
        except Exception:
            # A Reply never raises.
            logger.exception("The answer of model %s could not be converted", self._form.model_name)
            self.fail(InternalServerError("Internal server error, see the server's log."))
        else:
            self._call.finish(message.SerializeToString())

    def fail(self, error: RelightError) -> None:
        """End the call with an error."""
        self._call.end(inference_status(error))
