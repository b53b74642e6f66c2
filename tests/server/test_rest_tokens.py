"""Token authorization (rest_api.md §4.7, rows 129 to 132; configuration.md §5.1)."""

from __future__ import annotations

import datetime as dt
import json
import re
import stat
from typing import TYPE_CHECKING

import pytest
from tests.support.expect import NOT_FOUND, assert_body, assert_error, assert_json
from tests.support.server import is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.raw import RawResponse
    from tests.support.server import Server

HEALTHY = {"status": "Healthy"}


@pytest.fixture(scope="module")
def guarded(make_server: ServerFactory) -> Server:
    """A server with tokens, as it is without configuration."""
    return make_server({"disable_token_authorization": "false"})


@pytest.fixture(scope="module")
def forgetful(make_server: ServerFactory) -> Server:
    """A server whose tokens live three seconds."""
    return make_server({"disable_token_authorization": "false", "token_expiration_min": "0.05"})


def assert_unauthorized(response: RawResponse) -> None:
    message = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
    assert_error(response, 400, "InvalidKeyException", message, 154)


def assert_not_refreshed(response: RawResponse) -> None:
    message = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
    assert_error(response, 400, "InvalidKeyException", message, 155)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": text}


def test_row_129_wrong_headers(guarded: Server) -> None:
    key = guarded.keys["inference"]["key"]
    wrong = [
        {},
        guarded.bearer("management"),
        guarded.bearer("API"),
        bearer(f"bearer {key}"),
        bearer(f"Bearer{key}"),
        bearer(f"Bearer {key} x"),
        bearer(f"Bearer {key}x"),
        bearer(f"Bearer {key[:-1]}"),
        bearer("Bearer"),
        bearer(key),
        bearer(f"Basic {key}"),
        bearer("Bearer \u00e9"),
    ]
    for headers in wrong:
        assert_unauthorized(guarded.inference.get("/ping", headers))


def test_right_headers(guarded: Server) -> None:
    key = guarded.keys["inference"]["key"]
    for headers in (guarded.bearer("inference"), bearer(f"Bearer   {key}"), {"authorization": f"Bearer {key}"}):
        assert_json(guarded.inference.get("/ping", headers), 200, HEALTHY)
    response = guarded.management.get("/models", guarded.bearer("management"))
    assert_json(response, 200, {"models": []})


@pytest.mark.parametrize("target", ["/predictions/nope", "/nowhere", "/v1/models/m:predict", "/models"])
def test_inference_needs_its_key_before_routing(guarded: Server, target: str) -> None:
    assert_unauthorized(guarded.inference.get(target))
    assert guarded.inference.get(target, guarded.bearer("inference")).status == 404


@pytest.mark.parametrize("target", ["/models", "/models/nope", "/nowhere", "/v1/models/m"])
def test_management_needs_its_key_before_routing(guarded: Server, target: str) -> None:
    for headers in ({}, guarded.bearer("inference"), guarded.bearer("API")):
        assert_unauthorized(guarded.management.get(target, headers))
    assert guarded.management.get(target, guarded.bearer("management")).status in {200, 404}


def test_row_130_refresh(guarded: Server) -> None:
    old = guarded.bearer("inference")
    before = guarded.keys
    response = guarded.management.get("/token?type=inference", guarded.bearer("API"))
    assert_body(response, 200, b"\n", "application/json")
    after = guarded.keys
    assert after["inference"]["key"] != before["inference"]["key"]
    assert after["inference"]["expiration time"] > before["inference"]["expiration time"]
    assert (after["management"], after["API"]) == (before["management"], before["API"])
    assert_unauthorized(guarded.inference.get("/ping", old))
    assert guarded.inference.get("/ping", guarded.bearer("inference")).status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "FOO"])
def test_refresh_with_any_method(guarded: Server, method: str) -> None:
    old = guarded.bearer("management")
    assert guarded.management.request(method, "/token?type=management", guarded.bearer("API")).body == b"\n"
    assert_unauthorized(guarded.management.get("/models", old))
    assert guarded.management.get("/models", guarded.bearer("management")).status == 200


