"""The management API against the conformance data (rest_api.md §8.1; rows 12 to 27 are in test_rest_register_sources).

Left to later issues, with their features: rows 121-124 (Open Inference Protocol), 125-128 (request envelopes),
136 (TLS), and everything of workflows.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.expect import (
    NOT_ALLOWED,
    assert_bad_request,
    assert_error,
    assert_json,
    assert_standard_headers,
    assert_status,
    pretty,
)
from tests.support.server import is_reference

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.raw import RawResponse
    from tests.support.server import Server

JSON = {"Content-Type": "application/json"}
PROCESSING = "Processing worker updates..."


@dataclass(frozen=True)
class Story:
    """A fresh server to which the first rows have happened, one after another, with the answers that they got."""

    server: Server
    first_list: RawResponse
    registered: RawResponse
    again: RawResponse
    second_version: RawResponse
    second_list: RawResponse


@pytest.fixture(scope="module")
def story(make_server: ServerFactory) -> Story:
    server = make_server({"default_workers_per_model": "1"})
    return Story(
        server,
        server.management.get("/models"),
        server.management.request("POST", "/models?url=swiss_v1.mar"),
        server.management.request("POST", "/models?url=swiss_v1.mar"),
        server.management.request("POST", "/models?url=swiss_v2.mar&initial_workers=0"),
        server.management.get("/models"),
    )


@pytest.fixture(scope="module")
def six(make_server: ServerFactory) -> Server:
    """A server with exactly six models, and no workers; the model API is off from the second start on."""
    server = make_server()
    for name in ("m5", "mj", "a", "b", "y", "z"):
        assert server.register("swiss_v3.mar", model_name=name).status == 200
    return server


def entry(name: str, url: str = "swiss_v3.mar") -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}


def expected_description(version: str, url: str, **changes: object) -> dict[str, Any]:
    """Return the description of an ordinary model (§4.4), as relight gives it: with `engine`."""
    engine = {} if is_reference() else {"engine": "Torch"}
    document = {
        "modelName": "swiss",
        "modelVersion": version,
        "modelUrl": url,
        **engine,
        "runtime": "python",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "maxBatchDelay": 100,
        "responseTimeout": 120,
        "startupTimeout": 120,
        "maxRetryTimeoutInSec": 300,
        "clientTimeoutInMills": 0,
        "parallelType": "",
        "parallelLevel": 0,
        "deviceType": "cpu",
        "continuousBatching": False,
        "useJobTicket": False,
        "useVenv": False,
        "stateful": False,
        "sequenceMaxIdleMSec": 0,
        "sequenceTimeoutMSec": 0,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": False,
        "workers": [],
        "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
    }
    return {**document, **changes}


def assert_description(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check the members, their order and their values; more may follow the last."""
    names = list(expected)
    assert list(actual)[: len(names)] == names
    assert {name: actual[name] for name in names} == expected


