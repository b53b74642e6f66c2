"""Customized descriptions, KServe readiness, and other listeners (rest_api.md §8, rows 63 to 67, 134, 135)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.expect import NOT_ALLOWED, NOT_FOUND, assert_error, assert_json, assert_standard_headers

if TYPE_CHECKING:
    from tests.support.server import Server


# Customized description, KServe readiness, other listeners


def test_row_063_customized(server: Server) -> None:
    response = server.management.get("/models/swiss?customized=true")
    (model,) = response.json()
    plain = {key: value for key, value in server.describe("swiss").items() if key != "workers"}
    assert (response.status, response.header("content-type")) == (200, "application/json")
    assert {key: model[key] for key in plain} == plain
    assert model["customizedMetadata"] == {"who": "swiss", "n": [1]}
    assert "customizedMetadata" in list(model)[len(plain) :]
    assert "customizedMetadata" in server.management.get("/models/swiss/1.0?customized=TRUE").json()[0]


@pytest.mark.parametrize("value", ["1", "yes", "false", ""])
def test_customized_takes_only_true(server: Server, value: str) -> None:
    assert "customizedMetadata" not in server.management.get(f"/models/swiss?customized={value}").json()[0]


def test_customized_is_ignored_for_all(server: Server) -> None:
    assert "customizedMetadata" not in server.management.get("/models/swiss/all?customized=true").json()[0]


@pytest.mark.parametrize(("kind", "value"), [("number", {}), ("text", {})])
def test_customized_other_than_an_object(server: Server, kind: str, value: object) -> None:
    response = server.management.get("/models/swiss?customized=true", {"x-describe": kind})
    assert response.json()[0]["customizedMetadata"] == value


def test_customized_empty(server: Server) -> None:
    response = server.management.get("/models/swiss?customized=true", {"x-describe": "empty"})
    assert "customizedMetadata" not in response.json()[0]


def test_customized_sees_an_empty_row_and_the_header(server: Server) -> None:
    response = server.management.get("/models/swiss?customized=true", {"x-describe": "headers"})
    assert response.json()[0]["customizedMetadata"] == {"row": {}, "describe": "True"}


def test_customized_status_and_headers(server: Server) -> None:
    response = server.management.get("/models/swiss?customized=true", {"x-describe": "status"})
    assert (response.status, response.phrase, response.header("x-extra")) == (201, "Described", "yes")


def test_customized_that_raises(server: Server) -> None:
    response = server.management.get("/models/swiss?customized=true", {"x-op": "raise"})
    assert_error(response, 503, "InternalServerException", "Prediction failed", 89)


def test_row_064_customized_without_workers(server: Server) -> None:
    with server.registered("noop.mar", "badretry"):
        response = server.management.get("/models/badretry?customized=true")
        message = (
            'Model "badretry" has no worker to serve describe request. Please use scale workers API to add workers.'
        )
        assert_error(response, 503, "ServiceUnavailableException", message, 180)


def test_row_065_kserve_readiness(server: Server) -> None:
    assert_json(server.management.get("/v1/models/swiss"), 200, {"name": "swiss", "ready": True}, 39)
    assert_json(server.management.get("/v1/models/swiss:anything"), 200, {"name": "swiss", "ready": True})
    response = server.management.get("/v1/models/nope")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: nope", 92)


def test_kserve_readiness_without_workers(server: Server) -> None:
    with server.registered("noop.mar", "unready"):
        assert_json(server.management.get("/v1/models/unready"), 200, {"name": "unready", "ready": False})


@pytest.mark.fix
def test_kserve_readiness_while_loading(server: Server) -> None:
    name = "loading"
    try:
        assert server.register("slowinit.mar", model_name=name, initial_workers=1, synchronous="false").status == 202
        server.gate(name).wait_arrived()
        assert_json(server.management.get(f"/v1/models/{name}"), 200, {"name": name, "ready": False})
        server.gate(name).open()
        server.wait_ready(name)
        assert_json(server.management.get(f"/v1/models/{name}"), 200, {"name": name, "ready": True})
    finally:
        server.gate(name).open()
        server.unregister(name)


def test_row_066_kserve_readiness_with_post(server: Server) -> None:
    assert_error(server.management.request("POST", "/v1/models/swiss"), 405, *NOT_ALLOWED, 136)


@pytest.mark.parametrize("target", ["/ping", "/predictions/swiss", "/token?type=management"])
def test_row_067_not_on_this_listener(server: Server, target: str) -> None:
    assert_error(server.management.get(target), 404, *NOT_FOUND, 136)


@pytest.mark.parametrize("target", ["/ping", "/models", "/predictions/swiss"])
def test_row_134_not_on_the_metrics_listener(server: Server, target: str) -> None:
    assert_error(server.metrics.get(target), 404, *NOT_FOUND, 136)


def test_row_135_metrics_with_any_method(server: Server) -> None:
    response = server.metrics.request("POST", "/metrics/foo")
    assert (response.status, response.body, response.header("content-length")) == (200, b"", "0")
    assert response.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    assert_standard_headers(response)
