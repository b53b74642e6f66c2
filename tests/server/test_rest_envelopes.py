"""Request envelopes (rest_api.md §3.6, and §8.3 rows 125 to 128)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.archives import contents, write_mar
from tests.support.expect import assert_body, assert_error
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import ServerFactory
    from tests.support.raw import RawResponse
    from tests.support.server import Server

FAILURE = "InternalServerException"
BUILT_IN = ["body", "json", "kserve", "kservev2"]
JSON = {"content-type": "application/json"}
INSTANCES = {"instances": [[1, 2], [3, 4]]}
FIXED = "batchSize: 2\nmaxBatchDelay: 60000\nbatchPolicy: fixed\n"
OWN = b"""
from ts.torch_handler.request_envelope.base import BaseEnvelope

class Own(BaseEnvelope):
    def parse_input(self, data):
        return [sorted(row) for row in data]

    def format_output(self, data):
        return [{"own": each} for each in data]
"""


@pytest.fixture(scope="module")
def enveloped(make_server: ServerFactory) -> Iterator[Callable[[str], Server]]:
    """Return the server with an envelope; its model `nums` answers with the rows that it gets."""
    servers: dict[str, Server] = {}

    def start(envelope: str) -> Server:
        if envelope not in servers:
            server = servers[envelope] = make_server({"service_envelope": envelope})
            write_mar(server.store / "nums.mar", contents("nums", "nums"))
            write_mar(server.store / "batched.mar", contents("batched", "nums", config=FIXED))
            write_mar(server.store / "own.mar", {**contents("own", "nums"), "own_envelope.py": OWN})
            if envelope in BUILT_IN:
                assert server.register("nums.mar", initial_workers=1).status == 200
        return servers[envelope]

    yield start
    for server in servers.values():
        server.stop()


def post(server: Server, target: str, body: Any, **headers: str) -> RawResponse:
    """POST a document as JSON; the keywords are headers, `x_op` for `x-op`."""
    more = {key.replace("_", "-"): value for key, value in headers.items()}
    return server.inference.request("POST", target, {**JSON, **more}, json.dumps(body).encode())


def post_together(server: Server, requests: list[tuple[str, Any]], **headers: str) -> list[RawResponse]:
    """POST to the model `batched`, which gets the requests in one batch; the header `x-name` numbers them."""
    with server.registered("batched.mar", "batched", initial_workers=1), ThreadPoolExecutor(len(requests)) as clients:
        futures = [
            clients.submit(post, server, target, body, x_name=str(number), **headers)
            for number, (target, body) in enumerate(requests)
        ]
        return [future.result() for future in futures]


def assert_answer(response: RawResponse, document: Any, length: int | None = None) -> None:
    """Check a handler's JSON answer, to the byte; `length` is the figure of the conformance table."""
    assert_body(response, 200, json.dumps(document, indent=2).encode())
    assert length in {None, len(response.body)}


def assert_failed(response: RawResponse, message: str = "Prediction failed") -> None:
    assert_error(response, 503, FAILURE, message)


def tensor(*data: Any, name: str = "input-0", datatype: str = "INT64") -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": list(data)}


def outputs(*given: tuple[str, str, list[Any]], identifier: str | None, model: str = "nums") -> dict[str, Any]:
    """Return an answer of `kservev2`, with outputs of these names, datatypes and data."""
    return {
        "id": identifier,
        "model_name": model,
        "model_version": "1.0",
        "outputs": [
            {"name": name, "datatype": datatype, "data": data, "shape": [len(data)]} for name, datatype, data in given
        ],
    }


# The conformance data


def test_row_125_kserve_predictions(enveloped: Callable[[str], Server]) -> None:
    response = post(enveloped("kserve"), "/v1/models/nums:predict", INSTANCES)
    assert_answer(response, {"predictions": [[1, 2], [3, 4]]}, 85)


