"""Unix sockets and shared listeners (rest_api.md §1.1, §1.4)."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.expect import NOT_FOUND, assert_body, assert_error, assert_json, assert_status
from tests.support.server import free_ports

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.server import Server

HEALTHY = {"status": "Healthy"}


@pytest.fixture(scope="module")
def unix_server(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server on three unix sockets, of which one path is taken by an old file."""
    folder = tmp_path_factory.mktemp("u")
    (folder / "inference").write_text("left behind")
    return make_server(
        {f"{name}_address": f"unix:{folder / name}" for name in ("inference", "management", "metrics")},
    )


@pytest.fixture(scope="module")
def merged(make_server: ServerFactory) -> Server:
    """A server with one listener for inference and management, and the model `sw` without workers."""
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    server = make_server({"inference_address": address, "management_address": address})
    assert server.register("swiss_v1.mar", model_name="sw").status == 200
    return server


@pytest.fixture(scope="module")
def merged_with_tokens(make_server: ServerFactory) -> Server:
    """A server with one listener for everything, and tokens."""
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    return make_server(
        {
            "inference_address": address,
            "management_address": address,
            "metrics_address": address,
            "disable_token_authorization": "false",
        }
    )


def test_unix_sockets(unix_server: Server) -> None:
    assert_json(unix_server.inference.get("/ping"), 200, HEALTHY)
    assert_json(unix_server.management.get("/models"), 200, {"models": []})
    assert unix_server.metrics.get("/metrics").status == 200
    assert unix_server.inference.client.get("/ping").json() == HEALTHY


def test_unix_sockets_keep_their_role(unix_server: Server) -> None:
    assert_error(unix_server.inference.get("/models"), 404, *NOT_FOUND, 136)
    assert_error(unix_server.management.get("/ping"), 404, *NOT_FOUND, 136)
    assert_error(unix_server.metrics.get("/models"), 404, *NOT_FOUND, 136)


def test_unix_sockets_are_removed_at_the_end(unix_server: Server) -> None:
    paths = [Path(str(each.address)) for each in (unix_server.inference, unix_server.management, unix_server.metrics)]
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in paths)
    unix_server.stop()
    assert not any(path.exists() for path in paths)
    unix_server.restart()
    assert_json(unix_server.inference.get("/ping"), 200, HEALTHY)


def test_row_133_merged(merged: Server) -> None:
    assert merged.inference.get("/models/sw").json()[0]["modelName"] == "sw"
    assert_json(merged.inference.get("/ping"), 200, HEALTHY)
    assert_json(merged.inference.get("/models"), 200, {"models": [{"modelName": "sw", "modelUrl": "swiss_v1.mar"}]})
    assert merged.inference.get("/metrics").status == 200
    assert merged.metrics.get("/metrics").status == 200
    assert merged.inference.request("POST", "/models/sw/invoke", (), b"x").status == 503
    assert merged.inference.request("PUT", "/models/sw/1.0/set-default").status == 200
    assert_error(merged.inference.get("/nowhere"), 404, *NOT_FOUND, 136)


@pytest.mark.fix
def test_row_133_merged_versions(merged: Server) -> None:
    assert merged.inference.get("/models/sw/1.0").json()[0]["modelVersion"] == "1.0"
    assert len(merged.inference.get("/models/sw/all").json()) == 1
    assert merged.inference.request("OPTIONS", "/models/sw/1.0").status == 200
    response = merged.inference.request("PUT", "/models/sw/1.0?min_worker=0&synchronous=true")
    assert_status(response, 200, "Workers scaled to 0 for model: sw, version: 1.0")
    assert merged.register("swiss_v2.mar", model_name="sw").status == 200
    assert_status(merged.inference.request("DELETE", "/models/sw/2.0"), 200, 'Model "sw" unregistered')


@pytest.mark.fix
def test_merged_with_tokens_takes_the_key_of_the_route(merged_with_tokens: Server) -> None:
    server = merged_with_tokens
    inference, management, api = (server.bearer(key) for key in ("inference", "management", "API"))
    assert server.inference.get("/ping", inference).status == 200
    assert server.inference.get("/ping", management).status == 400
    assert server.inference.get("/models", management).status == 200
    assert server.inference.get("/models", inference).status == 400
    assert server.inference.get("/models").status == 400
    assert server.inference.get("/predictions/nope", inference).status == 404
    assert server.inference.get("/metrics").status == 200
    assert server.inference.get("/token?type=management", management).status == 400
    response = server.inference.get("/token?type=management", api)
    assert_body(response, 200, b"\n", "application/json")
    assert server.inference.get("/models", management).status == 400
    assert server.inference.get("/models", server.bearer("management")).status == 200
