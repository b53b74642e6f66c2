"""What the operations ask of their transports, and what they make of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from tests.unit.client.support import Drive, ok, sent

from relight.client import (
    DeadlineExceeded,
    Health,
    Inputs,
    ModelEntry,
    ModelNotFound,
    PredictionFailed,
    ServerError,
    Unavailable,
    Unsupported,
    flows,
)
from relight.client.api import PredictionCall, Turn
from relight.client.grpc_api import GrpcApi
from relight.client.http_api import HttpApi
from relight.protos import inference_pb2, management_pb2

HTTP = HttpApi()
GRPC = GrpcApi()
DESCRIPTION = {
    "modelName": "m",
    "modelVersion": "1.0",
    "minWorkers": 2,
    "maxWorkers": 3,
    "batchSize": 1,
    "maxBatchDelay": 100,
    "responseTimeout": 120,
    "startupTimeout": 120,
}


def described(*statuses: str) -> bytes:
    workers = [
        {"id": "9000", "status": status, "pid": 7, "gpu": False, "memoryUsage": 0, "startTime": "2026"}
        for status in statuses
    ]
    return json.dumps([{**DESCRIPTION, "workers": workers}]).encode()


def managed(text: str) -> management_pb2.ManagementResponse:
    return management_pb2.ManagementResponse(msg=text)


def test_http_ping() -> None:
    assert Drive(ok(b'{"status": "Healthy"}')).run(HTTP.ping(1)) == Health("Healthy")
    unhealthy = Drive(ServerError("", status=500, body=b'{"status": "Unhealthy"}')).run(HTTP.ping(1))
    assert (unhealthy.status, unhealthy.healthy) == ("Unhealthy", False)
    with pytest.raises(ServerError, match="broken"):
        Drive(ServerError("broken", status=500, body=b"broken")).run(HTTP.ping(1))


@pytest.mark.parametrize("status", ["Healthy", "Partial Healthy", "Unhealthy"])
def test_grpc_ping(status: str) -> None:
    answer = inference_pb2.TorchServeHealthResponse(health=json.dumps({"status": status}))
    assert Drive(answer).run(GRPC.ping(1)) == Health(status)


@pytest.mark.parametrize(
    ("flow", "wanted"),
    [
        (HTTP.predict(PredictionCall("a/b", b"")), ("POST", "/predictions/a%2Fb", {})),
        (HTTP.predict(PredictionCall("m", b"", "1.0 ä")), ("POST", "/predictions/m/1.0%20%C3%A4", {})),
        (HTTP.scale("m", "2", {"min_worker": 0, "synchronous": True}, 1), ("PUT", "/models/m/2", None)),
        (HTTP.set_default("m", "2", 1), ("PUT", "/models/m/2/set-default", {})),
        (HTTP.unregister("m", None, 1), ("DELETE", "/models/m", {})),
        (HTTP.unregister("m", "2", 1), ("DELETE", "/models/m/2", {})),
        (HTTP.register({"url": "x.mar", "synchronous": False, "batch_size": 3}, 1), ("POST", "/models", None)),
        (HTTP.describe("m", None, customized=True, timeout=1), ("GET", "/models/m", {"customized": "true"})),
        (HTTP.page("5", 1), ("GET", "/models", {"next_page_token": "5"})),
        (HTTP.renew("inference", "key", 1), ("GET", "/token", {"type": "inference"})),
    ],
)
def test_http_requests(flow: Any, wanted: tuple[str, str, dict[str, str] | None]) -> None:
    drive = Drive(Unavailable("stop here"))
    with pytest.raises(Unavailable):
        drive.run(flow)
    method, path, params = sent(drive.request)
    assert (method, path) == wanted[:2]
    assert wanted[2] is None or params == wanted[2]


def test_http_parameters() -> None:
    drive = Drive(ok(b'{"status": "done"}'))
    options: dict[str, str | int | bool] = {"url": "x.mar", "synchronous": False, "batch_size": 3}
    assert drive.run(HTTP.register(options, 1)) == "done"
    assert drive.request.params == {"url": "x.mar", "synchronous": "false", "batch_size": "3"}
    assert drive.request.failure is ServerError


def test_http_bodies() -> None:
    def request(data: Any, **headers: str) -> Any:
        drive = Drive(ok(b""))
        drive.run(HTTP.predict(PredictionCall("m", data, headers=headers)))
        return drive.request

    assert request("é").content == "é".encode()
    assert request("é").headers == {"Content-Type": "text/plain; charset=utf-8"}
    assert request("{}", **{"content-type": "application/json"}).headers == {"content-type": "application/json"}
    parts = request(Inputs(a="1"), x="y")
    assert (parts.parts, parts.content, parts.headers) == ({"a": b"1"}, b"", {"x": "y"})
    assert parts.failure is PredictionFailed


def test_http_predictions() -> None:
    found = Drive(ok(b"[1]", **{"content-type": "application/json"})).run(HTTP.predict(PredictionCall("m", b"")))
    assert (found.content, found.content_type, found.json(), found.text) == (b"[1]", "application/json", [1], "[1]")


def test_grpc_predictions() -> None:
    drive = Drive(inference_pb2.PredictionResponse(prediction=b"\xff"))
    found = drive.run(GRPC.predict(PredictionCall("m", Inputs(a="1"), "2", timeout=3)))
    assert (found.content, found.content_type, found.headers) == (b"\xff", None, {})
    assert drive.request.message == inference_pb2.PredictionsRequest(
        model_name="m", model_version="2", input={"a": b"1"}
    )
    assert (drive.request.method, drive.request.timeout) == ("Predictions", 3)


def test_turns() -> None:
    turn = GRPC.turn(Turn("m", "s", "x", end=True))
    assert turn.sequence_id == "s"
    assert dict(turn.input) == {"data": b"x", "ts_request_sequence_end": b"true"}
    answer = GRPC.answer(inference_pb2.PredictionResponse(prediction=b"x", sequence_id="s"))
    assert (answer.content, answer.sequence_id) == (b"x", "s")
    assert GRPC.answer(inference_pb2.PredictionResponse()).sequence_id is None


@pytest.mark.parametrize(
    ("code", "reason", "error", "name"),
    [
        (13, "org.pytorch.serve.archive.model.ModelNotFoundException", ModelNotFound, "INTERNAL"),
        (14, None, Unavailable, "UNAVAILABLE"),
        (99, None, PredictionFailed, "UNKNOWN"),
    ],
)
def test_statuses_of_messages(code: int, reason: str | None, error: type[Exception], name: str) -> None:
    message = inference_pb2.PredictionResponse()
    message.status.code = code
    message.status.message = "Model not found: m"
    if reason is not None:
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason=reason))
        message.status.details.add(type_url=packed.type_url, value=packed.value)
    with pytest.raises(error, match=r"^Model not found: m$") as caught:
        GRPC.answer(message)
    assert getattr(caught.value, "code", None) == name


def test_grpc_cannot_say_zero() -> None:
    for options in ({"min_worker": 0}, {"timeout": 0}):
        with pytest.raises(Unsupported, match="=0 cannot be said over gRPC"):
            Drive(managed("")).run(GRPC.scale("m", None, options, 1))
    drive = Drive(managed("done"))
    assert drive.run(GRPC.scale("m", None, {"min_worker": 1, "synchronous": True, "timeout": -1}, 1)) == "done"
    assert drive.request.message == management_pb2.ScaleWorkerRequest(
        model_name="m", min_worker=1, synchronous=True, timeout=-1
    )


def test_descriptions() -> None:
    (found,) = Drive(managed(described("READY", "UNLOADING").decode())).run(
        GRPC.describe("m", None, customized=False, timeout=1)
    )
    assert (found.name, found.url, found.min_workers, found.max_workers) == ("m", "", 2, 3)
    assert [worker.ready for worker in found.workers] == [True, False]
    assert (len(found.ready_workers), found.queue, found.customized_metadata) == (1, None, None)


def test_every_page() -> None:
    pages = [
        ok(b'{"nextPageToken": "2", "models": [{"modelName": "a", "modelUrl": "a.mar"}, {"modelName": "b"}]}'),
        ok(b'{"nextPageToken": "3", "models": [{"modelName": "c", "modelUrl": "c.mar"}]}'),
        ok(b'{"nextPageToken": "3", "models": []}'),
    ]
    drive = Drive(*pages)
    assert drive.run(flows.all_models(HTTP, 1)) == [
        ModelEntry("a", "a.mar"),
        ModelEntry("b", ""),
        ModelEntry("c", "c.mar"),
    ]
    assert [request.params.get("next_page_token") for request in drive.requests] == [None, "2", "3"]


def test_grpc_pages_have_a_size() -> None:
    drive = Drive(managed('{"models": []}'))
    assert drive.run(flows.all_models(GRPC, 1)) == []
    assert drive.request.message == management_pb2.ListModelsRequest(limit=100)


def test_waiting_until_ready() -> None:
    drive = Drive(
        Unavailable("nobody there"),
        ModelNotFound("not yet"),
        ok(described()),
        ok(described("READY", "UNLOADING")),
        ok(described("READY", "READY")),
    )
    assert len(drive.run(flows.wait_ready(HTTP, "m", None, None, 60)).ready_workers) == 2
    assert drive.pauses == [0.02, 0.04, 0.08, 0.16]
    assert all(0 < request.timeout <= 60 for request in drive.requests)


def test_waiting_for_more_workers_than_the_minimum() -> None:
    drive = Drive(ok(described("READY", "READY")))
    with pytest.raises(DeadlineExceeded, match=r"^after 0\.1 s: 2 of 3 workers of 'm' are ready$"):
        drive.run(flows.wait_ready(HTTP, "m", None, 3, 0.1))
    assert Drive(ok(described("READY"))).run(flows.wait_ready(HTTP, "m", None, 1, 0)).ready_workers


def test_waiting_in_vain() -> None:
    with pytest.raises(ModelNotFound):
        Drive(ModelNotFound("Model not found: m")).run(flows.wait_ready(HTTP, "m", None, None, 0))
    with pytest.raises(Unavailable):
        Drive(Unavailable("nobody there")).run(flows.wait_healthy(HTTP, 0))
    with pytest.raises(DeadlineExceeded, match="Unhealthy"):
        Drive(ok(b'{"status": "Unhealthy"}')).run(flows.wait_healthy(HTTP, 0))


def test_other_errors_end_a_wait_at_once() -> None:
    drive = Drive(ServerError("broken"))
    with pytest.raises(ServerError):
        drive.run(flows.wait_ready(HTTP, "m", None, None, 60))
    assert drive.pauses == []


def test_waits_grow_to_a_bound() -> None:
    drive = Drive(*[Unavailable("")] * 10, ok(b'{"status": "Healthy"}'))
    drive.run(flows.wait_healthy(HTTP, 1000))
    assert drive.pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5, 0.5, 0.5])
