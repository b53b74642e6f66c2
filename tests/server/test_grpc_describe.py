"""`DescribeModel` over gRPC (grpc_api.md §6.4 and §11, rows 141 to 146)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.support.grpc_api import ISE, MNF, MVNF, expect_error
from tests.support.grpc_manage import describe
from tests.support.server import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.grpc_api import Api
    from tests.support.server import Server

NOT_FOUND = grpc.StatusCode.NOT_FOUND
INTERNAL = grpc.StatusCode.INTERNAL
MEMBERS = [
    "modelName",
    "modelVersion",
    "modelUrl",
    *([] if is_reference() else ["engine"]),  # documented_promises.md
    *(["runtime", "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout"]),
    *(["maxRetryTimeoutInSec", "clientTimeoutInMills", "parallelType", "parallelLevel", "deviceType"]),
    *(["continuousBatching", "useJobTicket", "useVenv", "stateful", "sequenceMaxIdleMSec", "sequenceTimeoutMSec"]),
    *(["maxNumSequence", "maxSequenceJobQueueSize", "loadedAtStartup", "workers", "jobQueueStatus"]),
]


@pytest.fixture(scope="module")
def described(grpc_server: Server) -> Iterator[str]:
    """A model that describes itself as the last prediction told it."""
    with grpc_server.registered("describer.mar", "described", initial_workers=1, synchronous="true"):
        yield "described"


def customized(api: Api, model: str, kind: str) -> dict[str, Any]:
    """Tell the model what to say of itself, and return its description."""
    assert api.predict(model, {"kind": kind}) == b"told"
    (document,) = describe(api, model, customized=True)
    return document


def test_members_and_their_order(api: Api) -> None:
    (document,) = describe(api, "m")
    assert list(document)[: len(MEMBERS)] == MEMBERS
    assert (document["modelName"], document["modelVersion"], document["modelUrl"]) == ("m", "1.0", "probe.mar")
    assert (document["parallelType"], document["deviceType"], document["stateful"]) == ("", "cpu", False)
    assert "customizedMetadata" not in document
    (worker,) = document["workers"]
    assert list(worker)[:7] == ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]
    assert (worker["status"], worker["gpu"], worker["gpuUsage"]) == ("READY", False, "N/A")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", worker["startTime"])
    assert document["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}


@pytest.mark.parametrize("version", ["", "1.0"])
def test_same_as_over_http(api: Api, grpc_server: Server, version: str) -> None:
    over_http = grpc_server.describe("m", version)
    (over_grpc,) = describe(api, "m", version)
    for document in (over_http, over_grpc):
        for worker in document["workers"]:
            del worker["memoryUsage"]
    assert over_grpc == over_http
    assert list(over_grpc) == list(over_http)


def test_row_141_customized_object(api: Api, described: str) -> None:
    document = customized(api, described, "object")
    assert document["customizedMetadata"] == {"who": "describer", "n": [1, "ü"]}
    assert "customizedMetadata" in list(document)[len(MEMBERS) :]


def test_row_141_customized_json_text(api: Api, described: str) -> None:
    assert customized(api, described, "json")["customizedMetadata"] == {"who": "text", "n": 1}


@pytest.mark.parametrize("kind", ["text", "list", "none"])
def test_row_142_customized_other_than_an_object(api: Api, described: str, kind: str) -> None:
    assert customized(api, described, kind)["customizedMetadata"] == {}


def test_row_142_customized_empty(api: Api, described: str) -> None:
    assert "customizedMetadata" not in customized(api, described, "empty")


def test_customized_sees_an_empty_row_and_the_header(api: Api, described: str) -> None:
    assert customized(api, described, "seen")["customizedMetadata"] == {"row": {}, "describe": "True"}


def test_customized_version(api: Api, described: str) -> None:
    assert api.predict(described, {"kind": "object"}) == b"told"
    (document,) = describe(api, described, "1.0", customized=True)
    assert document["customizedMetadata"]["who"] == "describer"


def test_customized_is_ignored_for_all(api: Api, described: str) -> None:
    assert ["customizedMetadata" in each for each in describe(api, described, "all", customized=True)] == [False]


def test_row_143_customized_that_raises(api: Api, described: str) -> None:
    with expect_error(grpc.StatusCode.UNAVAILABLE, f"Prediction failed\n{ISE}"):
        customized(api, described, "raise")
    assert customized(api, described, "object")["customizedMetadata"]["who"] == "describer"


@pytest.mark.fix
def test_row_144_customized_without_workers(api: Api, grpc_server: Server) -> None:
    with grpc_server.registered("describer.mar", "nobody"):
        message = 'Model "nobody" has no worker to serve describe request. Please use scale workers API to add workers.'
        with expect_error(INTERNAL, f"{message}\n{ISE}"):
            describe(api, "nobody", customized=True)


@pytest.mark.fix
def test_row_145_customized_that_hangs(api: Api, grpc_server: Server) -> None:
    gate = grpc_server.gate()
    with grpc_server.registered("describer.mar", "hangs", initial_workers=1, response_timeout=2):
        assert api.predict("hangs", {"gate": gate.name}) == b"told"
        with expect_error(INTERNAL, f"Failed to get customized model matadata.\n{ISE}"):
            describe(api, "hangs", customized=True)
        assert gate.arrivals() == 1
        # A new worker, that has not been told anything.
        grpc_server.wait_ready("hangs")
        assert describe(api, "hangs", customized=True)[0]["customizedMetadata"]["who"] == "describer"
    gate.open()


@pytest.mark.parametrize("model", ["nope", ""])
def test_row_146_unknown_model(api: Api, model: str) -> None:
    with expect_error(NOT_FOUND, f"Model not found: {model}\n{MNF}"):
        describe(api, model)


def test_row_146_unknown_model_customized(api: Api) -> None:
    with expect_error(INTERNAL, f"Model not found: nope\n{MNF}"):
        describe(api, "nope", customized=True)
    with expect_error(NOT_FOUND, f"Model not found: nope\n{MNF}"):
        describe(api, "nope", "all", customized=True)


def test_unknown_version(api: Api) -> None:
    details = f"Model version: 9.9 does not exist for model: m\n{MVNF}"
    with expect_error(NOT_FOUND, details):
        describe(api, "m", "9.9")
    with expect_error(INTERNAL, details):
        describe(api, "m", "9.9", customized=True)
