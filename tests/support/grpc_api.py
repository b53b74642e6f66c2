"""gRPC clients of a server, and what their calls have to end with (grpc_api.md)."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc
import pytest
from google.protobuf import empty_pb2

from relight.protos import inference_pb2, inference_pb2_grpc, management_pb2_grpc, open_inference_grpc_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.support.server import Server

CALL_S = 60.0

ISE = "org.pytorch.serve.http.InternalServerException"
BRE = "org.pytorch.serve.http.BadRequestException"
MNF = "org.pytorch.serve.archive.model.ModelNotFoundException"
MVNF = "org.pytorch.serve.archive.model.ModelVersionNotFoundException"
BAD_REQUEST = "BadRequestException.()"
INTERNAL = "InternalServerException.()"
REFUSED = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
HEALTHY = '{\n  "status": "Healthy"\n}'
UNHEALTHY = '{\n  "status": "Unhealthy"\n}'

INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"
OPEN_INFERENCE = "org.pytorch.serve.grpc.openinference.GRPCInferenceService"

Metadata = tuple[tuple[str, str], ...]
Options = tuple[tuple[str, "str | int"], ...]

_OPTIONS: Options = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each channel
    ("grpc.enable_retries", 0),  # a call that fails has been sent once
)

M = TypeVar("M", covariant=True)


class Call(Protocol):
    """A call under way, of whatever kind."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str: ...
    def initial_metadata(self) -> Any: ...
    def trailing_metadata(self) -> Any: ...
    def cancel(self) -> bool: ...


class Unary(Call, Protocol[M]):
    """A call under way that has one answer."""

    def result(self, timeout: float | None = None) -> M: ...
    def done(self) -> bool: ...


class Stream(Call, Protocol[M]):
    """A call under way that has any number of answers."""

    def __iter__(self) -> Iterator[M]: ...
    def __next__(self) -> M: ...


@dataclass(frozen=True)
class Outcome(Generic[M]):
    """All that came of a call with a stream of answers."""

    messages: list[M]
    code: grpc.StatusCode
    details: str


def no_worker(model: str, version: str = "", label: str = INTERNAL) -> str:
    """Return the details of a call that no worker could take (NOWORKER)."""
    return (
        f'Model "{model}" {f"""Version {version}" """ if version else ""}has no worker to serve inference request. '
        "Please use scale workers API to add workers. If this is a sequence inference, please check if it is closed, "
        f"or expired; or exceeds maxSequenceJobQueueSize\n{label}"
    )


