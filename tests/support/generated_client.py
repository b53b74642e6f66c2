"""A client program over modules that `grpc_tools.protoc` has generated; they lie in the working folder.

Arguments: the inference and the management address. It registers the archives `probe.mar`, `probe_v2.mar` and
`streamer.mar`, and fails with an exception when an answer is not as it has to be.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2

sys.path.insert(0, str(Path.cwd()))

inference: Any = importlib.import_module("inference_pb2")
inference_grpc: Any = importlib.import_module("inference_pb2_grpc")
management: Any = importlib.import_module("management_pb2")
management_grpc: Any = importlib.import_module("management_pb2_grpc")


def expect(value: object, expected: object) -> None:
    """Stop when a value is another than expected."""
    if value != expected:
        raise RuntimeError(f"{value!r} instead of {expected!r}")


def register_and_scale(stub: Any) -> None:
    """Register two versions of a model and a streaming one; scale one, and change the default version."""
    for url, name, version in (
        ("probe.mar", "gen", "1.0"),
        ("probe_v2.mar", "gen", "2.0"),
        ("streamer.mar", "s", "1.0"),
    ):
        request = management.RegisterModelRequest(
            url=url, model_name=name, initial_workers=1, synchronous=True, batch_size=1, max_batch_delay=10
        )
        answer = stub.RegisterModel(request)
        expect(answer.msg, f'Model "{name}" Version: {version} registered with 1 initial workers')
    scale = management.ScaleWorkerRequest(model_name="gen", model_version="2.0", min_worker=2, synchronous=True)
    expect(stub.ScaleWorker(scale).msg, "Workers scaled to 2 for model: gen, version: 2.0")
    default = management.SetDefaultRequest(model_name="gen", model_version="2.0")
    expect(stub.SetDefault(default).msg, 'Default version successfully updated for model "gen" to "2.0"')


def describe_and_list(stub: Any) -> None:
    """Look at what has been registered."""
    (model,) = json.loads(stub.DescribeModel(management.DescribeModelRequest(model_name="gen")).msg)
    expect((model["modelName"], model["modelVersion"], len(model["workers"])), ("gen", "2.0", 2))
    both = json.loads(stub.DescribeModel(management.DescribeModelRequest(model_name="gen", model_version="all")).msg)
    expect(sorted(model["modelVersion"] for model in both), ["1.0", "2.0"])
    models = json.loads(stub.ListModels(management.ListModelsRequest(limit=10, next_page_token=0)).msg)["models"]
    expect([model["modelName"] for model in models], ["gen", "s"])


def predict(stub: Any) -> None:
    """Make each kind of inference call."""
    expect(json.loads(stub.Ping(empty_pb2.Empty()).health), {"status": "Healthy"})
    for version in ("", "1.0", "2.0"):
        request = inference.PredictionsRequest(
            model_name="gen", model_version=version, input={"mode": b"place", "data": b"x"}
        )
        expect(stub.Predictions(request).prediction, b"x 0 of 1")
    stream = stub.StreamPredictions(inference.PredictionsRequest(model_name="s", input={"n": b"2"}))
    expect([answer.prediction for answer in stream], [b"part-0-0", b"part-0-1", b"final-0 batch=1"])
    refused = next(stub.StreamPredictions2(iter([inference.PredictionsRequest(model_name="gen")])))
    expect((refused.status.code, refused.status.message), (13, "Parameter sequenceId is required."))
    try:
        stub.Predictions(inference.PredictionsRequest(model_name="nope"))
    except grpc.RpcError as error:
        expect(error.code(), grpc.StatusCode.INTERNAL)
    else:
        raise RuntimeError("an unknown model answers")


def unregister(stub: Any) -> None:
    """Remove everything."""
    for name, version in (("gen", "1.0"), ("gen", ""), ("s", "1.0")):
        request = management.UnregisterModelRequest(model_name=name, model_version=version)
        expect(stub.UnregisterModel(request).msg, f'Model "{name}" unregistered')
    models = json.loads(stub.ListModels(management.ListModelsRequest(limit=10)).msg)["models"]
    expect(models, [])


def main() -> None:
    """Run the calls in an order in which each finds what it needs."""
    with grpc.insecure_channel(sys.argv[1]) as first, grpc.insecure_channel(sys.argv[2]) as second:
        manager = management_grpc.ManagementAPIsServiceStub(second)
        register_and_scale(manager)
        describe_and_list(manager)
        predict(inference_grpc.InferenceAPIsServiceStub(first))
        unregister(manager)


if __name__ == "__main__":
    main()
