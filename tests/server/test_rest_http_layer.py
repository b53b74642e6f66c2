"""HTTP itself: headers, connections, limits, malformed input (rest_api.md §1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.expect import NOT_ALLOWED, assert_bad_request, assert_body, assert_error, assert_json
from tests.support.raw import chunked, encode

if TYPE_CHECKING:
    from tests.support.raw import RawResponse
    from tests.support.server import Listener, Server

TEXT = {"Content-Type": "text/plain"}
CACHE = ["Pragma", "Cache-Control", "Expires"]
CORS = ["access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers"]
HEALTHY = {"status": "Healthy"}
LIMIT = 1000


def send(listener: Listener, data: bytes) -> tuple[RawResponse, str]:
    """Send these bytes; return the answer and how the connection ended."""
    with listener.connect() as connection:
        connection.send(data)
        response = connection.read_response()
        return response, connection.ending()


# Response headers


def test_header_order_of_json(server: Server) -> None:
    response = server.inference.get("/ping")
    assert response.names == ["content-type", "x-request-id", *CACHE, "content-length", "connection"]
    assert response.status_line == b"HTTP/1.1 200 OK"


def test_header_order_of_an_error(server: Server) -> None:
    response = server.inference.get("/predictions/nope")
    assert response.names == ["content-type", "x-request-id", *CACHE, "content-length", "connection"]
    assert response.status_line == b"HTTP/1.1 404 Not Found"


def test_header_order_of_a_prediction(server: Server) -> None:
    headers = {"x-op": "header", "x-name": "X-Mine", "x-value": "1"}
    response = server.inference.request("POST", "/predictions/swiss", headers, b"x")
    assert response.names == ["X-Mine", "x-request-id", *CACHE, "content-length", "connection"]


def test_header_order_with_cors(closed_server: Server) -> None:
    response = closed_server.inference.get("/ping")
    assert response.names == ["content-type", "x-request-id", *CORS, *CACHE, "content-length", "connection"]


@pytest.mark.parametrize("target", ["/ping", "/predictions/only", "/predictions/nope", "/nowhere", "/"])
def test_cors_on_every_answer(closed_server: Server, target: str) -> None:
    response = closed_server.inference.get(target)
    assert [response.all(name) for name in CORS] == [
        ["https://example.org"],
        ["GET, POST, PUT, OPTIONS"],
        ["X-Custom-Header"],
    ]


def test_cors_on_the_other_listeners(closed_server: Server) -> None:
    for response in (closed_server.management.get("/models"), closed_server.metrics.get("/metrics")):
        assert response.all(CORS[0]) == ["https://example.org"]


def test_cors_header_of_the_handler_wins(closed_server: Server) -> None:
    headers = {"x-op": "header", "x-name": CORS[0], "x-value": "mine"}
    response = closed_server.inference.request("POST", "/predictions/only", headers, b"x")
    assert response.all(CORS[0]) == ["mine"]
    assert response.all(CORS[1]) == ["GET, POST, PUT, OPTIONS"]


def test_no_cors_unless_configured(server: Server) -> None:
    response = server.inference.get("/ping", {"Origin": "https://example.org"})
    assert not set(CORS) & set(response.names)


def test_request_ids_are_fresh_and_the_servers_own(server: Server) -> None:
    answers = [server.inference.get("/ping", {"X-Request-Id": "mine"}) for _ in range(3)]
    assert len({answer.header("x-request-id") for answer in answers} - {"mine"}) == 3
    response = server.inference.request("POST", "/predictions/swiss", {**TEXT, "X-Request-Id": "mine"}, b"x")
    seen = response.json()
    assert seen["id"] == response.header("x-request-id")
    assert seen["headers"]["X-Request-Id"] == "mine"


def test_no_response_compression(server: Server) -> None:
    response = server.inference.get("/ping", {"Accept-Encoding": "gzip, deflate, br"})
    assert_json(response, 200, HEALTHY)
    assert response.header("content-encoding") is None


def test_json_is_not_escaped(server: Server) -> None:
    response = server.inference.get("/predictions/%C3%A9%3C%3E%26%3D%27+")
    assert_error(response, 404, "ModelNotFoundException", "Model not found: é<>&='+")


# Connections


def test_connection_is_kept(server: Server) -> None:
    with server.inference.connect() as connection:
        for target in ("/ping", "/predictions/noop", "/predictions/swiss", "/ping"):
            response = connection.request("GET", target)
            assert (response.status, response.header("connection")) == (200, "keep-alive")


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/ping", "/predictions/noop"])
def test_client_asks_to_close(server: Server, target: str) -> None:
    response, ending = send(server.inference, encode("GET", target, {"Connection": "close"}))
    assert (response.status, response.header("connection"), ending) == (200, "close", "fin")


@pytest.mark.fix
def test_http_1_0_closes(server: Server) -> None:
    response, ending = send(server.inference, b"GET /ping HTTP/1.0\r\n\r\n")
    assert (response.status, response.header("connection"), ending) == (200, "close", "fin")


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/predictions/nope", "/nowhere", "/"])
def test_errors_close_orderly(server: Server, target: str) -> None:
    response, ending = send(server.inference, encode("POST", target, TEXT, b"x"))
    assert (response.header("connection"), ending) == ("close", "fin")


def test_errors_close(server: Server) -> None:
    response, ending = send(server.management, encode("GET", "/models/nope"))
    assert (response.status, response.header("connection")) == (404, "close")
    assert ending in {"fin", "rst"}


@pytest.mark.fix
def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    gate = server.gate()
    with server.inference.connect() as connection:
        held = encode("POST", "/predictions/swiss", {"x-op": "pid", "x-gate": gate.name}, b"x")
        connection.send(held + encode("GET", "/ping") + encode("POST", "/predictions/noop", TEXT, b"x"))
        gate.wait_arrived()
        gate.open()
        answers = [connection.read_response() for _ in range(3)]
    pid = str(server.ready_workers("swiss")[0]["pid"]).encode()
    assert [answer.body for answer in answers] == [pid, b'{\n  "status": "Healthy"\n}\n', b"ok"]
    assert len({answer.header("x-request-id") for answer in answers} - {None}) == 3


@pytest.mark.fix
def test_many_pipelined_requests(server: Server) -> None:
    with server.inference.connect() as connection:
        connection.send(encode("GET", "/predictions/noop") * 50)
        assert [connection.read_response().body for _ in range(50)] == [b"ok"] * 50
        assert connection.request("GET", "/ping").status == 200


@pytest.mark.fix
def test_nothing_is_answered_after_a_pipelined_error(server: Server) -> None:
    response, ending = send(server.inference, encode("GET", "/nowhere") + encode("GET", "/ping"))
    assert (response.status, ending) == (404, "fin")


@pytest.mark.parametrize(("target", "length"), [("/ping", 26), ("/predictions/noop", 2)])
def test_head(server: Server, target: str, length: int) -> None:
    with server.inference.connect() as connection:
        response = connection.request("HEAD", target)
        assert (response.status, response.header("content-length")) == (200, str(length))
        assert connection.request("GET", "/ping").body == b'{\n  "status": "Healthy"\n}\n'


# Requests


def test_host_is_not_required(server: Server) -> None:
    with server.inference.connect() as connection:
        connection.send(b"GET /ping HTTP/1.1\r\n\r\n")
        assert_json(connection.read_response(), 200, HEALTHY)


def test_methods_are_case_sensitive(server: Server) -> None:
    assert_error(server.management.request("get", "/models"), 405, *NOT_ALLOWED)


def test_upgrade_is_ignored(server: Server) -> None:
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    assert_json(server.inference.get("/ping", headers), 200, HEALTHY)


def test_chunked_body(server: Server) -> None:
    wire = chunked(b"hel", b"lo").removesuffix(b"\r\n") + b"X-Trailer: gone\r\n\r\n"
    with server.inference.connect() as connection:
        seen = connection.request("POST", "/predictions/swiss", {**TEXT, "Transfer-Encoding": "chunked"}, wire).json()
        assert seen["row"]["body"] == {"py": "str", "len": 5, "text": "hello"}
        assert seen["headers"]["content-length"] == "5"
        assert not {"X-Trailer", "Transfer-Encoding", "transfer-encoding"} & set(seen["headers"])
        assert connection.request("GET", "/ping").status == 200


def test_expect_continue(server: Server) -> None:
    headers = {**TEXT, "Content-Length": "5", "Expect": "100-continue"}
    with server.inference.connect() as connection:
        connection.send(encode("POST", "/predictions/swiss", headers))
        interim = connection.read_response()
        assert (interim.status_line, interim.header("x-request-id")) == (b"HTTP/1.1 100 Continue", None)
        connection.send(b"hello")
        response = connection.read_response()
        assert response.json()["row"]["body"]["text"] == "hello"
        assert "Expect" not in response.json()["headers"]


def test_row_120_other_expectation(server: Server) -> None:
    with server.inference.connect() as connection:
        response = connection.request("GET", "/ping", {"Expect": "foo"})
        assert response.status_line == b"HTTP/1.1 417 Expectation Failed"
        assert (response.headers, response.body) == ([("content-length", "0")], b"")
        assert connection.request("GET", "/ping").status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"{}[]\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nContent-Length: five\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    ],
    ids=["bytes", "start-line", "header", "length", "lengths"],
)
def test_malformed_message(server: Server, data: bytes) -> None:
    response, _ = send(server.inference, data)
    assert_error(response, 400, "BadRequestException", "Invalid HTTP message.")


@pytest.mark.fix
@pytest.mark.parametrize(
    "data",
    [
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["chunked-and-length", "length-and-chunked", "chunk-size", "negative"],
)
def test_ambiguous_message_is_refused(server: Server, data: bytes) -> None:
    response, ending = send(server.inference, data)
    assert_error(response, 400, "BadRequestException", "Invalid HTTP message.")
    assert ending == "fin"


def request_line(length: int) -> bytes:
    start, end = b"GET /ping?", b" HTTP/1.1"
    return start + b"x" * (length - len(start) - len(end)) + end + b"\r\n\r\n"


def header_lines(length: int) -> bytes:
    return b"GET /ping HTTP/1.1\r\nX: " + b"x" * (length - 3) + b"\r\n\r\n"


def test_longest_request_line_and_headers(server: Server) -> None:
    with server.inference.connect() as connection:
        for data in (request_line(4090), header_lines(8190)):
            connection.send(data)
            assert_json(connection.read_response(), 200, HEALTHY)


@pytest.mark.parametrize("data", [request_line(4200), header_lines(8300)], ids=["line", "headers"])
def test_too_long_request_line_or_headers(server: Server, data: bytes) -> None:
    response, _ = send(server.inference, data)
    assert_error(response, 400, "BadRequestException", "Invalid HTTP message.")


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/predictions/%zz", "/predictions/%", "/predictions/%2", "/models/%c3%28/invoke"])
def test_row_079_malformed_escape(server: Server, target: str) -> None:
    assert_bad_request(server.inference.get(target))


@pytest.mark.fix
@pytest.mark.parametrize("target", ["http://example.org/ping", "http://example.org:80/ping?x=1"])
def test_absolute_target(server: Server, target: str) -> None:
    assert_json(server.inference.get(target), 200, HEALTHY)


@pytest.mark.fix
@pytest.mark.parametrize(("method", "target"), [("OPTIONS", "*"), ("GET", "ping"), ("PRI", "*")])
def test_target_without_a_slash(server: Server, method: str, target: str) -> None:
    assert server.inference.request(method, target).status in {400, 404, 405}


# Request size


def assert_too_large(response: RawResponse, *, close: bool) -> None:
    assert response.status_line == b"HTTP/1.1 413 Request Entity Too Large"
    expected = {("content-length", "0")} | ({("connection", "close")} if close else set())
    assert (set(response.headers), response.body) == (expected, b"")


def test_largest_body(closed_server: Server) -> None:
    headers = {"x-op": "ret", "x-kind": "int"}
    response = closed_server.inference.request("POST", "/predictions/only", headers, b"x" * LIMIT)
    assert_body(response, 200, b"7")


@pytest.mark.parametrize("listener", ["inference", "management", "metrics"])
def test_body_too_large(closed_server: Server, listener: str) -> None:
    """The body is swallowed, and the connection goes on."""
    with getattr(closed_server, listener).connect() as connection:
        for _ in range(2):
            assert_too_large(connection.request("POST", "/ping", TEXT, b"x" * (LIMIT + 1)), close=False)
        assert connection.request("OPTIONS", "/").status == 200


def test_body_too_large_with_expect(closed_server: Server) -> None:
    with closed_server.inference.connect() as connection:
        headers = {**TEXT, "Content-Length": str(LIMIT + 1), "Expect": "100-continue"}
        assert_too_large(connection.request("POST", "/ping", headers), close=False)
        assert connection.request("GET", "/ping").status == 200


def test_body_too_large_with_close(closed_server: Server) -> None:
    data = encode("POST", "/ping", {**TEXT, "Connection": "close"}, b"x" * (LIMIT + 1))
    response, _ = send(closed_server.inference, data)
    assert_too_large(response, close=True)


def test_chunked_body_too_large(closed_server: Server) -> None:
    with closed_server.inference.connect() as connection:
        connection.send(encode("POST", "/ping", {**TEXT, "Transfer-Encoding": "chunked"}))
        connection.send(b"400\r\n" + b"x" * 0x400 + b"\r\n")
        assert_too_large(connection.read_response(), close=True)
        assert connection.ending() in {"fin", "rst"}


@pytest.mark.fix
def test_chunked_body_too_large_closes_orderly(closed_server: Server) -> None:
    with closed_server.inference.connect() as connection:
        connection.send(encode("POST", "/ping", {**TEXT, "Transfer-Encoding": "chunked"}))
        connection.send(b"400\r\n" + b"x" * 0x400 + b"\r\n")
        assert_too_large(connection.read_response(), close=True)
        assert connection.ending() == "fin"