def test_row_126_kserve_explanations(enveloped: Callable[[str], Server]) -> None:
    response = post(enveloped("kserve"), "/v1/models/nums:explain", INSTANCES)
    assert_answer(response, {"explanations": [[1, 2], [3, 4]]}, 86)


def test_row_127_kservev2(enveloped: Callable[[str], Server]) -> None:
    body = {"id": "abc", "inputs": [{**tensor(1, 2, 3, 4), "shape": [2, 2]}]}
    response = post(enveloped("kservev2"), "/v2/models/nums/infer", body, x_op="data")
    assert_answer(response, outputs(("input-0", "INT64", [1, 2, 3, 4]), identifier="abc"), 254)


def test_row_128_json(enveloped: Callable[[str], Server]) -> None:
    response = post(enveloped("json"), "/v1/models/nums:predict", INSTANCES)
    assert_body(response, 200, b'{"predictions": [[1, 2], [3, 4]]}')
    assert response.header("content-length") == "33"


# body


def test_body(enveloped: Callable[[str], Server]) -> None:
    server = enveloped("body")
    assert_body(server.inference.request("POST", "/predictions/nums", {}, b"abc"), 200, b"abc")
    assert_answer(post(server, "/predictions/nums", INSTANCES), INSTANCES)
    form = {"content-type": "application/x-www-form-urlencoded"}
    for fields, value in ((b"data=d&body=b", b"d"), (b"data=&body=b", b"b"), (b"other=o", b"null")):
        assert_body(server.inference.request("POST", "/predictions/nums", form, fields), 200, value)


# json


def test_json_base64(enveloped: Callable[[str], Server]) -> None:
    instances = [{"b64": "aGk="}, {"image": {"b64": "eW8="}, "n": 1}]
    response = post(enveloped("json"), "/predictions/nums", {"instances": instances}, x_op="repr")
    assert_body(response, 200, b"""{"predictions": ["b'hi'", "{'image': b'yo', 'n': 1}"]}""")


@pytest.mark.parametrize("body", [{"instances": []}, {"other": [1]}, [1], None])
def test_json_without_instances(enveloped: Callable[[str], Server], body: Any) -> None:
    assert_failed(post(enveloped("json"), "/predictions/nums", body))


def test_json_needs_its_content_type(enveloped: Callable[[str], Server]) -> None:
    body = json.dumps(INSTANCES).encode()
    assert_failed(enveloped("json").inference.request("POST", "/predictions/nums", {}, body))


def test_json_batch(enveloped: Callable[[str], Server]) -> None:
    requests = [("/predictions/batched", {"instances": [1]}), ("/v1/models/batched:predict", {"instances": [2, 3]})]
    first, second = post_together(enveloped("json"), requests, x_op="requests")
    assert [len(json.loads(answer.body)["predictions"]) for answer in (first, second)] == [1, 2]
    assert all("'0'" in answer.body.decode() and "'1'" in answer.body.decode() for answer in (first, second))


# kserve


@pytest.mark.parametrize("target", ["/predictions/nums", "/models/nums/invoke", "/v2/models/nums/infer"])
def test_kserve_on_every_route(enveloped: Callable[[str], Server], target: str) -> None:
    assert_answer(post(enveloped("kserve"), target, INSTANCES), {"predictions": [[1, 2], [3, 4]]})


def test_kserve_decodes_bytes_alone(enveloped: Callable[[str], Server]) -> None:
    server, body = enveloped("kserve"), json.dumps(INSTANCES).encode()
    response = server.inference.request("POST", "/v1/models/nums:predict", {}, body)
    assert_answer(response, {"predictions": [[1, 2], [3, 4]]})
    assert_failed(server.inference.request("POST", "/v1/models/nums:predict", {"content-type": "text/plain"}, body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"instances": []}, "number of batch response mismatched"),
        ({}, "Invalid model predict output"),
        ([1], "Prediction failed"),
        (None, "Prediction failed"),
    ],
)
def test_kserve_without_instances(enveloped: Callable[[str], Server], body: Any, message: str) -> None:
    assert_failed(post(enveloped("kserve"), "/v1/models/nums:predict", body), message)


