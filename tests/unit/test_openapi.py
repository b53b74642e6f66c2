"""The OpenAPI documents: order and members that clients see, validity, and agreement with what the server routes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft4Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV30SpecValidator
from openapi_spec_validator.schemas import schema_v30

from relight.api.http import openapi, routes
from relight.api.http.inference import InferenceApi
from relight.api.http.management import ManagementApi
from relight.serving.version_settings import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relight.api.http.route_parts import Route

PREDICTION_PATHS = [
    "/v1/models/{model_name}:predict",
    "/v2/models/{model_name}/infer",
    "/predictions/{model_name}",
    "/predictions/{model_name}/{model_version}",
]
ONE_MODEL_PATHS = [
    "/models/{model_name}",
    "/models/{model_name}/{model_version}",
    "/models/{model_name}/{model_version}/set-default",
]
MORE_INFERENCE_PATHS = [
    "/explanations/{model_name}",
    "/explanations/{model_name}/{model_version}",
    "/invocations",
    "/models/{model_name}/invoke",
    "/v1/models/{model_name}:explain",
    "/v2/models/{model_name}/explain",
]
MORE_MANAGEMENT_PATHS = ["/token", "/v1/models/{model_name}"]
LISTENERS = [
    pytest.param(
        (True, False, False),
        ["/", "/ping", *PREDICTION_PATHS, "/api-description", "/metrics", *MORE_INFERENCE_PATHS],
        id="inference",
    ),
    pytest.param(
        (False, True, False),
        ["/", "/models", *ONE_MODEL_PATHS, "/api-description", "/metrics", *MORE_MANAGEMENT_PATHS],
        id="management",
    ),
    pytest.param((False, False, True), ["/metrics"], id="metrics"),
    pytest.param(
        (True, True, True),
        [
            *["/", "/ping", *PREDICTION_PATHS, "/api-description", "/models", *ONE_MODEL_PATHS, "/metrics"],
            *MORE_INFERENCE_PATHS,
            *MORE_MANAGEMENT_PATHS,
        ],
        id="merged",
    ),
]
DOCUMENTS = {
    "inference": openapi.listener_document(inference=True, management=False, metrics=False),
    "management": openapi.listener_document(inference=False, management=True, metrics=False),
    "metrics": openapi.listener_document(inference=False, management=False, metrics=True),
    "merged": openapi.listener_document(inference=True, management=True, metrics=True),
    "model management": openapi.model_management_document("swiss"),
    "model inference": openapi.model_inference_document("swiss"),
}
ALL_ROUTES = (
    *routes.ROOT,
    *routes.INFERENCE,
    *routes.API_DESCRIPTION,
    *routes.MODELS,
    *routes.MODEL,
    *routes.METRICS,
    *routes.MORE_INFERENCE,
    *routes.MORE_MANAGEMENT,
)


def operations_of(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(method, path): each for path, item in document["paths"].items() for method, each in item.items()}


def every(member: str, node: object) -> Iterator[Any]:
    """All values of a member, at any depth."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == member:
                yield value
            yield from every(member, value)
    elif isinstance(node, list):
        for value in node:
            yield from every(member, value)


def parameters_of(document: dict[str, Any], method: str, path: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in document["paths"][path][method]["parameters"]}


def segments_of(route: Route) -> tuple[str, ...]:
    path = route.path.replace("{model_name}", "swiss").replace("{model_version}", "1.0")
    return tuple(path.strip("/").split("/"))


@pytest.mark.parametrize(("apis", "expected"), LISTENERS)
def test_paths_of_a_listener(apis: tuple[bool, bool, bool], expected: list[str]) -> None:
    inference, management, metrics = apis

    document: dict[str, Any] = openapi.listener_document(inference=inference, management=management, metrics=metrics)

    assert list(document["paths"]) == expected
    assert list(document) == ["openapi", "info", "paths"]
    assert document["openapi"] == "3.0.1"
    assert list(document["info"]) == ["title", "description", "version"]
    assert (document["info"]["title"], document["info"]["version"]) == ("TorchServe APIs", "0.12.0")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_valid_but_for_repeated_operation_ids(name: str) -> None:
    """The schema of OpenAPI first; then what it cannot say, such as templates without a parameter."""
    document = DOCUMENTS[name]
    assert not list(Draft4Validator(schema_v30).iter_errors(document))

    distinct: dict[str, Any] = json.loads(json.dumps(document))
    for number, operation in enumerate(operations_of(distinct).values()):
        operation["operationId"] += f"_{number}"
        for schema in every("schema", operation):
            schema.pop("default", None)  # text for every type, which TorchServe's clients get

    assert not list(OpenAPIV30SpecValidator(distinct).iter_errors())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_members_stand_in_torchserves_order(name: str) -> None:
    operation_order = ["description", "operationId", "parameters", "requestBody", "responses", "deprecated"]
    schema_order = ["type", "format", "required", "properties", "items", "description", "enum", "default"]
    for operation in operations_of(DOCUMENTS[name]).values():
        assert list(operation) == [member for member in operation_order if member in operation]
        assert {"description", "operationId", "parameters", "responses"} <= set(operation)
        for parameter in operation["parameters"]:
            assert list(parameter) == ["in", "name", "description", "required", "schema"]
        for schema in every("schema", operation):
            assert list(schema) == [member for member in schema_order if member in schema]


