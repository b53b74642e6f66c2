"""What handlers return and how they fail (rest_api.md §8.2, rows 99 to 115)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.expect import CACHE_HEADERS, assert_body, assert_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import RawResponse
    from tests.support.server import Server

FAILURE = "InternalServerException"


def predict(server: Server, body: bytes = b"x", target: str = "/predictions/swiss", **headers: str) -> RawResponse:
    """POST to the model; the keywords are headers, `x_op` for `x-op`."""
    return server.inference.request("POST", target, {key.replace("_", "-"): v for key, v in headers.items()}, body)


# Handler results


def test_row_099_dictionary(server: Server) -> None:
    body = b'{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}'
    assert_body(predict(server, x_op="ret", x_kind="dict"), 200, body)
    assert len(body) == 39


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("none", b"null"),
        ("nan", b"NaN"),
        ("unicode", b'{\n  "k": "\\u00e9\\u4e2d"\n}'),
        ("int", b"7"),
        ("str", "é".encode()),
        ("bytes", b"\x00\xff"),
        ("bytearray", b"ab"),
        ("tuple", b"[\n  1,\n  2\n]"),
    ],
)
def test_row_100_other_results(server: Server, kind: str, body: bytes) -> None:
    assert_body(predict(server, x_op="ret", x_kind=kind), 200, body)


def test_tensor_result_is_saved(server: Server) -> None:
    response = predict(server, x_op="ret", x_kind="tensor")
    assert response.status == 200
    assert response.body.startswith(b"PK")


def test_row_101_not_serialisable(server: Server) -> None:
    response = predict(server, x_op="ret", x_kind="set")
    assert_error(response, 503, FAILURE, "Unsupported model output data type.", 107)


def test_row_102_exception(server: Server) -> None:
    assert_error(predict(server, x_op="raise"), 503, FAILURE, "Prediction failed", 89)


@pytest.mark.parametrize("op", ["mem", "raise-cuda"])
def test_row_103_out_of_memory(server: Server, op: str) -> None:
    assert_error(predict(server, x_op=op), 507, FAILURE, "Out of resources", 88)


@pytest.mark.parametrize("kind", ["str", "tuple", "none", "dict"])
def test_row_104_not_a_list(server: Server, kind: str) -> None:
    response = predict(server, x_op="notlist", x_kind=kind)
    assert_error(response, 503, FAILURE, "Invalid model predict output", 100)


def test_row_105_wrong_length(server: Server) -> None:
    message = "number of batch response mismatched"
    assert_error(predict(server, x_op="wronglen"), 503, FAILURE, message, 107)


def test_row_106_prediction_exception(server: Server) -> None:
    assert_error(predict(server, x_op="pe"), 513, FAILURE, "my message", 82)


def test_row_107_prediction_exception_413(server: Server) -> None:
    assert_error(predict(server, x_op="pe", x_code="413"), 507, FAILURE, "my message", 82)


def test_row_108_status_and_phrase(server: Server) -> None:
    with server.inference.connect() as connection:
        headers = {"x-op": "status", "x-code": "404", "x-phrase": "Nope"}
        response = connection.request("POST", "/predictions/swiss", headers, b"x")
        assert response.status_line == b"HTTP/1.1 404 Nope"
        assert_body(response, 404, b"body with status")
        assert connection.ending() in {"fin", "rst"}


def test_row_109_no_content(server: Server) -> None:
    with server.inference.connect() as connection:
        response = connection.request("POST", "/predictions/swiss", {"x-op": "status", "x-code": "204"}, b"x")
        assert (response.status, response.header("content-length"), response.header("transfer-encoding")) == (
            204,
            None,
            None,
        )
        assert connection.request("GET", "/ping").status == 200


@pytest.mark.parametrize("code", [201, 302, 418, 599])
def test_other_statuses_pass(server: Server, code: int) -> None:
    assert_body(predict(server, x_op="status", x_code=str(code)), code, b"body with status")


def test_row_110_content_type(server: Server) -> None:
    response = predict(server, x_op="ct", x_ct="application/json")
    assert_body(response, 200, b"typed", "application/json")
    assert response.names[0] == "content-type"


def test_handler_header(server: Server) -> None:
    response = predict(server, x_op="header", x_name="X-Mine", x_value="caf\u00e9")
    assert response.status == 200
    assert "X-Mine" in response.names
    assert response.names.index("X-Mine") < response.names.index("x-request-id")


@pytest.mark.parametrize("name", ["content-length", "connection", "x-request-id", "Pragma", "Cache-Control", "Expires"])
def test_server_headers_win(server: Server, name: str) -> None:
    response = predict(server, x_op="header", x_name=name, x_value="3")
    assert_body(response, 200, b"with header")
    assert response.all(name) != ["3"]
    assert len(response.all(name)) == 1
    assert [pair for pair in response.headers if pair in CACHE_HEADERS] == CACHE_HEADERS


@pytest.mark.fix
def test_handler_transfer_encoding_is_dropped(server: Server) -> None:
    response = predict(server, x_op="header", x_name="Transfer-Encoding", x_value="chunked")
    assert_body(response, 200, b"with header")
    assert response.header("transfer-encoding") is None


@pytest.mark.fix
@pytest.mark.parametrize(
    "headers",
    [
        {"x_op": "header", "x_name": "X-Number", "x_value": "5", "x_value_kind": "int"},
        {"x_op": "header", "x_name": "X-Line", "x_value": "5", "x_value_kind": "line"},
        {"x_op": "header", "x_name": "Not a name", "x_value": "5"},
        {"x_op": "badphrase"},
        {"x_op": "status", "x_code": "-1"},
    ],
    ids=["number", "line-break", "name", "phrase", "negative-status"],
)
def test_wrong_response_metadata_fails_that_request_alone(server: Server, headers: dict[str, str]) -> None:
    before = predict(server, x_op="pid").body
    response = predict(server, b"x", "/predictions/swiss", **headers)
    assert response.status == 500
    assert response.json()["type"] == FAILURE
    assert predict(server, x_op="pid").body == before


# Worker death and limits


@pytest.fixture
def fragile(server: Server) -> Iterator[str]:
    """The path of a model whose worker may die; it is up again before the next test."""
    with server.registered("swiss_v3.mar", "fragile", initial_workers=1):
        yield "/predictions/fragile"


def test_row_111_worker_exits(server: Server, fragile: str) -> None:
    assert_error(predict(server, target=fragile, x_op="exit"), 500, FAILURE, "Worker died.", 84)
    assert predict(server, target=fragile, x_op="pid").status == 200


def test_row_112_worker_exits_with_137(server: Server, fragile: str) -> None:
    response = predict(server, target=fragile, x_op="exit", x_code="137")
    assert_error(response, 507, FAILURE, "Worker died.", 84)


@pytest.mark.fix
@pytest.mark.parametrize(("code", "status"), [("0", 500), ("1", 500), ("137", 507)])
def test_next_request_after_a_death_succeeds(server: Server, fragile: str, code: str, status: int) -> None:
    for _ in range(3):
        assert predict(server, target=fragile, x_op="exit", x_code=code).status == status
        assert predict(server, target=fragile, x_op="pid").status == 200


def test_row_114_largest_answer(server: Server) -> None:
    response = predict(server, x_op="big", x_n="6553500")
    assert (response.status, len(response.body)) == (200, 6553500)


@pytest.mark.fix
def test_row_114_oversize_answer(server: Server, fragile: str) -> None:
    """As with TorchServe a 500 of the same type; the message names the limit, and the worker lives on."""
    before = predict(server, target=fragile, x_op="pid").body
    response = predict(server, target=fragile, x_op="big", x_n="6553501")
    assert_error(response, 500, FAILURE, "Response of 6553501 bytes exceeds max_response_size 6553500.")
    after = predict(server, target=fragile, x_op="pid")
    assert (after.status, after.body) == (200, before)


def test_row_115_oversize_request(server: Server) -> None:
    response = predict(server, b"x" * 6553501, target="/predictions/noop")
    assert (response.status, response.body, response.header("content-length")) == (413, b"", "0")


def test_largest_request(server: Server) -> None:
    assert_body(predict(server, b"x" * 6553500, target="/predictions/noop"), 200, b"ok")


def test_row_119_options_of_an_unknown_model(server: Server) -> None:
    response = server.inference.request("OPTIONS", "/predictions/nope")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: nope", 92)