@pytest.mark.parametrize("result", [[1, 2, 3], {"a": 1}, "text"])
def test_kserve_wraps_any_result(enveloped: Callable[[str], Server], result: Any) -> None:
    server = enveloped("kserve")
    response = post(server, "/v1/models/nums:predict", INSTANCES, x_op="result", x_result=json.dumps(result))
    assert_answer(response, {"predictions": result})


@pytest.mark.fix
def test_kserve_batch(enveloped: Callable[[str], Server]) -> None:
    """Predictions go to the handler together: each row is told of both requests."""
    target = "/v1/models/batched:predict"
    requests = [(target, {"instances": [10]}), (target, {"instances": [20, 30]})]
    first, second = post_together(enveloped("kserve"), requests, x_op="requests")
    seen = first.json()["predictions"] + second.json()["predictions"]
    assert [row.rpartition(" ")[2] for row in seen] == ["10]", "20]", "30]"]
    assert {row.rpartition(",")[0] for row in seen} in ({"[['0', '1']"}, {"[['1', '0']"})


@pytest.mark.fix
def test_kserve_batch_of_prediction_and_explanation(enveloped: Callable[[str], Server]) -> None:
    requests = [("/v1/models/batched:predict", {"instances": [1]}), ("/v1/models/batched:explain", {"instances": [2]})]
    first, second = post_together(enveloped("kserve"), requests, x_op="requests")
    assert_answer(first, {"predictions": ["[['0'], 1]"]})
    assert_answer(second, {"explanations": ["[['1'], 2]"]})


# kservev2


def test_kservev2_inputs(enveloped: Callable[[str], Server]) -> None:
    inputs = [{**tensor(1, 2, 3, 4, name="a"), "shape": [2, -1]}, tensor("x", "y", name="b", datatype="BYTES")]
    answer = post(enveloped("kservev2"), "/predictions/nums", {"id": "i", "inputs": inputs}, x_op="repr").json()
    (first,), (second,) = (output["data"] for output in answer["outputs"])
    assert first == "{'name': 'a', 'shape': [2, -1], 'datatype': 'INT64', 'data': [[1, 2], [3, 4]]}"
    assert second == "{'name': 'b', 'shape': [2], 'datatype': 'BYTES', 'data': 'x'}"


@pytest.mark.parametrize("identifier", [{}, {"id": ""}, {"id": " "}, {"id": None}])
def test_kservev2_without_id(enveloped: Callable[[str], Server], identifier: dict[str, Any]) -> None:
    body = {**identifier, "inputs": [tensor(1)]}
    response = post(enveloped("kservev2"), "/v2/models/nums/infer", body, x_op="data")
    assert_answer(response, outputs(("input-0", "INT64", [1]), identifier=response.header("x-request-id")))


@pytest.mark.parametrize(
    ("kind", "values", "datatype", "data"),
    [
        ("bool", [1, 0], "BOOL", [True, False]),
        ("uint8", [[1, 2]], "UINT8", [1, 2]),
        ("float16", [1], "FP16", [1.0]),
        ("float32", [0.1], "FP32", [0.10000000149011612]),
        ("U3", ["ab"], "BYTES", ["ab"]),
        ("object", [None], "BYTES", [None]),
    ],
)
def test_kservev2_datatypes(
    enveloped: Callable[[str], Server], kind: str, values: Any, datatype: str, data: list[Any]
) -> None:
    headers = {"x_op": "numpy", "x_dtype": kind, "x_result": json.dumps(values)}
    body = {"id": "i", "inputs": [tensor(1)]}
    response = post(enveloped("kservev2"), "/v2/models/nums/infer", body, **headers)
    assert_answer(response, outputs(("input-0", datatype, data), identifier="i"))


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [{**tensor(1, 2, 3), "shape": [2, 2]}]},
        {"inputs": [tensor(datatype="BYTES")]},
        {"inputs": [{"name": "a", "shape": [1], "data": [1]}]},
        {"id": 7, "inputs": [tensor(1)]},
        {"instances": [1]},
        [1],
    ],
)
def test_kservev2_refuses(enveloped: Callable[[str], Server], body: Any) -> None:
    assert_failed(post(enveloped("kservev2"), "/v2/models/nums/infer", body, x_op="data"))