def test_defaults_are_text() -> None:
    defaults = list(every("default", DOCUMENTS["merged"]))

    assert defaults
    assert {type(value) for value in defaults} == {str}


def test_only_predictions_repeat_an_operation_id() -> None:
    ids = [operation["operationId"] for operation in operations_of(DOCUMENTS["merged"]).values()]

    assert [each for each in ids if ids.count(each) > 1] == ["predictions"] * 3


def test_register_has_what_the_server_does() -> None:
    parameters = parameters_of(DOCUMENTS["management"], "post", "/models")

    defaults = {name: each["schema"].get("default") for name, each in parameters.items()}
    assert defaults == {
        "url": None,
        "model_name": None,
        "handler": None,
        "runtime": None,
        "batch_size": "1",
        "max_batch_delay": "100",
        "response_timeout": "120",
        "startup_timeout": "120",
        "initial_workers": "0",
        "synchronous": "true",
        "s3_sse_kms": "false",
    }
    assert [name for name, each in parameters.items() if each["required"]] == ["url"]
    assert parameters["runtime"]["schema"]["enum"] == [each for each in RUNTIMES if each != "LSP"]


@pytest.mark.parametrize("prefix", ["", "version_"])
def test_scale_and_unregister(prefix: str) -> None:
    by_id = {each["operationId"]: each for each in operations_of(DOCUMENTS["management"]).values()}
    path = ["model_name", "model_version"] if prefix else ["model_name"]

    scale = by_id[f"{prefix}setAutoScale"]
    unregister = by_id[f"{prefix}unregisterModel"]

    scaled = {each["name"]: each["schema"].get("default") for each in scale["parameters"]}
    assert list(scaled) == [*path, "min_worker", "max_worker", "number_gpu", "synchronous", "timeout"]
    assert list(scaled.values())[len(path) :] == ["1", "1", "0", "false", "-1"]
    assert list(scale["responses"]) == ["200", "202", "206", "400", "404", "500"]
    assert [each["name"] for each in unregister["parameters"]] == [*path, "synchronous", "timeout"]
    assert list(unregister["responses"]) == ["200", "202", "404", "408", "500"]


def test_model_documents_name_their_model() -> None:
    management: dict[str, Any] = openapi.model_management_document("swiss")
    inference: dict[str, Any] = openapi.model_inference_document("swiss")

    assert management["info"] == {"title": "RESTful Management API for: swiss", "version": "0.12.0"}
    listed: Any = DOCUMENTS["management"]["paths"]
    assert management["paths"] == {path: listed[path] for path in ONE_MODEL_PATHS}
    assert inference["info"] == {"title": "RESTful API for: swiss", "version": "1.0.0"}
    assert list(inference["paths"]) == ["/predictions/swiss", *PREDICTION_PATHS[:2]]
    for item in inference["paths"].values():
        assert list(item) == ["post"]
        assert item["post"]["operationId"] == "swiss"
        assert item["post"]["responses"]["200"] == {"description": "OK"}
        assert list(item["post"]["responses"]) == ["200", "500"]


def test_a_models_name_cannot_make_a_path_template() -> None:
    paths: Any = openapi.model_inference_document("a {b}/ö")["paths"]

    assert next(iter(paths)) == "/predictions/a%20%7Bb%7D%2F%C3%B6"


@pytest.mark.parametrize("route", [*routes.INFERENCE, *routes.MORE_INFERENCE], ids=lambda route: str(route.path))
def test_inference_routes_are_served(route: Route) -> None:
    assert InferenceApi.claims(segments_of(route))


@pytest.mark.parametrize(
    "route",
    [*routes.MODELS, *routes.MODEL, *(each for each in routes.MORE_MANAGEMENT if each.path != "/token")],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_management_routes_are_served(route: Route) -> None:
    """On a merged listener inference comes first, so it must not claim them."""
    assert ManagementApi.claims(segments_of(route))
    assert not InferenceApi.claims(segments_of(route))


@pytest.mark.parametrize("path", ["/metrics", "/api-description", "/token"])
def test_routes_of_the_listener_itself_are_claimed_by_no_api(path: str) -> None:
    (route,) = (each for each in ALL_ROUTES if each.path == path)

    assert not InferenceApi.claims(segments_of(route))
    assert not ManagementApi.claims(segments_of(route))


def test_an_operation_stands_in_one_table() -> None:
    operations = [(each.method, each.path) for each in ALL_ROUTES]

    assert len(set(operations)) == len(operations)
    assert set(operations) == set(operations_of(DOCUMENTS["merged"]))