@pytest.mark.parametrize("query", ["?type=foo", "", "?type=", "?type=Inference", "?type=API", "?kind=inference"])
def test_row_131_refresh_of_what(guarded: Server, query: str) -> None:
    before = guarded.keys
    assert_not_refreshed(guarded.management.get(f"/token{query}", guarded.bearer("API")))
    assert guarded.keys == before


def test_refresh_needs_the_api_key(guarded: Server) -> None:
    before = guarded.keys
    for headers in ({}, guarded.bearer("management"), guarded.bearer("inference"), bearer("Bearer wrong")):
        assert_not_refreshed(guarded.management.get("/token?type=management", headers))
    assert guarded.keys == before


def test_token_route_is_not_on_the_inference_listener(guarded: Server) -> None:
    assert_unauthorized(guarded.inference.get("/token?type=inference", guarded.bearer("API")))


@pytest.mark.parametrize("target", ["/", "/api-description"])
def test_row_132_open_routes(guarded: Server, target: str) -> None:
    method = "OPTIONS" if target == "/" else "GET"
    for listener in (guarded.inference, guarded.management):
        assert listener.request(method, target).status == 200
    assert guarded.metrics.get("/metrics").status == 200


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/tokenxyz?type=management", "/token/x?type=management", "/models/tokenizer"])
def test_token_route_is_exact(guarded: Server, target: str) -> None:
    before = guarded.keys
    assert_unauthorized(guarded.management.get(target, guarded.bearer("API")))
    assert guarded.management.get(target, guarded.bearer("management")).status == 404
    assert guarded.keys == before


@pytest.mark.fix
def test_token_text_elsewhere_is_no_refresh(guarded: Server) -> None:
    headers = guarded.bearer("management")
    assert guarded.management.get("/models?x=/token", headers).status == 200
    assert guarded.management.get("/models", {**headers, "Referer": "http://test/token?type=management"}).status == 200


def test_key_file(guarded: Server) -> None:
    path = guarded.root / "key_file.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = guarded.keys
    assert list(keys) == ["management", "inference", "API"]
    assert [list(value) for value in keys.values()] == [["key", "expiration time"], ["key", "expiration time"], ["key"]]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{8}", value["key"]) for value in keys.values())
    assert path.read_text() == json.dumps(keys, indent=2)
    for name in ("management", "inference"):
        text = re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", keys[name]["expiration time"].replace(" ", ""))
        left = dt.datetime.fromisoformat(text.replace("Z", "+00:00")) - dt.datetime.now(dt.timezone.utc)
        assert dt.timedelta(minutes=50) < left <= dt.timedelta(minutes=60)


def test_editing_the_key_file_changes_nothing(guarded: Server) -> None:
    path = guarded.root / "key_file.json"
    right, before = guarded.bearer("inference"), path.read_text()
    try:
        path.write_text(before.replace(guarded.keys["inference"]["key"], "AAAAAAAA"))
        assert_unauthorized(guarded.inference.get("/ping", bearer("Bearer AAAAAAAA")))
        assert guarded.inference.get("/ping", right).status == 200
    finally:
        path.write_text(before)


def test_expiry(forgetful: Server) -> None:
    refresh = "/token?type=inference"
    assert forgetful.management.get(refresh, forgetful.bearer("API")).status == 200
    key = forgetful.bearer("inference")
    assert forgetful.inference.get("/ping", key).status == 200
    refused = wait_for("expiry", lambda: r if (r := forgetful.inference.get("/ping", key)).status != 200 else None)
    assert_unauthorized(refused)
    assert_unauthorized(forgetful.management.get("/models", forgetful.bearer("management")))
    assert forgetful.management.get(refresh, forgetful.bearer("API")).status == 200
    assert forgetful.inference.get("/ping", forgetful.bearer("inference")).status == 200


@pytest.mark.skipif(is_reference(), reason="the file stays there")
@pytest.mark.fix
def test_key_file_is_removed_at_the_end(make_server: ServerFactory) -> None:
    server = make_server({"disable_token_authorization": "false"})
    first = server.keys
    server.stop()
    assert not (server.root / "key_file.json").exists()
    server.restart()
    assert server.keys["API"] != first["API"]
    server.stop()


def test_no_key_file_without_tokens(server: Server) -> None:
    assert not (server.root / "key_file.json").exists()
    assert_error(server.management.get("/token?type=management"), 404, *NOT_FOUND, 136)
