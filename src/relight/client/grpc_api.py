"""The operations over gRPC: TorchServe's three services (grpc_api.md §2, §4 to §6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from google.protobuf import empty_pb2
from google.rpc import code_pb2, error_details_pb2

from relight.client import grpc_tensors
from relight.client.errors import PredictionFailed, ServerError, Unsupported
from relight.client.mapping import from_grpc
from relight.client.payload import as_inputs
from relight.client.requests import GrpcRequest, StreamRequest
from relight.client.results import Health, ModelDescription, ModelPage, Prediction
from relight.protos import inference_pb2, management_pb2
from relight.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from relight.protos.management_pb2_grpc import ManagementAPIsServiceStub
from relight.protos.open_inference_grpc_pb2_grpc import GRPCInferenceServiceStub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relight.client.api import Inference, InferenceCall, KeyKind, PredictionCall, Turn
    from relight.client.requests import Flow

__all__ = ["GrpcApi"]

_PAGE_SIZE = 100
_SEQUENCE_END = "ts_request_sequence_end"


class GrpcApi:
    """The operations over gRPC."""

    def ping(self, timeout: float | None) -> Flow[Health]:
        """Ask for the server's health."""
        response = yield GrpcRequest(InferenceAPIsServiceStub, "Ping", empty_pb2.Empty(), timeout)
        return Health(json.loads(response.health)["status"])

    def predict(self, call: PredictionCall) -> Flow[Prediction]:
        """Call `Predictions`."""
        response = yield _inference("Predictions", _prediction(call), call.timeout)
        return Prediction(response.prediction)

    def stream(self, call: PredictionCall) -> StreamRequest[bytes]:
        """Call `StreamPredictions`; each message is a part."""
        return StreamRequest(_inference("StreamPredictions", _prediction(call), call.timeout), _part)

    def infer(self, call: InferenceCall) -> Flow[Inference]:
        """Call `ModelInfer`."""
        message = grpc_tensors.encode(call)
        request = GrpcRequest(GRPCInferenceServiceStub, "ModelInfer", message, call.timeout, PredictionFailed)
        response = yield request
        return grpc_tensors.decode(response)

    def conversation(self, timeout: float | None) -> GrpcRequest:
        """Call `StreamPredictions2`."""
        return _inference("StreamPredictions2", None, timeout)

    def turn(self, turn: Turn) -> inference_pb2.PredictionsRequest:
        """Return the message of one turn."""
        inputs = as_inputs(turn.data)
        if turn.end:
            inputs[_SEQUENCE_END] = b"true"
        return inference_pb2.PredictionsRequest(
            model_name=turn.model, model_version=turn.version or "", input=inputs, sequence_id=turn.sequence_id
        )

    def answer(self, message: inference_pb2.PredictionResponse) -> Prediction:
        """Read one message of the server in a conversation, or raise the error in its `status`."""
        if message.HasField("status") and message.status.code:
            reason = ""
            for detail in message.status.details:
                if detail.type_url.endswith("google.rpc.ErrorInfo"):
                    reason = error_details_pb2.ErrorInfo.FromString(detail.value).reason
            details = f"{message.status.message}\n{reason}" if reason else message.status.message
            raise from_grpc(_code_name(message.status.code), details, PredictionFailed)
        return Prediction(message.prediction, sequence_id=message.sequence_id or None)

    def register(self, options: Mapping[str, str | int | bool], timeout: float | None) -> Flow[str]:
        """Register a model."""
        fields: dict[str, Any] = dict(options)
        return (yield from _manage("RegisterModel", management_pb2.RegisterModelRequest(**fields), timeout))

    def scale(
        self, model: str, version: str | None, options: Mapping[str, int | bool], timeout: float | None
    ) -> Flow[str]:
        """Change a model's number of workers.

        Raises:
            Unsupported: A number is 0, which gRPC cannot tell from one that is not given.
        """
        for name in ("min_worker", "timeout"):
            if options.get(name, 1) == 0:
                raise Unsupported(f"{name}=0 cannot be said over gRPC, where it means the default; use an HTTP address")
        fields: dict[str, Any] = dict(options)
        request = management_pb2.ScaleWorkerRequest(model_name=model, model_version=version or "", **fields)
        return (yield from _manage("ScaleWorker", request, timeout))

    def describe(
        self, model: str, version: str | None, *, customized: bool, timeout: float | None
    ) -> Flow[list[ModelDescription]]:
        """Describe a version, or `all`."""
        request = management_pb2.DescribeModelRequest(
            model_name=model, model_version=version or "", customized=customized
        )
        failure = PredictionFailed if customized else ServerError
        text = yield from _manage("DescribeModel", request, timeout, failure)
        return [ModelDescription.parse(each) for each in json.loads(text)]

    def page(self, token: str | None, timeout: float | None) -> Flow[ModelPage]:
        """List models, from a token on."""
        # Without a limit TorchServe lists none.
        request = management_pb2.ListModelsRequest(limit=_PAGE_SIZE, next_page_token=int(token or 0))
        return ModelPage.parse((yield from _manage("ListModels", request, timeout)))

    def set_default(self, model: str, version: str, timeout: float | None) -> Flow[str]:
        """Make a version the default one."""
        request = management_pb2.SetDefaultRequest(model_name=model, model_version=version)
        return (yield from _manage("SetDefault", request, timeout))

    def unregister(self, model: str, version: str | None, timeout: float | None) -> Flow[str]:
        """Remove a version."""
        request = management_pb2.UnregisterModelRequest(model_name=model, model_version=version or "")
        return (yield from _manage("UnregisterModel", request, timeout))

    def renew(self, kind: KeyKind, api_key: str, timeout: float | None) -> Flow[None]:  # noqa: ARG002 - the interface
        """Refuse."""
        raise Unsupported("tokens are renewed over HTTP: give an HTTP address for the management API")


def _part(message: inference_pb2.PredictionResponse) -> bytes:
    return message.prediction


def _prediction(call: PredictionCall) -> inference_pb2.PredictionsRequest:
    if call.headers:
        raise Unsupported("handlers see no headers over gRPC; use named inputs, or an HTTP address")
    return inference_pb2.PredictionsRequest(
        model_name=call.model, model_version=call.version or "", input=as_inputs(call.data)
    )


def _inference(method: str, message: Any, timeout: float | None) -> GrpcRequest:
    return GrpcRequest(InferenceAPIsServiceStub, method, message, timeout, PredictionFailed)


def _manage(method: str, message: Any, timeout: float | None, failure: type[ServerError] = ServerError) -> Flow[str]:
    response = yield GrpcRequest(ManagementAPIsServiceStub, method, message, timeout, failure)
    text: str = response.msg
    return text


def _code_name(number: int) -> str:
    return code_pb2.Code.Name(number) if number in code_pb2.Code.values() else "UNKNOWN"