def assert_ready_worker(worker: dict[str, Any]) -> None:
    assert list(worker)[:7] == ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]
    assert (worker["status"], worker["gpu"], worker["gpuUsage"]) == ("READY", False, "N/A")
    assert re.fullmatch(r"\d+", worker["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", worker["startTime"])
    assert worker["pid"] > 0
    assert worker["memoryUsage"] >= 0


# The story of a fresh server


def test_row_001_list_of_a_fresh_server(story: Story) -> None:
    assert_json(story.first_list, 200, {"models": []}, 19)


def test_row_002_register(story: Story) -> None:
    assert_status(story.registered, 200, 'Model "swiss" Version: 1.0 registered with 1 initial workers', 81)


def test_row_003_register_twice(story: Story) -> None:
    message = "Model version 1.0 is already registered for model swiss"
    assert_error(story.again, 409, "ConflictStatusException", message, 127)


def test_row_004_register_second_version(story: Story) -> None:
    text = (
        'Model "swiss" Version: 2.0 registered with 0 initial workers. '
        "Use scale workers API to add workers for the model."
    )
    assert_status(story.second_version, 200, text, 134)


def test_row_005_list(story: Story) -> None:
    assert_json(story.second_list, 200, {"models": [entry("swiss", "swiss_v1.mar")]}, 95)


def test_row_006_describe_default_version(story: Story) -> None:
    response = story.server.management.get("/models/swiss")
    assert response.status == 200
    assert response.body == pretty(response.json())
    assert_standard_headers(response)
    (actual,) = response.json()
    (worker,) = actual["workers"]
    assert_ready_worker(worker)
    assert worker["id"] == "9000"
    assert_description(actual, expected_description("1.0", "swiss_v1.mar", workers=[worker]))


def test_row_007_describe_version(story: Story) -> None:
    response = story.server.management.get("/models/swiss/2.0")
    expected = expected_description("2.0", "swiss_v2.mar", minWorkers=0, maxWorkers=0)
    added = 0 if is_reference() else len('    "engine": "Torch",\n')
    assert_json(response, 200, [expected], 764 + added)


def test_row_008_describe_all(story: Story) -> None:
    response = story.server.management.get("/models/swiss/all")
    models = response.json()
    assert_json(response, 200, models)
    assert sorted(model["modelVersion"] for model in models) == ["1.0", "2.0"]


def test_row_009_describe_unknown_version(story: Story) -> None:
    message = "Model version: 9 does not exist for model: swiss"
    assert_error(story.server.management.get("/models/swiss/9"), 404, "ModelVersionNotFoundException", message, 126)


@pytest.mark.parametrize("path", ["/models/nope", "/models/nope/all", "/models/nope/1.0"])
def test_row_010_describe_unknown_model(server: Server, path: str) -> None:
    assert_error(server.management.get(path), 404, "ModelNotFoundException", "Model not found: nope", 92)


def test_describe_model_loaded_at_the_start(closed_server: Server) -> None:
    model = closed_server.describe("only")
    assert (model["loadedAtStartup"], model["modelUrl"]) == (True, "swiss_v1.mar")


@pytest.mark.fix
def test_start_time_is_utc(closed_server: Server) -> None:
    (worker,) = closed_server.describe("only")["workers"]
    started = dt.datetime.strptime(worker["startTime"], "%Y-%m-%dT%H:%M:%S.%f%z")
    assert abs(dt.datetime.now(dt.timezone.utc) - started) < dt.timedelta(hours=1)


def test_describe_set_default_version_path(story: Story) -> None:
    """Whether it is an answer or a refusal is free (§4.4); it is no server error."""
    assert story.server.management.get("/models/swiss/1.0/set-default").status in {200, 405}


# Registration parameters


def test_row_011_register_without_url(server: Server) -> None:
    response = server.management.request("POST", "/models")
    assert_error(response, 400, "BadRequestException", "Parameter url is required.", 94)


def test_row_015_register_bad_runtime(server: Server) -> None:
    response = server.register("swiss_v3.mar", runtime="foo")
    assert_error(response, 400, "BadRequestException", "Invalid RuntimeType value: foo", 98)


def test_row_016_register_unparsable_numbers(server: Server) -> None:
    target = "/models?url=swiss_v3.mar&batch_size=abc&model_name=m3&max_batch_delay=-5&initial_workers=-3"
    try:
        response = server.management.request("POST", target)
        text = (
            'Model "m3" Version: 3.0 registered with 0 initial workers. '
            "Use scale workers API to add workers for the model."
        )
        assert_status(response, 200, text, 131)
        model = server.describe("m3")
        assert (model["batchSize"], model["maxBatchDelay"], model["workers"]) == (1, -5, [])
    finally:
        server.unregister("m3")


@pytest.mark.parametrize("given", ["5.0", " 5", "5 ", "2147483648", "", "0x5"])
def test_integer_parameters_default_silently(server: Server, given: str) -> None:
    with server.registered("swiss_v3.mar", "ints", batch_size=given):
        assert server.describe("ints")["batchSize"] == 1


@pytest.mark.parametrize(("given", "value"), [("+5", 5), ("-5", -5), ("0", 0), ("2147483647", 2147483647)])
def test_integer_parameters(server: Server, given: str, value: int) -> None:
    with server.registered("swiss_v3.mar", "ints", max_batch_delay=given):
        assert server.describe("ints")["maxBatchDelay"] == value


@pytest.mark.fix
@pytest.mark.parametrize("parameter", ["batch_size", "response_timeout", "startup_timeout"])
@pytest.mark.parametrize("given", ["0", "-5"])
def test_impossible_parameters(server: Server, parameter: str, given: str) -> None:
    response = server.register("swiss_v3.mar", model_name="impossible", **{parameter: given})
    assert_error(response, 400, "BadRequestException", f"Parameter {parameter} must be at least 1, not {given}.")
    assert server.management.get("/models/impossible").status == 404


def test_query_separators_and_first_value(server: Server) -> None:
    target = "/models?url=swiss_v3.mar;model_name=first+name&model_name=second&batch_size=3;batch_size=4"
    try:
        assert server.management.request("POST", target).status == 200
        assert server.describe("first%20name")["batchSize"] == 3
    finally:
        server.unregister("first%20name")


@pytest.mark.fix
def test_row_028_register_json_body(server: Server) -> None:
    body = b'{"url":"swiss_v3.mar","model_name":"mj","initial_workers":0}'
    try:
        response = server.management.request("POST", "/models", JSON, body)
        text = (
            'Model "mj" Version: 3.0 registered with 0 initial workers. '
            "Use scale workers API to add workers for the model."
        )
        assert_status(response, 200, text, 131)
        assert server.describe("mj")["maxBatchDelay"] == 100
    finally:
        server.unregister("mj")


def test_register_json_body_values(server: Server) -> None:
    document = {
        "url": "swiss_v3.mar",
        "model_name": "mj2",
        "batch_size": "7",
        "max_batch_delay": 12,
        "response_timeout": 8,
        "synchronous": "false",
        "initial_workers": 0,
        "unknown": [1],
    }
    headers = {"Content-Type": "Application/Json; charset=utf-8"}
    try:
        response = server.management.request("POST", "/models?model_name=other", headers, json.dumps(document).encode())
        assert response.status == 200
        model = server.describe("mj2")
        assert (model["batchSize"], model["maxBatchDelay"], model["responseTimeout"]) == (7, 12, 8)
    finally:
        server.unregister("mj2")


@pytest.mark.fix
@pytest.mark.parametrize("body", [b"{bad", b"[1]", b'{"url": "swiss_v3.mar", "batch_size": 1.5}', b'"text"', b"\xff"])
def test_row_029_register_malformed_json(server: Server, body: bytes) -> None:
    assert_bad_request(server.management.request("POST", "/models", JSON, body))


@pytest.mark.fix
@pytest.mark.parametrize("body", [b"", b"null"])
def test_row_030_register_empty_json(server: Server, body: bytes) -> None:
    response = server.management.request("POST", "/models", JSON, body)
    assert_error(response, 400, "BadRequestException", "Parameter url is required.", 94)


def test_row_031_register_json_ignores_the_query(server: Server) -> None:
    response = server.management.request("POST", "/models?url=swiss_v3.mar", JSON, b"{}")
    assert_error(response, 400, "BadRequestException", "Parameter url is required.", 94)


def test_row_032_register_ignores_forms(server: Server) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = server.management.request("POST", "/models", headers, b"url=swiss_v3.mar")
    assert_error(response, 400, "BadRequestException", "Parameter url is required.", 94)


# Methods and unknown routes


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "FOO"])
def test_row_033_methods_of_models(server: Server, method: str) -> None:
    assert_error(server.management.request(method, "/models"), 405, *NOT_ALLOWED, 136)