@contextlib.contextmanager
def expect_error(code: grpc.StatusCode, details: str) -> Iterator[None]:
    """Check that the block makes a call that ends so, its details to the byte, and without custom metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert (caught.value.code(), caught.value.details()) == (code, details)
    assert metadata_of(caught.value.trailing_metadata()) == {}


def status(call: Call) -> tuple[grpc.StatusCode, str]:
    """Return code and details of a call, once it has ended; a stream ends when its messages have been read."""
    return call.code(), call.details()


def read_all(call: Stream[M]) -> Outcome[M]:
    """Read a stream to its end."""
    messages: list[M] = []
    with contextlib.suppress(grpc.RpcError):
        messages.extend(call)
    return Outcome(messages, *status(call))


def predictions(outcome: Outcome[inference_pb2.PredictionResponse]) -> list[bytes]:
    """Return the bytes of its messages."""
    return [message.prediction for message in outcome.messages]


def metadata_of(pairs: Any) -> dict[str, str]:
    """Return initial or trailing metadata, without what every client library adds itself."""
    return {key: value for key, value in pairs or () if not key.startswith("grpc-")}


def request(
    model: str,
    inputs: Mapping[str, bytes | str] | None = None,
    version: str = "",
    sequence_id: str | None = None,
) -> inference_pb2.PredictionsRequest:
    """Return a request for a prediction; texts of the input are sent as UTF-8."""
    entries = {key: value.encode() if isinstance(value, str) else value for key, value in (inputs or {}).items()}
    return inference_pb2.PredictionsRequest(
        model_name=model, model_version=version, input=entries, sequence_id=sequence_id
    )


class Conversation:
    """A call of `StreamPredictions2`: requests are sent while answers are read."""

    def __init__(self, stub: inference_pb2_grpc.InferenceAPIsServiceStub, metadata: Metadata, timeout: float) -> None:
        self._requests: SimpleQueue[inference_pb2.PredictionsRequest | None] = SimpleQueue()
        requests = iter(self._requests.get, None)
        self.call: Stream[inference_pb2.PredictionResponse]
        self.call = stub.StreamPredictions2(requests, timeout=timeout, metadata=metadata)

    def send(
        self, model: str, inputs: Mapping[str, bytes | str] | None = None, sequence_id: str | None = None, **more: str
    ) -> None:
        """Send a request; `version` may be among `more`."""
        self._requests.put(request(model, inputs, sequence_id=sequence_id, **more))

    def read(self) -> inference_pb2.PredictionResponse:
        """Return the next answer."""
        return next(self.call)

    def half_close(self) -> None:
        """Say that no request will follow."""
        self._requests.put(None)

    def finish(self) -> Outcome[inference_pb2.PredictionResponse]:
        """Half-close, and read what is left."""
        self.half_close()
        return read_all(self.call)

    def cancel(self) -> None:
        """Cancel the call, and end the thread that waits for requests."""
        self.call.cancel()
        self.half_close()


class Api:
    """Clients of a server's two gRPC ports, over connections of their own.

    Args:
        server: The server.
        credentials: TLS; None for plain text.
        metadata: Sent with the calls that this class's methods make.
        options: More channel options.
        compression: Of all requests.
    """

    def __init__(
        self,
        server: Server,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        options: Options = (),
        compression: grpc.Compression | None = None,
    ) -> None:
        def channel(port: str, host: str) -> grpc.Channel:
            target = f"{host}:{server.config[port]}"
            if credentials is None:
                return grpc.insecure_channel(target, (*_OPTIONS, *options), compression)
            return grpc.secure_channel(target, credentials, (*_OPTIONS, *options), compression)

        host = "127.0.0.1" if credentials is None else "localhost"
        self.inference_channel = channel("grpc_inference_port", host)
        self.management_channel = channel("grpc_management_port", host)
        self.inference = inference_pb2_grpc.InferenceAPIsServiceStub(self.inference_channel)
        self.management = management_pb2_grpc.ManagementAPIsServiceStub(self.management_channel)
        self.open_inference = open_inference_grpc_pb2_grpc.GRPCInferenceServiceStub(self.inference_channel)
        self.metadata = metadata
        self._conversations: list[Conversation] = []

    def close(self) -> None:
        """Cancel what is under way and close the connections."""
        for conversation in self._conversations:
            conversation.cancel()
        self.inference_channel.close()
        self.management_channel.close()

    def ping(self, timeout: float = CALL_S) -> str:
        """Return the `health` text."""
        return self.inference.Ping(empty_pb2.Empty(), timeout=timeout, metadata=self.metadata).health

    def predict(
        self,
        model: str,
        inputs: Mapping[str, bytes | str] | None = None,
        version: str = "",
        *,
        sequence_id: str | None = None,
        timeout: float = CALL_S,
    ) -> bytes:
        """Return the prediction of a unary call, whose other fields must be unset."""
        message = request(model, inputs, version, sequence_id)
        answer = self.inference.Predictions(message, timeout=timeout, metadata=self.metadata)
        assert not answer.HasField("sequence_id")
        assert not answer.HasField("status")
        return answer.prediction

    def see(self, model: str, inputs: Mapping[str, bytes | str] | None = None, **more: Any) -> Any:
        """Return the JSON document that a unary call answers with."""
        return json.loads(self.predict(model, inputs, **more))

    def start(
        self,
        model: str,
        inputs: Mapping[str, bytes | str] | None = None,
        version: str = "",
        *,
        timeout: float = CALL_S,
    ) -> Unary[inference_pb2.PredictionResponse]:
        """Start a unary call."""
        message = request(model, inputs, version)
        return self.inference.Predictions.future(message, timeout=timeout, metadata=self.metadata)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, bytes | str] | None = None,
        version: str = "",
        *,
        timeout: float = CALL_S,
    ) -> Stream[inference_pb2.PredictionResponse]:
        """Start a call of `StreamPredictions`."""
        message = request(model, inputs, version)
        return self.inference.StreamPredictions(message, timeout=timeout, metadata=self.metadata)

    def converse(self, timeout: float = CALL_S) -> Conversation:
        """Start a call of `StreamPredictions2`."""
        conversation = Conversation(self.inference, self.metadata, timeout)
        self._conversations.append(conversation)
        return conversation

    def raw(self, method: str, body: bytes = b"", *, management: bool = False, timeout: float = CALL_S) -> bytes:
        """Make a unary call of any method (`/service/Method`) with the message as bytes."""
        channel = self.management_channel if management else self.inference_channel
        call = channel.unary_unary(method, request_serializer=_same, response_deserializer=_same)
        return call(body, timeout=timeout, metadata=self.metadata)


def _same(data: bytes) -> bytes:
    return data


def results(calls: Iterable[Unary[inference_pb2.PredictionResponse]]) -> list[bytes]:
    """Return the predictions of calls under way."""
    return [call.result().prediction for call in calls]
