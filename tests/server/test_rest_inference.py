"""The inference API against the conformance data (rest_api.md §8.2).

Elsewhere: rows 79 and 120 (HTTP layer), 116 (streaming), 113 and 117 (timeouts), 73 and 118 (OpenAPI).
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.expect import (
    NOT_ALLOWED,
    NOT_FOUND,
    assert_bad_request,
    assert_body,
    assert_error,
    assert_json,
)
from tests.support.raw import RawResponse, chunked, multipart
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.server import Server

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=frontier"}
FAILURE = "InternalServerException"
UNAVAILABLE = (
    "has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


def predict(server: Server, body: bytes = b"x", target: str = "/predictions/swiss", **headers: str) -> RawResponse:
    """POST to the model; the keywords are headers, `x_op` for `x-op`."""
    return server.inference.request("POST", target, {key.replace("_", "-"): v for key, v in headers.items()}, body)


def echo(
    server: Server, headers: dict[str, str], body: bytes | None = None, target: str = "/predictions/swiss"
) -> dict[str, Any]:
    """Return what the handler saw."""
    response = server.inference.request("POST", target, headers, body)
    assert response.status == 200, response.body
    document = response.json()
    assert isinstance(document, dict)
    return document


def data(text: str) -> dict[str, Any]:
    return {"py": "bytearray", "len": len(text), "text": text}


def string(text: str) -> dict[str, Any]:
    return {"py": "str", "len": len(text), "text": text}


# Health


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [("GET", "/ping", None), ("POST", "/ping", b"body"), ("DELETE", "/ping", None), ("GET", "/ping/foo/bar", None)],
)
def test_row_070_ping(server: Server, method: str, target: str, body: bytes | None) -> None:
    assert_json(server.inference.request(method, target, (), body), 200, {"status": "Healthy"}, 26)


def test_row_071_ping_when_a_model_is_past_its_retry_window(make_server: ServerFactory) -> None:
    server = make_server()
    assert server.register("badretry.mar", initial_workers=1, synchronous="false").status == 202
    assert server.inference.get("/ping").status == 200
    answer = wait_for("Unhealthy", lambda: r if (r := server.inference.get("/ping")).status != 200 else None)
    assert_json(answer, 500, {"status": "Unhealthy"}, 28)
    assert server.management.request("PUT", "/models/badretry?min_worker=0&synchronous=true").status == 200
    wait_for("Healthy again", lambda: server.inference.get("/ping").status == 200)
    server.stop()


# Routes


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_row_072_root(server: Server, method: str) -> None:
    response = server.inference.request(method, "/")
    assert response.status == 405
    if method != "HEAD":
        assert_error(response, 405, *NOT_ALLOWED, 136)


def test_row_074_predict(server: Server) -> None:
    response = server.inference.request("POST", "/predictions/noop", FORM, b"x")
    assert_body(response, 200, b"ok")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "FOO"])
def test_predict_with_any_method(server: Server, method: str) -> None:
    assert_body(server.inference.request(method, "/predictions/noop"), 200, b"ok")


@pytest.mark.parametrize(
    "target", ["/predictions", "/predictions/", "/explanations", "/swiss", "/swiss/explain", "/models/predict"]
)
def test_row_075_no_model_in_the_path(server: Server, target: str) -> None:
    assert_error(server.inference.get(target), 404, *NOT_FOUND, 136)


def test_row_076_unknown_model(server: Server) -> None:
    response = predict(server, target="/predictions/nope")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: nope", 92)


def test_row_077_unknown_version(server: Server) -> None:
    message = "Model version: 9 does not exist for model: swiss"
    assert_error(predict(server, target="/predictions/swiss/9"), 404, "ModelVersionNotFoundException", message, 126)


def test_row_078_escaped_slash_separates(server: Server) -> None:
    response = predict(server, target="/predictions/a%2Fb")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: a")


def test_row_080_no_worker(server: Server) -> None:
    with server.registered("slowinit.mar", "slowinit"):
        response = predict(server, target="/predictions/slowinit")
        assert_error(response, 503, "ServiceUnavailableException", f'Model "slowinit" {UNAVAILABLE}', 291)


def test_row_081_no_worker_of_that_version(server: Server) -> None:
    with server.registered("swiss_v2.mar", "siws2"):
        response = predict(server, target="/predictions/siws2/2.0")
        assert_error(response, 503, "ServiceUnavailableException", f'Model "siws2" Version 2.0" {UNAVAILABLE}', 302)


# Body kinds


def test_row_082_json(server: Server) -> None:
    seen = echo(server, JSON, b'{"x":1}')
    assert (seen["keys"], seen["row"]) == (["body"], {"body": {"py": "dict", "value": {"x": 1}}})
    assert seen["headers"]["body"] == {"content-type": "application/json"}
    parameters = echo(server, {"Content-Type": "application/json; charset=utf-8"}, b"[1]")
    assert parameters["row"] == {"body": {"py": "list", "value": [1]}}


def test_row_083_json_type_in_another_case(server: Server) -> None:
    assert echo(server, {"Content-Type": "Application/JSON"}, b'{"x":1}')["row"] == {"body": data('{"x":1}')}


def test_row_084_malformed_json(server: Server) -> None:
    assert echo(server, JSON, b"{bad")["row"] == {"body": data("{bad")}


def test_row_085_text(server: Server) -> None:
    assert echo(server, TEXT, b"x=1")["row"] == {"body": string("x=1")}
    assert echo(server, {"Content-Type": "text/csv; x=y"}, "é".encode())["row"] == {"body": string("é")}
    assert echo(server, TEXT, b"\xff")["row"] == {"body": data("\xff")}


@pytest.mark.parametrize(
    "content_type",
    [None, "application/octet-stream", "multipart/form-data", "multipart/mixed; boundary=x", "image/png"],
)
def test_other_types_are_bytes(server: Server, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert echo(server, headers, b"a=1")["row"] == {"body": data("a=1")}


def test_no_body(server: Server) -> None:
    seen = server.inference.get("/predictions/swiss").json()
    assert seen["row"] == {"body": data("")}
    assert seen["headers"]["content-length"] == "0"


def test_row_086_form(server: Server) -> None:
    seen = echo(server, FORM, b"a=1&b=two+words%21&a=3&data=zzz")
    assert seen["row"] == {"a": data("3"), "b": data("two words!"), "data": data("zzz")}


def test_row_087_empty_form(server: Server) -> None:
    assert echo(server, FORM, b"")["row"] == {}


def test_form_details(server: Server) -> None:
    headers = {"Content-Type": "Application/X-WWW-Form-Urlencoded; charset=utf-8"}
    assert echo(server, headers, b"a=1&last")["row"] == {"a": data("1")}
    assert server.inference.request("GET", "/predictions/swiss", FORM, b"k=v").json()["row"] == {"k": data("v")}


@pytest.mark.fix
@pytest.mark.parametrize("body", [b"a=%zz", b"a=%2", b"%zz=a"])
def test_row_088_malformed_form(server: Server, body: bytes) -> None:
    assert_bad_request(server.inference.request("POST", "/predictions/swiss", FORM, body))


def test_row_089_multipart(server: Server) -> None:
    name = 'Content-Disposition: form-data; name="{}"'
    file = name + '; filename="{}"\r\nContent-Type: {}'
    body = multipart(
        [
            (file.format("img", "f.bin", "application/octet-stream"), b"\x00\xff\r\n"),
            (file.format("txt", "f.txt", "text/plain"), b"text"),
            (file.format("js", "f.json", "application/json"), b'{"k": 1}'),
            (name.format("field"), b"value"),
            (name.format("jsf") + "\r\nContent-Type: application/json", b'{"k":1}'),
        ]
    )
    seen = echo(server, MULTIPART, body)
    assert seen["row"] == {
        "img": data("\x00\xff\r\n"),
        "txt": string("text"),
        "js": {"py": "dict", "value": {"k": 1}},
        "field": data("value"),
        "jsf": data('{"k":1}'),
    }
    assert seen["headers"]["txt"] == {"content-type": "text/plain"}
    assert seen["headers"]["field"] == {"content-type": ""}


def test_row_090_repeated_part(server: Server) -> None:
    head = 'Content-Disposition: form-data; name="data"; filename="{}"'
    body = multipart(
        [(head.format("f.txt") + "\r\nContent-Type: text/plain", b"first"), (head.format("f.bin"), b"second")]
    )
    assert echo(server, MULTIPART, body)["row"] == {"data": data("second")}


@pytest.mark.fix
def test_multipart_type_in_another_case(server: Server) -> None:
    body = multipart([('Content-Disposition: form-data; name="a"; filename=""', b"1")])
    headers = {"Content-Type": "Multipart/Form-Data; boundary=frontier"}
    assert echo(server, headers, body)["row"] == {"a": data("1")}


def test_multipart_in_chunks(server: Server) -> None:
    body = multipart([('Content-Disposition: form-data; name="a"', b"1" * 1000)])
    wire = chunked(*(body[start : start + 7] for start in range(0, len(body), 7)))
    assert echo(server, {**MULTIPART, "Transfer-Encoding": "chunked"}, wire)["row"] == {"a": data("1" * 1000)}


@pytest.mark.fix
@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        b"",
        multipart([('Content-Disposition: form-data; name="a"', b"1")])[:-20],
        multipart([('Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64', b"MQ==")]),
    ],
    ids=["garbage", "empty", "truncated", "base64"],
)
def test_malformed_multipart(server: Server, body: bytes) -> None:
    assert_bad_request(server.inference.request("POST", "/predictions/swiss", MULTIPART, body))


def test_compressed_body_is_passed_on(server: Server) -> None:
    packed = gzip.compress(b"x")
    seen = echo(server, {"Content-Encoding": "gzip"}, packed)
    assert seen["row"]["body"]["len"] == len(packed)
    assert seen["headers"]["Content-Encoding"] == "gzip"


def test_decoding_switched_off(closed_server: Server) -> None:
    target = "/predictions/only"
    assert echo(closed_server, JSON, b'{"x":1}', target)["row"] == {"body": data('{"x":1}')}
    assert echo(closed_server, TEXT, b"text", target)["row"] == {"body": data("text")}


# Path forms


def test_row_091_extra_segments(server: Server) -> None:
    seen = echo(server, FORM, b"x", "/predictions/swiss/1.0/v1/chat%20x/completions?q=1")
    assert (seen["headers"]["url_path"], seen["headers"]["explain"]) == ("v1/chat x/completions", "False")
    assert seen["keys"] == []
    assert echo(server, TEXT, b"x", "/predictions/swiss?q=1")["headers"]["url_path"] == ""


def test_row_092_explanations(server: Server) -> None:
    seen = echo(server, {"explain": "client", "url_path": "client"}, b"x", "/explanations/swiss")
    assert (seen["headers"]["explain"], seen["headers"]["url_path"]) == ("True", "")


def test_row_093_legacy_predict(server: Server) -> None:
    seen = echo(server, TEXT, b"x", "/swiss/predict?a=1&data=hello&a=2")
    assert seen["row"] == {"a": data("2"), "data": data("hello"), "body": string("x")}
    assert seen["keys"] == ["a", "data", "body"]
    assert not {"explain", "url_path"} & set(seen["headers"])
    assert echo(server, TEXT, b"x", "/swiss/1.0/predict")["row"] == {"body": string("x")}


def test_row_094_invocations_without_a_name(server: Server) -> None:
    response = server.inference.request("POST", "/invocations", TEXT, b"x")
    assert_error(response, 400, "BadRequestException", "Parameter model_name is required.", 101)


def test_invocations_of_the_one_startup_model(closed_server: Server) -> None:
    assert echo(closed_server, TEXT, b"x", "/invocations")["row"] == {"body": data("x")}
    assert echo(closed_server, TEXT, b"x", "/invocations?model_name=")["keys"] == ["model_name", "body"]


def test_row_095_invocations_with_a_field(server: Server) -> None:
    head = 'Content-Disposition: form-data; name="{}"'
    body = multipart([(head.format("model_name"), b"swiss"), (head.format("data"), b"1")])
    seen = echo(server, MULTIPART, body, "/invocations")
    assert seen["row"] == {"model_name": data("swiss"), "data": data("1")}
    seen = echo(server, {**TEXT, "explain": "mine"}, b"x", "/invocations?model_name=swiss")
    assert seen["row"] == {"model_name": data("swiss"), "body": string("x")}
    assert seen["headers"]["explain"] == "mine"
    assert "url_path" not in seen["headers"]


def test_row_096_invocations_with_an_empty_name(server: Server) -> None:
    response = server.inference.request("POST", "/invocations?model_name=", TEXT, b"x")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: ")


@pytest.mark.parametrize(
    ("target", "explain"),
    [
        ("/models/swiss/invoke", None),
        ("/v1/models/swiss:predict", "False"),
        ("/v1/models/swiss:predictFoo", "False"),
        ("/v1/models/swiss:explain", "True"),
        ("/v2/models/swiss/infer", "False"),
        ("/v2/models/swiss/explain", "True"),
    ],
)
def test_row_097_other_forms(server: Server, target: str, explain: str | None) -> None:
    seen = echo(server, TEXT, b"x", target)
    assert seen["row"] == {"body": string("x")}
    assert seen["headers"].get("explain") == explain
    assert "url_path" not in seen["headers"]


@pytest.mark.parametrize(
    "target",
    [
        "/models",
        "/models/swiss",
        "/models/swiss/foo",
        "/invocations/x",
        "/v1/models/swiss",
        "/v2/health/live",
        "/v2/models/swiss",
        "/execution-parameters",
    ],
)
def test_row_098_not_on_this_listener(server: Server, target: str) -> None:
    assert_error(server.inference.get(target), 404, *NOT_FOUND, 136)


# Request headers


def test_request_headers_reach_the_handler(server: Server) -> None:
    headers = [("X-Mixed-Case", "1"), ("x-twice", "first"), ("x-twice", "second"), ("X-Twice", "other")]
    response = server.inference.request("POST", "/predictions/swiss", headers, b"x")
    seen = response.json()["headers"]
    assert (seen["X-Mixed-Case"], seen["x-twice"], seen["X-Twice"]) == ("1", "second", "other")
    assert "x-mixed-case" not in seen
    assert response.json()["id"] == response.header("x-request-id")


def test_request_header_wins_over_the_entry_of_an_input(server: Server) -> None:
    assert echo(server, {"body": "mine"}, b"x")["headers"]["body"] == "mine"
