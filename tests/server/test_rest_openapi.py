"""The API descriptions (rest_api.md §5, rows 68, 73, 118): the structure; the wording is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft4Validator  # type: ignore[import-untyped]
from openapi_spec_validator.schemas import schema_v30
from tests.support.expect import assert_error, assert_json, pretty
from tests.support.server import is_reference

if TYPE_CHECKING:
    from tests.support.raw import RawResponse
    from tests.support.server import Server

MODEL = ("path", "model_name", "string", True, None)
VERSION = ("path", "model_version", "string", True, None)
PREDICTION = [MODEL, {"200": "binary", "404": "error", "500": "error", "503": "error"}]
DOCUMENT = [{"200": "document", "500": "error"}]
DESCRIBE = [{"200": "describe", "404": "error", "500": "error"}]
SCALE = [
    ("query", "min_worker", "integer", False, "1"),
    ("query", "max_worker", "integer", False, "1"),
    ("query", "number_gpu", "integer", False, "0"),
    ("query", "synchronous", "boolean", False, "false"),
    ("query", "timeout", "integer", False, "-1"),
    {"200": "status", "202": "status", "206": "status", "400": "error", "404": "error", "500": "error"},
]
UNREGISTER = [
    ("query", "synchronous", "boolean", False, "false"),
    ("query", "timeout", "integer", False, "-1"),
    {"200": "status", "202": "status", "404": "error", "408": "error", "500": "error"},
]
REGISTER = [
    ("query", "url", "string", True, None),
    ("query", "model_name", "string", False, None),
    ("query", "handler", "string", False, None),
    ("query", "runtime", "string", False, None),
    ("query", "batch_size", "integer", False, "1"),
    ("query", "max_batch_delay", "integer", False, "100"),
    ("query", "response_timeout", "integer", False, "120"),
    ("query", "startup_timeout", "integer", False, "120"),
    ("query", "initial_workers", "integer", False, "0"),
    ("query", "synchronous", "boolean", False, "true"),
    ("query", "s3_sse_kms", "boolean", False, "false"),
    {
        "200": "status",
        "202": "status",
        "206": "status",
        "400": "error",
        "404": "error",
        "409": "error",
        "500": "error",
    },
]
LIST = [
    ("query", "limit", "integer", False, "100"),
    ("query", "next_page_token", "string", False, None),
    {"200": "list", "500": "error"},
]
ROOT = {"/": {"options": ("apiDescription", DOCUMENT)}}
API_DESCRIPTION = {"/api-description": {"get": ("api-description", DOCUMENT)}}
METRICS = {
    "/metrics": {"get": ("metrics", [("query", "name[]", "string", False, None), {"200": "metrics", "500": "error"}])}
}
INFERENCE: dict[str, dict[str, Any]] = {
    "/ping": {"get": ("ping", [{"200": "status", "500": "error"}])},
    "/v1/models/{model_name}:predict": {"post": ("predictions", PREDICTION)},
    "/v2/models/{model_name}/infer": {"post": ("predictions", PREDICTION)},
    "/predictions/{model_name}": {"post": ("predictions", PREDICTION)},
    "/predictions/{model_name}/{model_version}": {"post": ("version_predictions", [MODEL, VERSION, *PREDICTION[1:]])},
}
ONE_MODEL = {
    "/models/{model_name}": {
        "get": ("describeModel", [MODEL, *DESCRIBE]),
        "put": ("setAutoScale", [MODEL, *SCALE]),
        "delete": ("unregisterModel", [MODEL, *UNREGISTER]),
    },
    "/models/{model_name}/{model_version}": {
        "get": ("version_describeModel", [MODEL, VERSION, *DESCRIBE]),
        "put": ("version_setAutoScale", [MODEL, VERSION, *SCALE]),
        "delete": ("version_unregisterModel", [MODEL, VERSION, *UNREGISTER]),
    },
    "/models/{model_name}/{model_version}/set-default": {
        "put": ("setDefault", [MODEL, VERSION, {"200": "status", "404": "error", "500": "error"}])
    },
}
MODELS = {"/models": {"get": ("listModels", LIST), "post": ("registerModel", REGISTER)}}


def kind_of(response: dict[str, Any]) -> str:
    """Name the documented answer by its media type and required members."""
    if "content" not in response:
        return "empty"
    ((media, content),) = response["content"].items()
    schema = content["schema"]
    if media == "*/*":
        assert (schema["type"], schema["format"]) == ("string", "binary")
        return "binary"
    assert schema["type"] == "object"
    required = frozenset(schema["required"])
    assert required <= set(schema["properties"])
    if media.startswith("text/plain"):
        assert media == "text/plain; version=0.0.4; charset=utf-8"
        assert required == {"# HELP", "# TYPE", "metric"}
        return "metrics"
    assert media == "application/json"
    kinds = {
        frozenset({"code", "type", "message"}): "error",
        frozenset({"status"}): "status",
        frozenset({"openapi", "info", "paths"}): "document",
        frozenset({"models"}): "list",
    }
    return kinds.get(required, "describe" if {"modelName", "workers", "jobQueueStatus"} <= required else str(required))


def outline(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Reduce the paths to what a client generator makes of them."""
    result: dict[str, dict[str, Any]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parameters = [
                (
                    each["in"],
                    each["name"],
                    each["schema"]["type"],
                    each.get("required", False),
                    each["schema"].get("default"),
                )
                for each in operation["parameters"]
            ]
            responses = {status: kind_of(response) for status, response in operation["responses"].items()}
            result.setdefault(path, {})[method] = (operation["operationId"], [*parameters, responses])
    return result


def described(response: RawResponse) -> dict[str, Any]:
    """Check that it is a valid description and return it."""
    document: dict[str, Any] = response.json()
    assert_json(response, 200, document)
    assert document["openapi"] == "3.0.1"
    assert list(document) == ["openapi", "info", "paths"]
    errors = list(Draft4Validator(schema_v30).iter_errors(document))
    assert not errors, errors[0]
    return document


def assert_outline(document: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check the paths of the contract and their order; a server may describe more of its routes, as these do not."""
    actual = outline(document)
    assert [path for path in actual if path in expected] == list(expected)
    assert len(actual) == len(expected) or not is_reference()
    for path in expected:
        assert actual[path] == expected[path], path


@pytest.mark.parametrize(("method", "target"), [("OPTIONS", "/"), ("DELETE", "/api-description?x=1")])
def test_row_073_is_described(server: Server, method: str, target: str) -> None:
    for listener in (server.inference, server.management):
        info = described(listener.request(method, target))["info"]
        assert info["title"] == "TorchServe APIs"
        assert info["version"] == "0.12.0"
    assert described(server.metrics.request(method, target))["info"]["title"] == "TorchServe APIs"


def test_row_073_inference(server: Server) -> None:
    document = described(server.inference.request("OPTIONS", "/"))
    assert_outline(document, {**ROOT, **INFERENCE, **API_DESCRIPTION, **METRICS})
    predict = document["paths"]["/predictions/{model_name}"]["post"]
    assert predict["requestBody"]["required"] is True
    assert predict["requestBody"]["content"]["*/*"]["schema"] == {"type": "string", "format": "binary"}
    assert document["paths"]["/api-description"]["get"]["deprecated"] is True


@pytest.mark.fix
def test_row_073_management(server: Server) -> None:
    document = described(server.management.request("OPTIONS", "/"))
    assert_outline(document, {**ROOT, **MODELS, **ONE_MODEL, **API_DESCRIPTION, **METRICS})
    register = document["paths"]["/models"]["post"]["parameters"]
    (runtime,) = (each for each in register if each["name"] == "runtime")
    assert runtime["schema"]["enum"] == ["python", "python3"]  # LSP is refused


def test_management_paths_and_operations(server: Server) -> None:
    paths = described(server.management.request("OPTIONS", "/"))["paths"]
    expected = list({**ROOT, **MODELS, **ONE_MODEL, **API_DESCRIPTION, **METRICS})
    assert list(paths)[: len(expected)] == expected
    operations = {path: [each["operationId"] for each in value.values()] for path, value in paths.items()}
    assert operations["/models"] == ["listModels", "registerModel"]
    assert operations["/models/{model_name}"] == ["describeModel", "setAutoScale", "unregisterModel"]


def test_metrics_listener(server: Server) -> None:
    assert_outline(described(server.metrics.request("OPTIONS", "/")), METRICS)


@pytest.mark.fix
def test_row_068_model_management(server: Server) -> None:
    for target in ("/models/swiss", "/models/swiss/1.0"):
        document = described(server.management.request("OPTIONS", target))
        assert document["info"]["title"] == "RESTful Management API for: swiss"
        assert document["info"]["version"] == "0.12.0"
        assert_outline(document, ONE_MODEL)


def test_row_068_title(server: Server) -> None:
    document = described(server.management.request("OPTIONS", "/models/swiss"))
    assert document["info"]["title"] == "RESTful Management API for: swiss"
    assert list(document["paths"]) == list(ONE_MODEL)


def test_model_management_of_an_unknown_model(server: Server) -> None:
    response = server.management.request("OPTIONS", "/models/nope")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: nope", 92)
    response = server.management.request("OPTIONS", "/models/swiss/9")
    message = "Model version: 9 does not exist for model: swiss"
    assert_error(response, 404, "ModelVersionNotFoundException", message, 126)


@pytest.mark.parametrize("target", ["/predictions/swiss", "/predictions/swiss/1.0", "/explanations/swiss"])
def test_row_118_model_inference(server: Server, target: str) -> None:
    document = described(server.inference.request("OPTIONS", target))
    assert (document["info"]["title"], document["info"]["version"]) == ("RESTful API for: swiss", "1.0.0")
    own, *others = document["paths"]
    assert own in {"/prediction/swiss", "/predictions/swiss"}  # the singular is free to be corrected
    assert others == ["/v1/models/{model_name}:predict", "/v2/models/{model_name}/infer"]
    for path, operations in document["paths"].items():
        (operation,) = operations.values()
        assert list(operations) == ["post"]
        assert operation["operationId"] == "swiss"
        declared = [each["name"] for each in operation["parameters"]]  # TorchServe declares none, which is not valid
        assert declared in ([], ["model_name"] if "{model_name}" in path else [])
        assert operation["responses"]["200"] == {"description": "OK"}
        assert kind_of(operation["responses"]["500"]) == "error"


def test_row_118_without_workers(server: Server) -> None:
    with server.registered("noop.mar", "idle"):
        document = described(server.inference.request("OPTIONS", "/predictions/idle"))
        assert document["info"]["title"] == "RESTful API for: idle"


def test_options_of_ping_is_ping(server: Server) -> None:
    response = server.inference.request("OPTIONS", "/ping")
    assert (response.status, response.body) == (200, pretty({"status": "Healthy"}))
