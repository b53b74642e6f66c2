"""The Open Inference Protocol over gRPC: rows 154 to 160 of grpc_api.md §11, the protocol, and a client of others.

The rows name what to do by the request's id, as TorchServe drops parameters.
"""

from __future__ import annotations

import json
import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.support import open_inference
from tests.support.grpc_api import BAD_REQUEST, ISE, MNF, MVNF, OPEN_INFERENCE, REFUSED, expect_error, no_worker
from tests.support.server import is_reference
from tests.support.waiting import wait_for
from tritonclient.utils import InferenceServerException

from relight.protos import open_inference_grpc_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Server

INTERNAL = grpc.StatusCode.INTERNAL
NOT_FOUND = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
OFFICIAL = "inference.GRPCInferenceService"

# Of each datatype: its field, values, and what they come back as.
TYPED: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**53 + 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [2**16 - 1]),
    "UINT32": ("uint_contents", [2**31 - 1]),
    "UINT64": ("uint64_contents", [2**63 - 1]),
    "FP32": ("fp32_contents", [0.5, -2.25]),
    "FP64": ("fp64_contents", [0.1, -1e300]),
}


@pytest.fixture(scope="module")
def oip(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with the protocol on."""
    return open_inference.start(make_server, tmp_path_factory.mktemp("oip"))


@pytest.fixture
def api(oip: Server, connect: Connect) -> Api:
    """Clients of that server."""
    return connect(oip)


@pytest.fixture
def client(oip: Server) -> Iterator[triton.InferenceServerClient]:
    """A client of Triton's, for that server; it calls the service by the protocol's own name."""
    made = triton.InferenceServerClient(f"127.0.0.1:{oip.config['grpc_inference_port']}")
    yield made
    made.close()


def request(
    datatype: str, values: list[Any], shape: list[int] | None = None, field: str = "", **more: Any
) -> pb.ModelInferRequest:
    """A request with one typed tensor."""
    contents = pb.InferTensorContents(**{field or TYPED[datatype][0]: values})
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="a", datatype=datatype, shape=[len(values)] if shape is None else shape, contents=contents
    )
    return pb.ModelInferRequest(**{"model_name": "oip", "id": "5", "inputs": [tensor], **more})


def raw_request(datatype: str, raw: bytes, shape: list[int], **more: Any) -> pb.ModelInferRequest:
    """A request with one tensor in raw form."""
    tensor = pb.ModelInferRequest.InferInputTensor(name="a", datatype=datatype, shape=shape)
    fields = {"model_name": "oip", "inputs": [tensor], "raw_input_contents": [raw], **more}
    return pb.ModelInferRequest(**fields)


def infer(api: Api, message: pb.ModelInferRequest, *, official: bool = False) -> pb.ModelInferResponse:
    if official:
        answer = api.raw(f"/{OFFICIAL}/ModelInfer", message.SerializeToString())
        return pb.ModelInferResponse.FromString(answer)
    return api.open_inference.ModelInfer(message, timeout=60)


def seen(answer: pb.ModelInferResponse) -> Any:
    """What the handler got, from its answer to the op `show`."""
    (contents,) = answer.outputs[0].contents.bytes_contents
    document = json.loads(contents)
    return json.loads(document) if isinstance(document, str) else document


def worker_ids(server: Server) -> list[str]:
    return [worker["id"] for worker in server.ready_workers("oip")]


# Rows 154 to 156


def test_row_154_server(api: Api) -> None:
    assert api.open_inference.ServerLive(pb.ServerLiveRequest()).live
    assert api.open_inference.ServerReady(pb.ServerReadyRequest()).ready


@pytest.mark.fix
def test_row_154_server_metadata(api: Api) -> None:
    answer = api.open_inference.ServerMetadata(pb.ServerMetadataRequest())
    assert (answer.name, answer.version, list(answer.extensions)) == ("torchserve", "0.12.0", [])


def test_row_155_model_ready(api: Api) -> None:
    ready = api.open_inference.ModelReady
    assert ready(pb.ModelReadyRequest(name="oip")).ready
    assert ready(pb.ModelReadyRequest(name="oip", version="2.0")).ready
    assert ready(pb.ModelReadyRequest(name="oip_strange")).ready
    with expect_error(INTERNAL, f"Parameter name is required.\n{BAD_REQUEST}"):
        ready(pb.ModelReadyRequest())
    with expect_error(NOT_FOUND, f"Model not found: nope\n{MNF}"):
        ready(pb.ModelReadyRequest(name="nope"))
    with expect_error(NOT_FOUND, f"Model version: 9 does not exist for model: oip\n{MVNF}"):
        ready(pb.ModelReadyRequest(name="oip", version="9"))


def test_row_155_a_model_that_loads_is_ready(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"ts_open_inference_protocol": "true"})
    gate = server.gate("slowinit")
    assert server.register("slowinit.mar", initial_workers=1, synchronous="false").status == 202
    gate.wait_arrived()
    api = connect(server)
    assert api.open_inference.ModelReady(pb.ModelReadyRequest(name="slowinit")).ready
    if not is_reference():
        official = f"/{OFFICIAL}/ModelReady"
        message = pb.ModelReadyRequest(name="slowinit").SerializeToString()
        assert not pb.ModelReadyResponse.FromString(api.raw(official, message)).ready
        gate.open()
        server.wait_ready("slowinit")
        assert pb.ModelReadyResponse.FromString(api.raw(official, message)).ready
    gate.open()
    server.stop()


def test_row_155_a_model_that_cannot_load_is_not_ready(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"ts_open_inference_protocol": "true"})
    assert server.register("badretry.mar", initial_workers=1, synchronous="false").status == 202
    ready = connect(server).open_inference.ModelReady
    wait_for("not ready", lambda: not ready(pb.ModelReadyRequest(name="badretry")).ready)
    server.stop()


def test_row_156_model_metadata(api: Api) -> None:
    metadata = api.open_inference.ModelMetadata
    answer = metadata(pb.ModelMetadataRequest(name="oip"))
    assert (answer.name, sorted(answer.versions)) == ("oip", ["1.0", "2.0"])
    assert (answer.platform, list(answer.inputs), list(answer.outputs)) == ("", [], [])
    with expect_error(INTERNAL, f"Parameter model_name is required.\n{BAD_REQUEST}"):
        metadata(pb.ModelMetadataRequest())
    with expect_error(NOT_FOUND, f"Model not found: nope\n{MNF}"):
        metadata(pb.ModelMetadataRequest(name="nope"))
    with expect_error(NOT_FOUND, f"Model version: 9 does not exist for model: oip\n{MVNF}"):
        metadata(pb.ModelMetadataRequest(name="oip", version="9"))


@pytest.mark.fix
def test_declared_metadata(api: Api) -> None:
    answer = api.open_inference.ModelMetadata(pb.ModelMetadataRequest(name="oip_batch"))
    assert answer.platform == "numpy_python"
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.inputs] == [("a", "FP32", [-1, 2])]
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [("a_out", "FP32", [-1, 2])]
    strange = api.open_inference.ModelMetadata(pb.ModelMetadataRequest(name="oip_strange"))
    assert (strange.platform, list(strange.inputs), list(strange.outputs)) == ("", [], [])


# Rows 157 to 160


@pytest.mark.parametrize("datatype", TYPED)
def test_row_157_echo(api: Api, datatype: str) -> None:
    field, values = TYPED[datatype]
    answer = infer(api, request(datatype, values, id="op:echo"))
    (output,) = answer.outputs
    assert list(getattr(output.contents, field)) == values
    assert (output.name, output.datatype, list(output.shape)) == ("a", datatype, [len(values)])
    assert (answer.id, answer.model_name, answer.model_version) == ("op:echo", "m", "1.0")
    assert not answer.raw_output_contents


@pytest.mark.fix
@pytest.mark.parametrize(("datatype", "value"), [("UINT32", 2**32 - 1), ("UINT64", 2**64 - 1)])
def test_row_157_large_unsigned_values(api: Api, datatype: str, value: int) -> None:
    answer = infer(api, request(datatype, [value], id="op:echo"))
    assert list(getattr(answer.outputs[0].contents, TYPED[datatype][0])) == [value]


def test_row_157_floats_have_their_shortest_decimals(api: Api) -> None:
    document = seen(infer(api, request("FP32", [0.1, 5, 1e20], id="op:show")))
    assert document["inputs"] == [{"name": "a", "shape": [3], "datatype": "FP32", "data": [0.1, 5.0, 1e20]}]
    assert isinstance(document["inputs"][0]["data"][1], float)
    assert (document["id"], document["model_name"]) == ("op:show", "oip")


def test_row_157_bytes_are_in_quotes(api: Api) -> None:
    answer = infer(api, request("BYTES", [b"abc", b"\xff"], field="bytes_contents", id="op:echo"))
    assert list(answer.outputs[0].contents.bytes_contents) == [b'"YWJj"', b'"/w=="']


def test_row_157_only_the_datatypes_field_counts(api: Api) -> None:
    document = seen(infer(api, request("FP32", [1], field="fp64_contents", id="op:show")))
    assert document["inputs"][0]["data"] == []
    document = seen(infer(api, request("FP16", [1], field="fp32_contents", id="op:show")))
    assert document["inputs"] == [{"name": "a", "shape": [1], "datatype": "FP16"}]


@pytest.mark.fix
def test_row_158_raw_tensors(api: Api) -> None:
    raw = np.array([[1.5], [2.5]], np.float32).tobytes()
    answer = infer(api, raw_request("FP32", raw, [2, 1], id="x"))
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("a_out", "FP32", [2, 1]),
        ("rows", "INT32", [1]),
    ]
    assert not any(output.HasField("contents") for output in answer.outputs)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [3.0, 5.0]
    assert answer.raw_output_contents[1] == b"\1\0\0\0"


@pytest.mark.fix
def test_row_159_nan(api: Api) -> None:
    answer = infer(api, request("FP32", [math.nan, math.inf], id="op:echo"))
    nan, infinite = answer.outputs[0].contents.fp32_contents
    assert (math.isnan(nan), infinite) == (True, math.inf)


@pytest.mark.fix
@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("no-id", "id is missing"),
        ("text", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("list", "it is not a JSON object"),
        ("null-outputs", "outputs is missing"),
        ("nested", "Tensor o: [1.5] is not valid for FP32"),
        ("text-data", "Tensor o: 'abc' is not valid for FP32"),
    ],
)
def test_row_160_answers_of_another_kind(api: Api, oip: Server, op: str, reason: str) -> None:
    before = worker_ids(oip)
    message = f"Model oip gave an answer that the Open Inference Protocol does not allow: {reason}."
    with expect_error(INTERNAL, f"{message}\n{ISE}"):
        infer(api, request("INT32", [1], id=f"op:{op}"))
    assert infer(api, request("INT32", [1])).outputs[0].contents.int_contents == [2]
    assert worker_ids(oip) == before


@pytest.mark.parametrize(
    ("op", "field", "values"),
    [
        ("cut", "int_contents", [1, -1]),
        ("numeric-text", "fp32_contents", [1.5, 2]),
        ("unsigned", "uint64_contents", [2**64 - 1]),
        ("short", "fp32_contents", [1.5]),
        ("mixed-bytes", "bytes_contents", [b'"abc"', b"5", b"null", b'{"b64":"/w=="}']),
    ],
)
def test_values_of_answers(api: Api, op: str, field: str, values: list[Any]) -> None:
    answer = infer(api, request("INT32", [1], id=f"op:{op}"))
    assert list(getattr(answer.outputs[0].contents, field)) == values


def test_datatypes_without_a_field_come_back_empty(api: Api) -> None:
    (output,) = infer(api, request("INT32", [1], id="op:half")).outputs
    assert (output.datatype, output.contents.ByteSize()) == ("FP16", 0)


def test_an_id_that_is_a_number(api: Api) -> None:
    assert infer(api, request("INT32", [1], id="op:number-id")).id == "7"


def test_errors_of_inference(api: Api) -> None:
    with expect_error(INTERNAL, f"Parameter model_name is required.\n{BAD_REQUEST}"):
        infer(api, request("INT32", [1], model_name=""))
    with expect_error(INTERNAL, f"Model not found: nope\n{MNF}"):
        infer(api, request("INT32", [1], model_name="nope"))
    with expect_error(INTERNAL, f"Model version: 9 does not exist for model: oip\n{MVNF}"):
        infer(api, request("INT32", [1], model_version="9"))
    with expect_error(INTERNAL, no_worker("oip_strange")):
        infer(api, request("INT32", [1], model_name="oip_strange"))
    with expect_error(UNAVAILABLE, f"Prediction failed\n{ISE}"):
        infer(api, request("INT32", [1], id="op:raise"))


def test_a_version(api: Api) -> None:
    assert infer(api, request("INT32", [1], model_version="2.0")).model_version == "2.0"
    assert infer(api, request("INT32", [1])).model_version == "1.0"


@pytest.mark.fix
def test_parameters_and_outputs_reach_the_handler(api: Api) -> None:
    message = request("INT32", [1])
    message.parameters["op"].string_param = "show"
    message.parameters["a"].bool_param = True
    message.parameters["b"].int64_param = -1
    message.parameters["c"].double_param = 0.5
    message.parameters["d"].uint64_param = 2**64 - 1
    message.inputs[0].parameters["k"].string_param = "v"
    wanted = message.outputs.add(name="seen")
    wanted.parameters["n"].int64_param = 3
    document = seen(infer(api, message))
    assert document["parameters"] == {"op": "show", "a": True, "b": -1, "c": 0.5, "d": 2**64 - 1}
    assert document["inputs"][0]["parameters"] == {"k": "v"}
    assert document["outputs"] == [{"name": "seen", "parameters": {"n": 3}}]


@pytest.mark.fix
@pytest.mark.parametrize("official", [True, False])
def test_requested_outputs(api: Api, official: bool) -> None:
    message = request("INT32", [1])
    message.outputs.add(name="rows")
    assert [output.name for output in infer(api, message, official=official).outputs] == ["rows"]
    message.outputs.add(name="nope")
    if official:
        with expect_error(INVALID, f"Model oip gave no output nope; it gave a_out, rows.\n{BAD_REQUEST}"):
            infer(api, message, official=True)
    else:
        assert [output.name for output in infer(api, message).outputs] == ["rows"]


@pytest.mark.fix
@pytest.mark.parametrize("official", [True, False])
def test_malformed_raw_tensors(api: Api, official: bool) -> None:
    both = request("INT32", [1])
    both.raw_input_contents.append(b"\1\0\0\0")
    more = raw_request("INT32", b"\1\0\0\0", [1])
    more.raw_input_contents.append(b"")
    shared = request("INT32", [1])
    shared.inputs[0].parameters["shared_memory_region"].string_param = "r"
    for message, text in (
        (both, "Tensor a has contents, though raw_input_contents are given."),
        (more, "There are 1 inputs, but 2 raw_input_contents."),
        (raw_request("INT32", b"\1", [1]), "Tensor a: INT32 of shape [1] has 4 bytes, but 1 were given."),
        (raw_request("INT32", b"", [-1]), "Tensor a: shape [-1] has a negative dimension."),
        (shared, "Tensor a: shared memory is not supported; send the data."),
    ):
        with expect_error(INVALID, f"{text}\n{BAD_REQUEST}"):
            infer(api, message, official=official)


# The protocol's own name


@pytest.mark.fix
def test_the_official_service_checks_typed_tensors(api: Api) -> None:
    for message, text in (
        (request("INT32", [1], [2]), "shape [2] has 2 elements, but 1 were given."),
        (request("FP16", [1], field="fp32_contents"), "FP16 has to be sent in raw_input_contents."),
    ):
        with expect_error(INVALID, f"Tensor a: {text}\n{BAD_REQUEST}"):
            infer(api, message, official=True)
    with pytest.raises(grpc.RpcError) as caught:
        infer(api, request("INT5", [1], field="int_contents"), official=True)
    assert str(caught.value.details()).startswith("Tensor a: unknown datatype 'INT5'; expected one of BOOL, ")


@pytest.mark.fix
def test_the_official_service_has_plain_bytes(api: Api) -> None:
    message = request("BYTES", [b"abc", b"\xff"], field="bytes_contents")
    answer = infer(api, message, official=True)
    assert list(answer.outputs[0].contents.bytes_contents) == [b"abc!", b"\xff!"]
    message.parameters["plain_bytes"].bool_param = False
    answer = infer(api, message, official=True)
    assert list(answer.outputs[0].contents.bytes_contents) == [b'"YWJj!"', b'"/w==!"']


@pytest.mark.fix
@pytest.mark.parametrize("model", ["oip", "oip_plain"])
def test_plain_bytes_by_choice(api: Api, model: str) -> None:
    message = request("BYTES", [b"abc", b"\xff"], field="bytes_contents", model_name=model)
    if model == "oip":
        message.parameters["plain_bytes"].bool_param = True
    answer = infer(api, message)
    assert list(answer.outputs[0].contents.bytes_contents) == [b"abc!", b"\xff!"]


@pytest.mark.fix
def test_the_official_service_completes_answers(api: Api) -> None:
    answer = infer(api, request("INT32", [1], id="op:no-id"), official=True)
    assert answer.id == "op:no-id"
    answer = infer(api, request("INT32", [1], id="op:nested"), official=True)
    assert list(answer.outputs[0].contents.fp32_contents) == [1.5, 2.5]
    answer = infer(api, request("INT32", [1], id="op:half"), official=True)
    assert answer.raw_output_contents == [np.float16(1.5).tobytes()]
    answer = infer(api, request("INT32", [1], id="op:parameters"), official=True)
    assert answer.parameters["a"].bool_param
    assert answer.parameters["e"].uint64_param == 2**63
    assert answer.outputs[0].parameters["scale"].int64_param == 2
    with expect_error(
        INTERNAL,
        "Model oip gave an answer that the Open Inference Protocol does not allow: Tensor o: shape [2] has 2 elements, "
        f"but 1 were given.\n{ISE}",
    ):
        infer(api, request("INT32", [1], id="op:short"), official=True)


@pytest.mark.fix
def test_torchserves_service_gives_no_parameters(api: Api) -> None:
    answer = infer(api, request("INT32", [1], id="op:parameters"))
    assert not answer.parameters
    assert not answer.outputs[0].parameters


@pytest.mark.fix
@pytest.mark.parametrize("official", [True, False])
def test_an_answer_in_pieces_is_put_together(api: Api, official: bool) -> None:
    answer = infer(api, request("INT32", [1], id="op:pieces"), official=official)
    assert [output.name for output in answer.outputs] == ["seen"]


# Switches and surroundings


def test_with_the_kservev2_envelope(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"ts_open_inference_protocol": "true", "service_envelope": "kservev2"})
    assert server.register("noop.mar", initial_workers=1).status == 200
    api = connect(server)
    message = request("INT32", [1, 2], [2, 1], model_name="noop")
    message.inputs.append(request("FP32", [0.5]).inputs[0])
    message.inputs[1].name = "b"
    answer = infer(api, message)
    assert (answer.id, answer.model_name, answer.model_version) == ("5", "noop", "1.0")
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("a", "BYTES", [1]),
        ("b", "BYTES", [1]),
    ]
    assert [list(each.contents.bytes_contents) for each in answer.outputs] == [[b'"ok"'], [b'"ok"']]
    message.id = ""
    assert uuid.UUID(infer(api, message).id).version == 4
    server.stop()


def test_tokens(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"ts_open_inference_protocol": "true", "disable_token_authorization": "false"})
    live = connect(server).open_inference.ServerLive
    for metadata in ((), (("authorization", server.bearer("management")["Authorization"]),)):
        with expect_error(grpc.StatusCode.PERMISSION_DENIED, REFUSED):
            live(pb.ServerLiveRequest(), metadata=metadata)
    bearer = server.bearer("inference")["Authorization"]
    assert live(pb.ServerLiveRequest(), metadata=(("authorization", bearer),)).live
    server.stop()


@pytest.mark.fix
def test_reflection_and_health_know_both_names(api: Api) -> None:
    reflection = ProtoReflectionDescriptorDatabase(api.inference_channel)
    assert {OFFICIAL, OPEN_INFERENCE} <= set(reflection.get_services())
    pool = DescriptorPool(reflection)
    for name in (OFFICIAL, OPEN_INFERENCE):
        package = name.rpartition(".")[0]
        method = pool.FindServiceByName(name).FindMethodByName("ModelInfer")
        assert method.input_type.full_name == f"{package}.ModelInferRequest"
        body = health_pb2.HealthCheckRequest(service=name).SerializeToString()
        answer = health_pb2.HealthCheckResponse.FromString(api.raw("/grpc.health.v1.Health/Check", body))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("service", [OPEN_INFERENCE, OFFICIAL])
def test_off_by_default(grpc_server: Server, connect: Connect, service: str) -> None:
    with expect_error(UNIMPLEMENTED, f"Method not found: {service}/ServerLive"):
        connect(grpc_server).raw(f"/{service}/ServerLive")


# Triton's client

VALUES = {
    "BOOL": np.array([[True, False]]),
    "INT32": np.array([-(2**30), 5], np.int32),
    "INT64": np.array([[-(2**62), 2**53 + 1]], np.int64),
    "UINT8": np.array([100], np.uint8),
    "UINT64": np.array([2**63 - 1], np.uint64),
    "FP16": np.array([0.5, -2.25], np.float16),
    "FP32": np.array([[0.1, -2.5], [math.nan, math.inf]], np.float32),
    "FP64": np.array([0.1, -1e300]),
    "BYTES": np.array([["abc"], ["é中".encode()], [b"\xff\x00"], [b""]], np.object_),
}


def doubled(values: Any) -> Any:
    """What the handler makes of them."""
    if values.dtype == np.bool_:
        return ~values
    if values.dtype == np.object_:
        encoded = [value.encode() if isinstance(value, str) else value for value in values.ravel().tolist()]
        return np.array([value + b"!" for value in encoded], np.object_).reshape(values.shape)
    return values * 2


def tensor(name: str, values: Any, datatype: str) -> Any:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


@pytest.mark.fix
def test_client_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("oip")
    assert client.is_model_ready("oip", "2.0")
    assert client.get_server_metadata().name == "torchserve"
    metadata = client.get_model_metadata("oip_batch", as_json=True)
    assert metadata["inputs"] == [{"name": "a", "datatype": "FP32", "shape": ["-1", "2"]}]
    with pytest.raises(InferenceServerException, match="Model not found: nope"):
        client.get_model_metadata("nope")


@pytest.mark.fix
@pytest.mark.parametrize("datatype", VALUES)
def test_client_infer(client: triton.InferenceServerClient, datatype: str) -> None:
    values = VALUES[datatype]
    result = client.infer("oip", [tensor("a", values, datatype)], request_id="5")
    got, expected = result.as_numpy("a_out"), doubled(values)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    assert result.get_response().id == "5"
    assert result.as_numpy("rows").tolist() == [1]


@pytest.mark.fix
def test_client_asks_for_outputs_and_a_version(client: triton.InferenceServerClient) -> None:
    inputs = [tensor("a", VALUES["FP32"], "FP32"), tensor("b", np.empty((0, 3), np.int64), "INT64")]
    outputs = [triton.InferRequestedOutput("b_out"), triton.InferRequestedOutput("rows")]
    result = client.infer("oip", inputs, model_version="2.0", outputs=outputs)
    assert [output.name for output in result.get_response().outputs] == ["b_out", "rows"]
    assert result.as_numpy("b_out").shape == (0, 3)
    assert result.get_response().model_version == "2.0"


@pytest.mark.fix
def test_client_infer_in_a_batch(client: triton.InferenceServerClient) -> None:
    requests = [np.full((2, 2), index, np.float32) for index in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda values: client.infer("oip_batch", [tensor("a", values, "FP32")]), requests))
    for values, result in zip(requests, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("a_out"), values * 2)
    assert {int(result.as_numpy("rows")[0]) for result in results} == {4}


@pytest.mark.fix
def test_client_infer_compressed(client: triton.InferenceServerClient) -> None:
    values = np.zeros((100, 100), np.float32)
    result = client.infer("oip", [tensor("a", values, "FP32")], compression_algorithm="gzip")
    np.testing.assert_array_equal(result.as_numpy("a_out"), values)


@pytest.mark.fix
def test_client_sees_errors(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="Prediction failed"):
        client.infer("oip", [tensor("a", VALUES["INT32"], "INT32")], parameters={"op": "raise"})
