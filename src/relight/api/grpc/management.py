"""The management service (grpc_api.md §6)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from relight.api.grpc.call import Call, Method
from relight.api.grpc.status import Code, Status, inference_status, management_status
from relight.api.json_text import json_text
from relight.api.management import LIST_LIMIT, CustomizedReply, ModelManager, describe_job
from relight.errors import BadRequestError, RelightError, ServiceUnavailableError, WorkerDiedError
from relight.protos import management_pb2 as pb2
from relight.serving.job import RequestIds
from relight.serving.version_settings import Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from google.protobuf.message import Message

    from relight.api.grpc.listener import GrpcListener
    from relight.serving.model import ModelVersion
    from relight.serving.registry import Registry

SERVICE = "org.pytorch.serve.grpc.management.ManagementAPIsService"
_INTERNAL_LABEL = "org.pytorch.serve.http.InternalServerException"
# The word in it is TorchServe's, and clients match the text.
_NO_DESCRIPTION = "Failed to get customized model matadata."


class _Rpc(NamedTuple):
    request: type[Message]
    answer: Callable[[Any], Coroutine[None, None, str]]


class ManagementService:
    """The six methods.

    Args:
        registry: The models.
        listener: Runs what takes time.
    """

    def __init__(self, registry: Registry, listener: GrpcListener) -> None:
        self._manager = ModelManager(registry)
        self._registry = registry
        self._listener = listener
        self._ids = RequestIds()

    def methods(self) -> list[Method]:
        """The methods, to be served."""
        rpcs = {
            "ListModels": _Rpc(pb2.ListModelsRequest, self._list),
            "RegisterModel": _Rpc(pb2.RegisterModelRequest, self._register),
            "ScaleWorker": _Rpc(pb2.ScaleWorkerRequest, self._scale),
            "SetDefault": _Rpc(pb2.SetDefaultRequest, self._set_default),
            "UnregisterModel": _Rpc(pb2.UnregisterModelRequest, self._unregister),
        }
        methods = [Method(f"/{SERVICE}/{name}", self._runner(rpc)) for name, rpc in rpcs.items()]
        return [*methods, Method(f"/{SERVICE}/DescribeModel", self._describe)]

    def _runner(self, rpc: _Rpc) -> Callable[[Call, bytes], None]:
        def run(call: Call, message: bytes) -> None:
            # It runs to its end even if the client gives up: no registration is left half done.
            self._listener.run(call, _serialized(rpc.answer(rpc.request.FromString(message))))

        return run

    async def _list(self, request: pb2.ListModelsRequest) -> str:
        limit = request.limit if 0 < request.limit <= LIST_LIMIT else LIST_LIMIT
        return json_text(self._manager.listing(limit, max(0, request.next_page_token), token_at_end=True))

    async def _register(self, request: pb2.RegisterModelRequest) -> str:
        if not request.url:
            raise BadRequestError("Parameter url is required.")
        outcome = await self._manager.register(
            Registration(
                url=request.url,
                model_name=request.model_name or None,
                handler=request.handler or None,
                runtime=request.runtime or None,
                batch_size=_given(request.batch_size),
                max_batch_delay=_given(request.max_batch_delay),
                initial_workers=_given(request.initial_workers),
                response_timeout=_given(request.response_timeout),
                startup_timeout=_given(request.startup_timeout),
                synchronous=request.synchronous,
                s3_sse_kms=request.s3_sse_kms,
            )
        )
        return outcome.text

    async def _scale(self, request: pb2.ScaleWorkerRequest) -> str:
        minimum = _given(request.min_worker) or 1
        outcome = await self._manager.scale(
            request.model_name,
            request.model_version or None,
            minimum,
            _given(request.max_worker) or minimum,
            synchronous=request.synchronous,
            timeout=_given(request.timeout),
            gpus=_given(request.number_gpu),
        )
        return outcome.text

    async def _set_default(self, request: pb2.SetDefaultRequest) -> str:
        return self._manager.set_default(request.model_name, request.model_version)

    async def _unregister(self, request: pb2.UnregisterModelRequest) -> str:
        if not request.model_name:
            raise BadRequestError("Parameter url is required.")
        return await self._manager.unregister(request.model_name, request.model_version or None, None)

    # -- describe ------------------------------------------------------------------------------------------------

    def _describe(self, call: Call, message: bytes) -> None:
        request = pb2.DescribeModelRequest.FromString(message)
        name, version = request.model_name, request.model_version or None
        if request.customized and version != "all":
            # Errors have the codes of inference calls here: unknown models are INTERNAL.
            self._describe_customized(call, self._registry.resolve(name, version))
            return
        try:
            document = self._manager.describe(name, version)
        except RelightError as error:
            call.end(management_status(error))
        else:
            call.finish(_response(json_text(document)))

    def _describe_customized(self, call: Call, version: ModelVersion) -> None:
        def fail(error: RelightError) -> None:
            timed_out = monotonic() - call.arrived >= version.settings.response_timeout
            if isinstance(error, WorkerDiedError) and timed_out:
                call.end(Status(Code.INTERNAL, _NO_DESCRIPTION, _INTERNAL_LABEL))
            else:
                call.end(inference_status(error))

        reply = CustomizedReply(version, lambda document, _: call.finish(_response(json_text(document))), fail)
        job = describe_job(self._ids.next(), [], reply, call.arrived)
        call.on_cancel = job.cancel
        try:
            version.submit(job)
        except ServiceUnavailableError as error:
            call.end(Status(Code.INTERNAL, error.message, _INTERNAL_LABEL))


async def _serialized(answer: Coroutine[None, None, str]) -> bytes:
    return _response(await answer)


def _response(text: str) -> bytes:
    return pb2.ManagementResponse(msg=text).SerializeToString()


def _given(value: int) -> int | None:
    """A number of a request; zero, which it has when it is not set, and less mean that it is not given."""
    return value if value > 0 else None