@pytest.mark.parametrize("method", ["PATCH", "POST"])
def test_row_034_methods_of_a_model(server: Server, method: str) -> None:
    assert_error(server.management.request(method, "/models/swiss"), 405, *NOT_ALLOWED, 136)


def test_row_035_head(server: Server) -> None:
    response = server.management.request("HEAD", "/models")
    assert (response.status, response.header("content-length")) == (405, "136")
    assert_standard_headers(response)


@pytest.mark.parametrize(("method", "target"), [("POST", "/models?url=noop.mar"), ("DELETE", "/models/swiss")])
def test_row_036_model_api_is_off(closed_server: Server, method: str, target: str) -> None:
    response = closed_server.management.request(method, target)
    assert (response.status, response.body) == (
        405,
        pretty({"code": 405, "type": NOT_ALLOWED[0], "message": NOT_ALLOWED[1]}),
    )


# Paging


def test_row_037_page(six: Server) -> None:
    document = {"nextPageToken": "4", "models": [entry("m5"), entry("mj")]}
    assert_json(six.management.get("/models?limit=2&next_page_token=2"), 200, document, 187)


def test_row_038_page_of_nothing(six: Server) -> None:
    assert_json(six.management.get("/models?limit=0"), 200, {"nextPageToken": "0", "models": []}, 43)


@pytest.mark.fix
def test_row_039_page_that_ends_exactly(six: Server) -> None:
    document = {"models": [entry(name) for name in ("a", "b", "m5", "mj", "y", "z")]}
    assert_json(six.management.get("/models?limit=6"), 200, document)


def test_row_040_page_beyond_the_end(six: Server) -> None:
    assert_json(six.management.get("/models?limit=3&next_page_token=99"), 200, {"models": []}, 19)


@pytest.mark.parametrize(
    "query", ["limit=abc&next_page_token=xyz", "limit=-1", "limit=101", "next_page_token=-7", "limit=5.0"]
)
def test_row_041_page_with_unparsable_numbers(six: Server, query: str) -> None:
    document = {"models": [entry(name) for name in ("a", "b", "m5", "mj", "y", "z")]}
    assert_json(six.management.get(f"/models?{query}"), 200, document)


@pytest.mark.fix
def test_page_token_does_not_overflow(six: Server) -> None:
    assert_json(six.management.get("/models?next_page_token=2147483647"), 200, {"models": []})
