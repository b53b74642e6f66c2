"""Random requests to every listener: each connection ends with an answer or is closed, and the server lives on."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from tests.faults.support import LONG, Client, add_model, log_records
from tests.support.raw import encode, multipart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.raw import Address, RawResponse
    from tests.support.server import Server

DEADLINE = 20.0
"""Seconds in which every connection must have come to something; the fuzz itself takes milliseconds."""
LISTENERS = ("inference", "management", "metrics")
settings.register_profile(
    "fuzz",
    max_examples=2000 if LONG else 200,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
fuzz = settings(settings.get_profile("fuzz"))
_DOCUMENTED = {
    503: re.compile(r'^Model "[^"]*"( Version [^"]*")? has no worker to serve|^Worker \d+ of model'),
    500: re.compile(r"^Failed to start workers for model |^Failed to save model: "),
}
"""The errors from 500 on that are not the server's fault: nobody there to serve, a bad archive, a bad handler."""


_IS_THE_MODELS = re.compile(r" MODEL_LOG - | died\. ")


@pytest.fixture(scope="module", params=["tcp", "unix"])
def target(
    request: pytest.FixtureRequest, make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    config = {"max_request_size": "100000", "max_response_size": "100000"}
    if request.param == "unix":
        folder = tmp_path_factory.mktemp("u")
        config |= {f"{name}_address": f"unix:{folder}/{name}" for name in LISTENERS}
    server = make_server(config)
    assert server.register("noop.mar", initial_workers=1).status == 200
    yield server
    server.stop()
    ours = [record for record in log_records(server) if "Traceback" in record and not _IS_THE_MODELS.search(record)]
    assert not ours, ours[0]


# -- what is sent ------------------------------------------------------------------------------------------------------

words = st.sampled_from(["noop", "swiss", "fuzzed", "1.0", "all", "", "..", "%", "%00", "%2e%2e", "ü", "a" * 300, "_"])
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_SEGMENTS = (
    "predictions explanations invocations models ping metrics v1 v2 infer invoke predict api-description token "
    "set-default noop noop:predict fuzzed:explain 1.0 all"
)
segments = st.sampled_from(_SEGMENTS.split()) | anything.map(lambda text: quote(text, safe=""))
paths = st.lists(segments, max_size=5).map(lambda parts: "/" + "/".join(parts)) | st.sampled_from(
    ["*", "http://h/ping"]
)
# Nothing outside of the test is fetched, and nobody asks for a million workers: that is the operator's own doing.
parameters: dict[str, st.SearchStrategy[str]] = {
    "url": st.sampled_from(["noop.mar", "noop.mar", "garb.mar", "nothing", "file:///dev/null", "http://[", "x" * 5000])
    | anything.filter(lambda text: "://" not in text),
    "model_name": st.sampled_from(["fuzzed", "noop", "a b", "a/b"]) | anything,
    "handler": st.just("noop") | anything,
    "runtime": st.sampled_from(["python", "python3", "java", ""]),
    "initial_workers": st.sampled_from(["0", "0", "1", "-1", "x", "", "99999999999"]),
    "min_worker": st.sampled_from(["0", "1", "-1", "x", "", "99999999999"]),
    "max_worker": st.sampled_from(["0", "1", "2", "-1", "x", ""]),
    "batch_size": st.sampled_from(["1", "4", "0", "-1", "-5", "2147483647", "x"]),
    "max_batch_delay": st.sampled_from(["1", "0", "-1", "-100", "x"]),
    "response_timeout": st.sampled_from(["1", "0", "-1", "-7", "x"]),
    "startup_timeout": st.sampled_from(["30", "0", "-1", "x"]),
    "timeout": st.sampled_from(["0", "1", "-1", "-2", "x"]),
    "synchronous": st.sampled_from(["true", "false", "x"]),
    "customized": st.sampled_from(["true", "false", "x"]),
    "limit": st.sampled_from(["1", "0", "-1", "1000", "x"]),
    "next_page_token": st.sampled_from(["0", "1", "-1", "999", "x"]),
    "type": st.sampled_from(["inference", "management", "x"]),
    "name[]": anything,
}
pairs = st.sampled_from(sorted(parameters)).flatmap(lambda name: st.tuples(st.just(name), parameters[name]))
queries = st.lists(pairs, max_size=6).map(
    lambda chosen: "&".join(f"{name}={quote(value, safe='')}" for name, value in chosen)
) | st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=30)
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "BREW"])
types = st.sampled_from(
    [
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=frontier",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "APPLICATION/JSON; charset=x",
        "/",
        "\xff",
    ]
)
visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
headers = st.lists(
    st.tuples(st.just("Content-Type"), types)
    | st.tuples(
        st.sampled_from(["Accept", "Authorization", "X-Request-Id", "Cookie", "explain", "Connection"]), visible
    )
    | st.tuples(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,15}", fullmatch=True).map(lambda name: f"x-{name}"), visible),
    max_size=4,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
json_bodies = (
    (
        st.dictionaries(
            st.sampled_from(["model_name", "handler", "synchronous", "runtime", "url", "x"]), json_values, max_size=4
        )
        | st.lists(pairs, max_size=5).map(dict)
        | json_values
    )
    .filter(lambda value: "://" not in str(value))
    .map(lambda value: json.dumps(value).encode())
)
part_heads = st.sampled_from(
    [
        'Content-Disposition: form-data; name="data"',
        'Content-Disposition: form-data; name="model_name"; filename="x"',
        "Content-Disposition: form-data",
        "Content-Transfer-Encoding: base64",
        "",
        "x",
    ]
)
bodies = (
    st.none()
    | st.binary(max_size=200)
    | json_bodies
    | st.lists(st.tuples(part_heads, st.binary(max_size=50)), max_size=4).map(multipart)
    | st.sampled_from(
        [b"[" * 90_000, b'{"url": "\\ud800"}', b'{"url":"noop.mar","model_name":"\\ud800"}', b"x" * 100_001]
    )
    | queries.map(str.encode)
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """The method and the bytes of a request that is well-formed HTTP."""
    method, path, query = draw(methods), draw(paths), draw(st.just("") | queries)
    target = f"{path}?{query}" if query else path
    given_headers = [pair for pair in draw(headers) if pair != ("Connection", "close")]
    data = encode(method, "/", [("Host", "test"), *given_headers], draw(bodies))
    # Latin-1 for header values, UTF-8 for nothing: what is left of a target is ASCII.
    return method, data.replace(b" / ", b" " + target.encode("ascii", "replace") + b" ", 1)


# -- what comes back ---------------------------------------------------------------------------------------------------


def exchange(address: Address, data: bytes, *, method: str | None = None) -> list[RawResponse]:
    """Send bytes and read what comes back.

    Args:
        address: Where.
        data: What to send.
        method: The method of the one request in `data`, which is answered; None for any bytes, which may not be: then
            the client ends its side, and the server must end the connection.
    """
    responses: list[RawResponse] = []
    with Client(address, DEADLINE) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.send(data)
            if method is None:
                client.socket.shutdown(socket.SHUT_WR)
        if method is not None:
            return [client.read_response(head=method == "HEAD")]
        # The deadline on the socket is the test: a hang is a TimeoutError here.
        with contextlib.suppress(ConnectionError):
            while True:
                responses.append(client.read_response())
    return responses


def assert_documented(response: RawResponse, sent: bytes) -> None:
    """See that an answer is none of the server's own failures."""
    assert re.fullmatch(rb"HTTP/1\.1 [1-5]\d\d [^\r\n]+", response.status_line), response.status_line
    if response.status < 500:
        return
    text = response.body.decode()
    known = _DOCUMENTED.get(response.status)
    assert known is not None, (response.status, text, sent[:300])
    assert known.match(response.json()["message"]), (response.status, text, sent[:300])


def assert_alive(server: Server) -> None:
    """See that the server does its work."""
    assert server.inference.get("/ping").status == 200
    assert server.metrics.get("/metrics").status == 200
    if server.management.get("/models/noop").status == 404:
        assert server.register("noop.mar", initial_workers=1).status == 200
    elif not server.ready_workers("noop"):
        url = "/models/noop?min_worker=1&synchronous=true"
        assert server.management.request("PUT", url).status == 200
    response = server.inference.request("POST", "/predictions/noop", (), b"x")
    assert (response.status, response.body) == (200, b"ok")


def clean(server: Server) -> None:
    """Remove what was registered."""
    for model in server.management.get("/models").json()["models"]:
        if model["modelName"] != "noop":
            server.management.request("DELETE", f"/models/{quote(model['modelName'], safe='')}?timeout=0")


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", LISTENERS)
def test_random_bytes(target: Server, listener: str) -> None:
    address: Address = getattr(target, listener).address

    @fuzz
    @given(data=st.binary(max_size=400))
    @example(data=b"\r\n" * 1000)
    @example(data=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    @example(data=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    @example(data=b"GET " + b"/" * 20_000)
    def send(data: bytes) -> None:
        for response in exchange(address, data):
            assert_documented(response, data)

    send()
    assert_alive(target)


@pytest.mark.parametrize("listener", LISTENERS)
def test_random_requests(target: Server, listener: str) -> None:
    address: Address = getattr(target, listener).address

    @fuzz
    @given(request=requests())
    def send(request: tuple[str, bytes]) -> None:
        method, data = request
        (response,) = exchange(address, data, method=method)
        assert_documented(response, data)

    send()
    clean(target)
    assert_alive(target)


@pytest.mark.parametrize("listener", LISTENERS)
def test_mutilated_requests(target: Server, listener: str) -> None:
    """Requests with bytes taken out, put in and repeated, one after the other on a connection."""
    address: Address = getattr(target, listener).address

    @fuzz
    @given(sent=st.lists(requests(), min_size=1, max_size=3), edits=st.lists(_edits, max_size=4))
    def send(sent: list[tuple[str, bytes]], edits: list[tuple[float, int, bytes]]) -> None:
        # A HEAD among them makes the answers ambiguous for a reader that does not know which one it is.
        data = b"".join(each for _, each in sent).replace(b"HEAD ", b"GET ")
        for at, removed, added in edits:
            start = int(at * len(data))
            data = data[:start] + added + data[start + removed :]
        for response in exchange(address, data):
            assert_documented(response, data)

    send()
    clean(target)
    assert_alive(target)


_edits = st.tuples(
    st.floats(0, 1), st.integers(0, 20), st.binary(max_size=5) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"\0", b": "])
)


@pytest.mark.parametrize("path", ["/predictions/noop", "/invocations?model_name=noop", "/models/noop/invoke"])
def test_random_bodies_are_the_handlers_to_judge(target: Server, path: str) -> None:
    """Every body that is no broken form reaches the handler, which takes anything."""

    @fuzz
    @given(
        body=st.binary(max_size=500) | json_bodies, kind=st.sampled_from(["application/json", "text/plain", "", "x"])
    )
    @example(body=b"[" * 90_000, kind="application/json")
    @example(body=b'"\\ud800"', kind="application/json")
    @example(body=b"9" * 10_000, kind="application/json")
    @example(body=b"NaN", kind="application/json")
    def send(body: bytes, kind: str) -> None:
        response = target.inference.request("POST", path, {"Content-Type": kind}, body)
        assert (response.status, response.body) == (200, b"ok")

    send()


@pytest.mark.parametrize("path", ["/predictions/noop", "/invocations?model_name=noop"])
def test_random_multipart_bodies(target: Server, path: str) -> None:
    @fuzz
    @given(
        body=st.binary(max_size=200)
        | st.lists(st.tuples(part_heads, st.binary(max_size=50)), max_size=4).map(multipart),
        cut=st.integers(0, 50) | st.just(0),
    )
    def send(body: bytes, cut: int) -> None:
        data = body[: len(body) - cut]
        content_type = {"Content-Type": "multipart/form-data; boundary=frontier"}
        response = target.inference.request("POST", path, content_type, data)
        assert response.status in {200, 400}, (response.body, data)

    send()
    assert_alive(target)


@pytest.mark.parametrize(
    "document",
    [
        '{"url": "\\ud800"}',
        '{"url": "noop.mar", "model_name": "\\ud800", "initial_workers": 0}',
        '{"url": "noop.mar", "model_name": "\\ud800", "initial_workers": 1}',
        '{"url": "noop.mar", "model_name": "odd", "handler": "\\ud800", "initial_workers": 1}',
        '{"url": "noop.mar", "model_name": "odd", "handler": "a\\u0000b", "initial_workers": 1}',
        '{"url": "a\\u0000b"}',
        '{"url": NaN}',
        '{"url": 1e400}',
        '{"url": "noop.mar", "batch_size": 1e300}',
        '{"url": ' + "9" * 5000 + "}",
        '{"url": ' + "[" * 50_000,
        "[" * 90_000,
        '{"a": ' * 10_000,
    ],
    ids=lambda document: document[:50],
)
def test_registrations_with_strange_json(target: Server, document: str) -> None:
    data = encode("POST", "/models", {"Content-Type": "application/json"}, document.encode())
    (response,) = exchange(target.management.address, data, method="POST")
    assert_documented(response, data)
    clean(target)
    assert {model["modelName"] for model in target.management.get("/models").json()["models"]} == {"noop"}
    assert_alive(target)


@pytest.mark.parametrize(
    "query",
    [
        "url=%00",
        "url=" + "a" * 3000,
        "url=http://[",
        "url=http://127.0.0.1:99999/x.mar",
        "url=http://127.0.0.1:1/x.mar",
        "url=http://%00/x.mar",
        "url=file:///",
        "url=file:///dev/zero",
        "url=file:///proc/self/mem",
        "url=noop.mar&model_name=" + "a" * 3000,
        "url=noop.mar&model_name=a%0Ab",
        "url=noop.mar&model_name=%00",
        "url=noop.mar&handler=%00&initial_workers=1&model_name=odd",
        "url=noop.mar&handler=..%2F..%2Fetc%2Fpasswd:x&initial_workers=1&model_name=odd",
        "url=noop.mar&batch_size=2147483647&model_name=odd&initial_workers=1",
        "url=noop.mar&response_timeout=2147483647&model_name=odd&initial_workers=1",
        "url=noop.mar&max_batch_delay=-5&model_name=odd&initial_workers=1",
    ],
    ids=lambda query: query[:50],
)
def test_registrations_with_strange_queries(target: Server, query: str) -> None:
    data = encode("POST", f"/models?{query}")
    (response,) = exchange(target.management.address, data, method="POST")
    assert_documented(response, data)
    clean(target)
    assert {model["modelName"] for model in target.management.get("/models").json()["models"]} == {"noop"}
    assert_alive(target)


@pytest.mark.parametrize(
    "config",
    [
        "big: 999999999999999999999999\n",
        'half: "\\ud800"\n',
        "when: 2026-11-20\nset: !!set {a, b}\nbytes: !!binary aGk=\n",
        "self: &self [*self]\n",
        "1: one\nnull: two\n? [a, b]\n: three\n",
        "not: [closed\n",
        "- a list\n",
        "\0",
        "deep: " + "[" * 5_000 + "]" * 5_000,
        "!!python/object/apply:os.system [exit]\n",
        "minWorkers: .nan\nmaxWorkers: .inf\nbatchSize: -9999999999999999999999\n",
    ],
    ids=lambda config: repr(config[:30]),
)
def test_strange_model_configs(target: Server, config: str) -> None:
    """A registration is answered, whatever stands in the archive's model-config.yaml, and leaves what it says."""
    url = add_model(target, "strange", "def handle(data, context):\n    return data and ['ok'] * len(data)\n", config)
    (response,) = exchange(
        target.management.address, encode("POST", f"/models?url={url}&initial_workers=1"), method="POST"
    )
    assert_documented(response, config.encode())
    if response.status == 200:
        answer = target.inference.request("POST", "/predictions/strange", (), b"x")
        assert (answer.status, answer.body) == (200, b"ok")
    clean(target)
    assert_alive(target)


@pytest.mark.parametrize("listener", LISTENERS)
def test_requests_made_from_the_description(target: Server, listener: str) -> None:
    """What the OpenAPI document allows, and what it does not: schemathesis makes both up."""
    address: Address = getattr(target, listener).address
    document = getattr(target, listener).request("OPTIONS", "/").json()
    if listener == "management":
        # Those that change something would start as many workers as schemathesis can count.
        for operations in document["paths"].values():
            for method in ("post", "put", "delete"):
                operations.pop(method, None)
    requests_library: Any = pytest.importorskip("requests")
    schema = schemathesis.openapi.from_dict(document)
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()

        @settings(fuzz, max_examples=100 if LONG else 10)
        @given(case=operation.as_strategy())
        def send(case: schemathesis.Case[Any]) -> None:
            # As the client library that it is meant for would send it.
            made: Any = requests_library.Request(**case.as_transport_kwargs(base_url="http://test")).prepare()
            body = made.body.encode() if isinstance(made.body, str) else made.body
            pairs = [(name, value) for name, value in made.headers.items() if name.lower() != "content-length"]
            data = encode(made.method, made.path_url, pairs, body)
            (response,) = exchange(address, data, method=made.method)
            assert_documented(response, data)

        send()
    assert_alive(target)