def test_kservev2_empty(enveloped: Callable[[str], Server]) -> None:
    response = post(enveloped("kservev2"), "/v2/models/nums/infer", {"inputs": []})
    assert_failed(response, "number of batch response mismatched")


def test_kservev2_names_the_model_as_its_archive_does(enveloped: Callable[[str], Server]) -> None:
    server = enveloped("kservev2")
    with server.registered("nums.mar", "renamed", initial_workers=1):
        response = post(server, "/v2/models/renamed/infer", {"id": "i", "inputs": [tensor(1)]}, x_op="data")
    assert_answer(response, outputs(("input-0", "INT64", [1]), identifier="i"))


@pytest.mark.fix
def test_kservev2_id_does_not_leak(enveloped: Callable[[str], Server]) -> None:
    server, target = enveloped("kservev2"), "/v2/models/nums/infer"
    assert_failed(post(server, target, {"id": "stale", "inputs": [tensor(1, name="old")]}, x_op="raise"))
    response = post(server, target, {"inputs": [tensor(1)]}, x_op="parked")
    parked = "['absent', ['input-0']]"
    assert_answer(response, outputs(("input-0", "BYTES", [parked]), identifier=response.header("x-request-id")))


@pytest.mark.fix
def test_kservev2_batch(enveloped: Callable[[str], Server]) -> None:
    """Each request is handled as if it were alone."""
    target = "/v2/models/batched/infer"
    bodies = [{"id": "a", "inputs": [tensor(1)]}, {"inputs": [tensor(2, name="b"), tensor(3, name="c")]}]
    first, second = post_together(enveloped("kservev2"), [(target, body) for body in bodies], x_op="data")
    assert_answer(first, outputs(("input-0", "INT64", [1]), identifier="a", model="batched"))
    identifier = second.header("x-request-id")
    assert_answer(second, outputs(("b", "INT64", [2]), ("c", "INT64", [3]), identifier=identifier, model="batched"))


# All of them, and none of them


@pytest.mark.fix
@pytest.mark.parametrize("envelope", BUILT_IN)
def test_describe_bypasses_the_envelope(enveloped: Callable[[str], Server], envelope: str) -> None:
    response = enveloped(envelope).management.get("/models/nums?customized=true")
    assert response.status == 200
    assert response.json()[0]["customizedMetadata"] == {"rows": [{}]}


@pytest.mark.fix
def test_own_envelope(enveloped: Callable[[str], Server]) -> None:
    server = enveloped("own_envelope:Own")
    with server.registered("own.mar", "own", initial_workers=1):
        assert_answer(post(server, "/predictions/own", INSTANCES), {"own": ["body"]})


def test_unknown_envelope(enveloped: Callable[[str], Server]) -> None:
    server = enveloped("unknown")
    response = server.register("nums.mar", initial_workers=1)
    assert_error(response, 500, FAILURE, "Failed to start workers for model nums version: 1.0")
    assert server.management.get("/models/nums").status == 404


@pytest.mark.fix
def test_unknown_envelope_is_named_in_the_log(enveloped: Callable[[str], Server]) -> None:
    server = enveloped("unknown")
    server.register("nums.mar", initial_workers=1)
    message = "service_envelope=unknown: known are body, json, kserve, kservev2 and module:Class"
    wait_for("the reason in the log", lambda: message in server.log)
