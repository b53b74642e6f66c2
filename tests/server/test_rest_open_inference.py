"""The Open Inference Protocol over HTTP: rows 121 to 124 of rest_api.md §8, the protocol, and a client of others."""

from __future__ import annotations

import gzip
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.http as triton
from tests.support import open_inference
from tests.support.expect import NOT_FOUND, assert_body, assert_error, assert_json
from tritonclient.utils import InferenceServerException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.raw import RawResponse
    from tests.support.server import Server

JSON = {"Content-Type": "application/json"}
VERSIONING = {"error": "Model versioning is not yet supported."}
LENGTH = "Inference-Header-Content-Length"

VALUES = {
    "BOOL": np.array([[True, False], [False, True]]),
    "INT8": np.array([[-64, 63]], np.int8),
    "INT16": np.array([-(2**14), 5], np.int16),
    "INT32": np.array([-(2**30), 5], np.int32),
    "INT64": np.array([[-(2**62), 2**53 + 1]], np.int64),
    "UINT8": np.array([100], np.uint8),
    "UINT16": np.array([2**15 - 1], np.uint16),
    "UINT32": np.array([2**31 - 1], np.uint32),
    "UINT64": np.array([2**63 - 1], np.uint64),
    "FP16": np.array([0.5, -2.25], np.float16),
    "FP32": np.array([[0.1, -2.5], [1e20, 0.0]], np.float32),
    "FP64": np.array([0.1, -1e300]),
    "BYTES": np.array(["abc", "é中".encode(), b"\xff\x00", b""], np.object_),
}


def doubled(values: Any) -> Any:
    """What the handler makes of them."""
    if values.dtype == np.bool_:
        return ~values
    if values.dtype == np.object_:
        encoded = [value.encode() if isinstance(value, str) else value for value in values.ravel().tolist()]
        return np.array([value + b"!" for value in encoded], np.object_).reshape(values.shape)
    return values * 2


@pytest.fixture(scope="module")
def oip(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with the protocol on."""
    return open_inference.start(make_server, tmp_path_factory.mktemp("oip"))


@pytest.fixture
def client(oip: Server) -> Iterator[triton.InferenceServerClient]:
    """A client of Triton's, for that server."""
    made = triton.InferenceServerClient(oip.inference.url.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def post(server: Server, target: str, document: object, headers: dict[str, str] | None = None) -> RawResponse:
    return server.inference.request("POST", target, headers or JSON, json.dumps(document).encode())


def tensor(name: str, values: Any, datatype: str, *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def op(name: str, **more: object) -> dict[str, object]:
    """A request that makes the handler do something special."""
    tensors = [{"name": "a", "shape": [1], "datatype": "INT32", "data": [1]}]
    return {"inputs": tensors, "parameters": {"op": name, **more}}


def wants(document: dict[str, Any], *outputs: dict[str, object]) -> dict[str, Any]:
    return {**document, "outputs": list(outputs)}


# Rows of the conformance data


@pytest.mark.fix  # with a member more: the protocol's own
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_row_121_server_metadata(oip: Server, method: str) -> None:
    document = {
        "name": "Torchserve",
        "version": "0.12.0",
        "extenstion": ["kserve", "kubeflow"],
        "extensions": ["binary_tensor_data"],
    }
    assert_json(oip.inference.request(method, "/v2"), 200, document)


def test_row_121_server_metadata_as_torchserve_has_it(oip: Server) -> None:
    document = oip.inference.get("/v2").json()
    document.pop("extensions", None)
    assert document == {"name": "Torchserve", "version": "0.12.0", "extenstion": ["kserve", "kubeflow"]}


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_row_122_health(oip: Server, method: str) -> None:
    assert_json(oip.inference.request(method, "/v2/health/live"), 200, {"live": True}, 19)
    assert_json(oip.inference.request(method, "/v2/health/ready"), 200, {"ready": True}, 20)


@pytest.mark.parametrize("target", ["/a/b/c/d/versions", "/v2/models/oip/versions/1.0/explain", "/versions/2/3/4/5"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_row_123_paths_with_versions(oip: Server, method: str, target: str) -> None:
    assert_json(oip.inference.request(method, target), 501, VERSIONING, 56)


@pytest.mark.parametrize("target", ["/a/b/c/versions", "/v2/health", "/v2/models", "/v2/models/oip/config", "/v2/x"])
def test_paths_of_nobody(oip: Server, target: str) -> None:
    assert_error(oip.inference.get(target), 404, *NOT_FOUND)


@pytest.mark.parametrize(
    "target",
    ["/v2", "/v2/health/live", "/v2/models/noop", "/v2/models/noop/ready", "/v2/models/noop/versions/1.0/infer"],
)
def test_the_protocol_is_off_by_default(server: Server, target: str) -> None:
    assert_error(server.inference.get(target), 404, *NOT_FOUND)


@pytest.mark.parametrize(("variable", "status"), [("oip", 200), ("true", 404), ("OIP", 404)])
def test_the_variable_alone_decides(make_server: ServerFactory, variable: str, status: int) -> None:
    config = {"ts_open_inference_protocol": str(status == 404).lower()}
    made = make_server(config, env={"TS_OPEN_INFERENCE_PROTOCOL": variable})
    assert made.inference.get("/v2/health/live").status == status
    made.stop()


def test_infer_hands_the_body_on_and_the_answer_back(oip: Server) -> None:
    inputs = [{"name": "a", "shape": [2, 1], "datatype": "INT32", "data": [[1], [2]]}]
    response = post(oip, "/v2/models/oip/infer", {"id": "x", "inputs": inputs})
    outputs = [
        {"name": "a_out", "datatype": "INT32", "shape": [2, 1], "data": [2, 4]},
        {"name": "rows", "datatype": "INT32", "shape": [1], "data": [1]},
    ]
    document = {"id": "x", "model_name": "oip", "model_version": "1.0", "outputs": outputs}
    assert_body(response, 200, json.dumps(document, indent=2).encode())


def test_any_answer_is_passed_on(oip: Server) -> None:
    assert_body(post(oip, "/v2/models/oip/infer", op("text")), 200, b"ok")


def test_errors_of_the_old_route_are_as_ever(oip: Server) -> None:
    response = post(oip, "/v2/models/nope/infer", {"inputs": []})
    assert_error(response, 404, "ModelNotFoundException", "Model not found: nope", 92)
    response = post(oip, "/v2/models/oip/infer", op("raise"))
    assert_error(response, 503, "InternalServerException", "Prediction failed")


def test_forms_are_inputs_as_ever(server: Server, make_server: ServerFactory) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    made = make_server({"ts_open_inference_protocol": "true"})
    assert made.register("swiss_v1.mar", initial_workers=1).status == 200
    answers = [
        each.inference.request("POST", "/v2/models/swiss/infer", form, b"a=1&outputs=2").json()["row"]
        for each in (server, made)
    ]
    assert answers[0] == answers[1]
    made.stop()


# Metadata and readiness


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/v2/models/oip", "/v2/models/oip/versions/1.0", "/v2/models/oip/versions/2.0"])
def test_model_metadata(oip: Server, target: str) -> None:
    document = {"name": "oip", "versions": ["1.0", "2.0"], "platform": "", "inputs": [], "outputs": []}
    assert_json(oip.inference.get(target), 200, document)


@pytest.mark.fix
def test_declared_metadata(oip: Server) -> None:
    document = {
        "name": "oip_batch",
        "versions": ["1.0"],
        "platform": "numpy_python",
        "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "a_out", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert_json(oip.inference.get("/v2/models/oip_batch"), 200, document)
    strange = oip.inference.get("/v2/models/oip_strange").json()
    assert strange == {"name": "oip_strange", "versions": ["1.0"], "platform": "", "inputs": [], "outputs": []}


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/v2/models/oip/ready", "/v2/models/oip/versions/2.0/ready"])
def test_model_ready(oip: Server, target: str) -> None:
    assert_json(oip.inference.get(target), 200, {"name": "oip", "ready": True})


@pytest.mark.fix
def test_model_not_ready(make_server: ServerFactory) -> None:
    made = make_server({"ts_open_inference_protocol": "true"})
    gate = made.gate("slowinit")
    assert made.register("slowinit.mar", initial_workers=1, synchronous="false").status == 202
    assert_json(made.inference.get("/v2/models/slowinit/ready"), 503, {"name": "slowinit", "ready": False})
    gate.open()
    made.wait_ready("slowinit")
    assert_json(made.inference.get("/v2/models/slowinit/ready"), 200, {"name": "slowinit", "ready": True})
    made.stop()


@pytest.mark.fix
@pytest.mark.parametrize("verb", ["", "/ready", "/infer"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v2/models/nope{}", "Model not found: nope"),
        ("/v2/models/oip/versions/9{}", "Model version: 9 does not exist for model: oip"),
    ],
)
def test_unknown_models_and_versions(oip: Server, path: str, message: str, verb: str) -> None:
    method = "POST" if verb == "/infer" else "GET"
    headers = {**JSON, LENGTH: "2"}
    assert_json(oip.inference.request(method, path.format(verb), headers, b"{}"), 404, {"error": message})


@pytest.mark.fix
@pytest.mark.parametrize("target", ["/v2/models/oip", "/v2/models/oip/ready"])
def test_wrong_method(oip: Server, target: str) -> None:
    response = oip.inference.request("POST", target)
    message = "Requested method is not allowed, please refer to API document."
    assert_json(response, 405, {"error": message})


# Inference beyond TorchServe's


@pytest.mark.fix
def test_infer_with_a_version(oip: Server) -> None:
    inputs = [{"name": "a", "shape": [1], "datatype": "FP32", "data": [1.5]}]
    for version in ("1.0", "2.0"):
        document = post(oip, f"/v2/models/oip/versions/{version}/infer", {"inputs": inputs}).json()
        assert (document["model_version"], document["outputs"][0]["data"]) == (version, [3.0])
    response = oip.inference.request("OPTIONS", "/v2/models/oip/versions/2.0/infer")
    assert (response.status, response.json()["openapi"]) == (200, "3.0.1")
    response = post(oip, "/v2/models/oip/versions/1.0/infer", op("raise"))
    assert_json(response, 503, {"error": "Prediction failed"})


@pytest.mark.fix
def test_a_body_without_content_type_is_json(oip: Server) -> None:
    inputs = [{"name": "a", "shape": [1], "datatype": "INT32", "data": [1]}]
    body = json.dumps({"inputs": inputs, "parameters": {"op": "show"}}).encode()
    response = oip.inference.request("POST", "/v2/models/oip/infer", {}, body)
    assert json.loads(response.json()["outputs"][0]["data"][0])["inputs"] == inputs


@pytest.mark.fix
def test_requested_outputs(oip: Server) -> None:
    inputs = [{"name": name, "shape": [1], "datatype": "INT32", "data": [1]} for name in ("a", "b")]
    document = wants({"inputs": inputs}, {"name": "rows"}, {"name": "a_out"})
    response = post(oip, "/v2/models/oip/infer", document)
    assert response.header("content-type") == "application/json"
    outputs = response.json()["outputs"]
    assert [output["name"] for output in outputs] == ["rows", "a_out"]
    document = wants({"inputs": inputs}, {"name": "c"})
    message = "Model oip gave no output c; it gave a_out, b_out, rows."
    assert_json(post(oip, "/v2/models/oip/infer", document), 400, {"error": message})


@pytest.mark.fix
def test_an_answer_of_another_kind_is_passed_on_unless_binary_data_is_wanted(oip: Server) -> None:
    document = wants(op("text"), {"name": "o"})
    assert_body(post(oip, "/v2/models/oip/infer", document), 200, b"ok")
    response = post(oip, "/v2/models/oip/infer", wants(op("text"), {"name": "o", "parameters": {"binary_data": True}}))
    assert response.status == 500
    message = "Model oip gave an answer that the Open Inference Protocol does not allow: it is not JSON: "
    assert response.json()["error"].startswith(message)
    assert_json(post(oip, "/v2/models/oip/infer", op("raise", binary_data_output=True)), 503, FAILED)


FAILED = {"error": "Prediction failed"}


@pytest.mark.fix
def test_binary_data_on_the_wire(oip: Server) -> None:
    head = {
        "id": "7",
        "inputs": [
            {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8, "scale": 1}},
            {"name": "b", "shape": [1], "datatype": "INT32", "data": [3]},
            {"name": "c", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 10}},
        ],
        "outputs": [
            {"name": "c_out", "parameters": {"binary_data": True}},
            {"name": "b_out", "parameters": {"binary_data": False}},
            {"name": "a_out"},
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head).encode()
    body = text + struct.pack("<2f", 0.5, 4) + b"\x02\0\0\0xy\0\0\0\0"
    response = oip.inference.request("POST", "/v2/models/oip/infer", {LENGTH: str(len(text))}, body)
    assert (response.status, response.header("content-type")) == (200, "application/octet-stream")
    length = int(response.header(LENGTH) or 0)
    assert json.loads(response.body[:length]) == {
        "model_name": "oip",
        "model_version": "1.0",
        "id": "7",
        "outputs": [
            {"name": "c_out", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 12}},
            {"name": "b_out", "datatype": "INT32", "shape": [1], "data": [6]},
            {"name": "a_out", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        ],
    }
    assert response.body[length:] == b"\x03\0\0\0xy!\x01\0\0\0!" + struct.pack("<2f", 1, 8)


@pytest.mark.fix
def test_the_handler_gets_binary_data_as_json(oip: Server) -> None:
    head = {
        "inputs": [{"name": "a", "shape": [2, 1], "datatype": "INT16", "parameters": {"binary_data_size": 4}}],
        "parameters": {"op": "show", "x": [1]},
    }
    text = json.dumps(head).encode()
    response = oip.inference.request("POST", "/v2/models/oip/infer", {LENGTH: str(len(text))}, text + b"\x01\0\xff\xff")
    assert json.loads(response.json()["outputs"][0]["data"][0]) == {
        "id": "",
        "model_name": "oip",
        "inputs": [{"name": "a", "shape": [2, 1], "datatype": "INT16", "data": [1, -1]}],
        "parameters": head["parameters"],
    }


@pytest.mark.fix
@pytest.mark.parametrize(
    ("length", "head", "rest", "message"),
    [
        ("x", b"{}", b"", "Inference-Header-Content-Length is not a number of bytes."),
        ("9", b"{}", b"", "Inference-Header-Content-Length is 9, but the body has 2 bytes."),
        ("2", b"[]", b"", "The request is not a JSON object."),
        ("2", b"{}", b"", "The request's inputs are not a list of JSON objects."),
        ("13", b'{"inputs":[]}', b"abc", "3 bytes of binary data belong to no input."),
        (
            "13",
            b'{"inputs":[1]',
            b"",
            "The request is not valid JSON: Expecting ',' delimiter: line 1 column 14 (char 13)",
        ),
    ],
)
def test_malformed_requests(oip: Server, length: str, head: bytes, rest: bytes, message: str) -> None:
    response = oip.inference.request("POST", "/v2/models/oip/infer", {LENGTH: length}, head + rest)
    assert response.status == 400
    assert response.json()["error"].startswith(message)


@pytest.mark.fix
@pytest.mark.parametrize(
    ("datatype", "size", "data", "message"),
    [
        ("FP32", 8, b"12345678", "FP32 of shape [3] has 12 bytes, but 8 were given."),
        ("FP32", 12, b"12345678", "binary_data_size is 12, but 8 bytes are left."),
        ("FP32", -1, b"", "binary_data_size must be a number of bytes."),
        ("BYTES", 3, b"123", "the BYTES end within the length of element 0."),
        ("BYTES", 5, b"\x02\0\0\0x", "the BYTES end within element 0."),
        ("BYTES", 5, b"\x01\0\0\0x", "shape [3] has 3 elements, but 1 were given."),
    ],
)
def test_malformed_tensors(oip: Server, datatype: str, size: int, data: bytes, message: str) -> None:
    parameters = {"binary_data_size": size}
    head = {"inputs": [{"name": "a", "shape": [3], "datatype": datatype, "parameters": parameters}]}
    text = json.dumps(head).encode()
    response = oip.inference.request("POST", "/v2/models/oip/infer", {LENGTH: str(len(text))}, text + data)
    assert_json(response, 400, {"error": f"Tensor a: {message}"})


@pytest.mark.fix
def test_an_answer_in_pieces_is_put_together(oip: Server) -> None:
    response = post(oip, "/v2/models/oip/infer", wants(op("pieces"), {"name": "seen"}))
    assert (response.header("content-type"), response.header("ts_stream_next")) == ("application/json", None)
    assert [output["name"] for output in response.json()["outputs"]] == ["seen"]
    response = post(oip, "/v2/models/oip/infer", op("pieces"))
    assert response.header("ts_stream_next") == "true"
    assert [output["name"] for output in response.json()["outputs"]] == ["seen"]


# Triton's client


@pytest.mark.fix
def test_client_health_and_metadata(oip: Server, client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("oip")
    assert client.is_model_ready("oip", "2.0")
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    assert client.get_model_metadata("oip_batch")["inputs"][0]["name"] == "a"
    with pytest.raises(InferenceServerException, match="Model not found: nope"):
        client.get_model_metadata("nope")


@pytest.mark.fix
@pytest.mark.parametrize("datatype", VALUES)
@pytest.mark.parametrize("binary_output", [True, False])
@pytest.mark.parametrize("binary_input", [True, False])
def test_client_infer(
    client: triton.InferenceServerClient, binary_input: bool, binary_output: bool, datatype: str
) -> None:
    values = VALUES[datatype]
    if datatype == "BYTES" and not (binary_input and binary_output):
        values = np.array(["abc", "é中", ""], np.object_)
    outputs = [triton.InferRequestedOutput("a_out", binary_data=binary_output)]
    result = client.infer("oip", [tensor("a", values, datatype, binary=binary_input)], outputs=outputs, request_id="5")
    expected = doubled(values)
    got = result.as_numpy("a_out")
    if datatype == "BYTES" and not binary_output:
        got = np.array([value.encode() for value in got], np.object_)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    assert result.get_response()["id"] == "5"
    assert result.as_numpy("rows") is None


@pytest.mark.fix
def test_client_infer_without_naming_outputs(client: triton.InferenceServerClient) -> None:
    inputs = [tensor("a", VALUES["FP32"], "FP32"), tensor("b", np.array([], np.int64), "INT64")]
    result = client.infer("oip", inputs, model_version="2.0")
    np.testing.assert_array_equal(result.as_numpy("a_out"), doubled(VALUES["FP32"]))
    assert result.as_numpy("b_out").shape == (0,)
    assert result.get_response()["model_version"] == "2.0"


@pytest.mark.fix
def test_client_infer_nan(client: triton.InferenceServerClient) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    for binary in (True, False):
        result = client.infer("oip", [tensor("a", values, "FP32", binary=binary)])
        np.testing.assert_array_equal(result.as_numpy("a_out"), values * 2)


@pytest.mark.fix
def test_client_infer_in_a_batch(client: triton.InferenceServerClient) -> None:
    requests = [np.full((2, 2), index, np.float32) for index in range(4)]
    pending = [client.async_infer("oip_batch", [tensor("a", values, "FP32")]) for values in requests]
    results = [each.get_result() for each in pending]
    for values, result in zip(requests, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("a_out"), values * 2)
    assert {int(result.as_numpy("rows")[0]) for result in results} == {4}


@pytest.mark.fix
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_client_infer_compressed(client: triton.InferenceServerClient, algorithm: str) -> None:
    inputs = [tensor("a", VALUES["FP32"], "FP32")]
    result = client.infer("oip", inputs, request_compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("a_out"), doubled(VALUES["FP32"]))


@pytest.mark.fix
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no gzip", "The body cannot be decompressed: "),
        (gzip.compress(b"x" * 100)[:-10], "The compressed body ends too early."),
        (gzip.compress(b"x" * 7_000_000), "The body has more than max_request_size 6553500 bytes."),
    ],
    ids=["no gzip", "cut off", "too large"],
)
def test_bad_compression(oip: Server, body: bytes, message: str) -> None:
    headers = {LENGTH: "2", "Content-Encoding": "gzip"}
    response = oip.inference.request("POST", "/v2/models/oip/infer", headers, body)
    assert response.status == 400
    assert response.json()["error"].startswith(message)


@pytest.mark.fix
def test_client_sees_errors(client: triton.InferenceServerClient) -> None:
    inputs = [tensor("a", VALUES["INT32"], "INT32")]
    with pytest.raises(InferenceServerException, match=r"\[503\] Prediction failed"):
        client.infer("oip", inputs, parameters={"op": "raise"})
    with pytest.raises(InferenceServerException, match="Model not found: nope"):
        client.infer("nope", inputs)


@pytest.mark.fix
def test_tokens(make_server: ServerFactory) -> None:
    made = make_server({"ts_open_inference_protocol": "true", "disable_token_authorization": "false"})
    for target in ("/v2", "/v2/health/live", "/v2/models/m", "/a/b/c/d/versions"):
        assert made.inference.get(target).json()["type"] == "InvalidKeyException"
    bearer = made.bearer("inference")
    assert made.inference.get("/v2/health/live", bearer).status == 200
    assert made.inference.get("/a/b/c/d/versions", bearer).status == 501
    made.stop()
