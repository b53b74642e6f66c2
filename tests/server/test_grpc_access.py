"""Who may call what over gRPC, sizes, and calls that nobody serves (grpc_api.md §7, §8; §11, rows 147 to 153)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import empty_pb2
from grpc import StatusCode
from tests.support.grpc_api import (
    CALL_S,
    INFERENCE,
    ISE,
    MANAGEMENT,
    MNF,
    OPEN_INFERENCE,
    REFUSED,
    Metadata,
    expect_error,
    read_all,
    request,
)
from tests.support.server import is_reference
from tests.support.waiting import wait_for

from relight.protos import management_pb2, open_inference_grpc_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grpc import StreamStreamMultiCallable
    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api, Outcome
    from tests.support.server import Server

MODEL_API_OFF = "Model API disabled\norg.pytorch.serve.archive.model.ModelException"


@pytest.fixture(scope="module")
def closed(make_grpc_server: ServerFactory, grpc_archives: list[Path]) -> Server:
    """Model API off, small messages; `only` (the archive `probe`) loaded at the start."""
    probe = next(path for path in grpc_archives if path.name == "probe.mar")
    config = {
        "enable_model_api": "false",
        "default_workers_per_model": "1",
        "max_request_size": "2000",
        "max_response_size": "3000",
    }
    made = make_grpc_server(config, ["--models", f"only=file://{probe}"])
    made.wait_ready("only")
    return made


@pytest.fixture
def closed_api(closed: Server, connect: Connect) -> Api:
    return connect(closed)


@pytest.fixture(scope="module")
def guarded(make_grpc_server: ServerFactory) -> Server:
    """Tokens needed, one URL allowed, Open Inference Protocol on."""
    config = {
        "disable_token_authorization": "false",
        "allowed_urls": "file:///allowed/.*",
        "ts_open_inference_protocol": "true",
    }
    return make_grpc_server(config)


@pytest.fixture
def keyed(guarded: Server, connect: Connect) -> Callable[[str | None], Api]:
    """Connect with this `authorization`, or none."""

    def start(value: str | None) -> Api:
        return connect(guarded, metadata=() if value is None else (("authorization", value),))

    return start


def key(server: Server, name: str) -> str:
    return f"Bearer {server.keys[name]['key']}"


def ping_as(api: Api, metadata: Metadata) -> str:
    return api.inference.Ping(empty_pb2.Empty(), metadata=metadata).health


# Model API and allowed URLs


@pytest.mark.parametrize("url", ["noop.mar", "../noop.mar", ""])
def test_row_147_register_with_the_model_api_off(closed_api: Api, url: str) -> None:
    with expect_error(StatusCode.PERMISSION_DENIED, MODEL_API_OFF):
        closed_api.management.RegisterModel(management_pb2.RegisterModelRequest(url=url))


@pytest.mark.parametrize("name", ["only", "nope", ""])
def test_row_147_unregister_with_the_model_api_off(closed_api: Api, name: str) -> None:
    with expect_error(StatusCode.PERMISSION_DENIED, MODEL_API_OFF):
        closed_api.management.UnregisterModel(management_pb2.UnregisterModelRequest(model_name=name))


def test_row_147_other_calls_with_the_model_api_off(closed_api: Api) -> None:
    management = closed_api.management
    assert '"modelName": "only"' in management.ListModels(management_pb2.ListModelsRequest(limit=10)).msg
    assert '"modelName": "only"' in management.DescribeModel(management_pb2.DescribeModelRequest(model_name="only")).msg
    scale = management_pb2.ScaleWorkerRequest(model_name="only", synchronous=True)
    assert management.ScaleWorker(scale).msg == "Workers scaled to 1 for model: only"
    default = management_pb2.SetDefaultRequest(model_name="only", model_version="1.0")
    assert management.SetDefault(default).msg == 'Default version successfully updated for model "only" to "1.0"'


def test_row_148_url_that_is_not_allowed(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    stub = keyed(key(guarded, "management"))
    url = "https://example.org/x.mar"
    with expect_error(StatusCode.NOT_FOUND, f"Given URL {url} does not match any allowed URL(s)\n{MNF}"):
        stub.management.RegisterModel(management_pb2.RegisterModelRequest(url=url), metadata=stub.metadata)


def test_row_148_file_of_the_store(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    stub = keyed(key(guarded, "management"))
    message = management_pb2.RegisterModelRequest(url="noop.mar", model_name="stored")
    answer = stub.management.RegisterModel(message, metadata=stub.metadata)
    assert answer.msg.startswith('Model "stored" Version: 1.0 registered with 0 initial workers.')


# Tokens


RPCS: dict[str, Callable[[Api], Any]] = {
    "Ping": lambda api: api.ping(),
    "Predictions": lambda api: api.predict("m", {"data": "x"}),
    "StreamPredictions": lambda api: next(api.stream("m", {"data": "x"})),
    "StreamPredictions2": lambda api: api.converse().read(),
    "ServerLive": lambda api: api.open_inference.ServerLive(
        open_inference_grpc_pb2.ServerLiveRequest(), metadata=api.metadata
    ),
    "ModelInfer": lambda api: api.open_inference.ModelInfer(
        open_inference_grpc_pb2.ModelInferRequest(), metadata=api.metadata
    ),
    "RegisterModel": lambda api: api.management.RegisterModel(
        management_pb2.RegisterModelRequest(), metadata=api.metadata
    ),
    "UnregisterModel": lambda api: api.management.UnregisterModel(
        management_pb2.UnregisterModelRequest(), metadata=api.metadata
    ),
    "ScaleWorker": lambda api: api.management.ScaleWorker(management_pb2.ScaleWorkerRequest(), metadata=api.metadata),
    "SetDefault": lambda api: api.management.SetDefault(management_pb2.SetDefaultRequest(), metadata=api.metadata),
    "ListModels": lambda api: api.management.ListModels(management_pb2.ListModelsRequest(), metadata=api.metadata),
    "DescribeModel": lambda api: api.management.DescribeModel(
        management_pb2.DescribeModelRequest(), metadata=api.metadata
    ),
}


@pytest.mark.parametrize("value", [None, "Bearer wrong"])
@pytest.mark.parametrize("rpc", RPCS)
def test_row_149_token_missing_or_wrong(keyed: Callable[[str | None], Api], rpc: str, value: str | None) -> None:
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        RPCS[rpc](keyed(value))


def test_spellings_that_are_refused(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    right = guarded.keys["inference"]["key"]
    for value in (f"bearer {right}", right, f"Bearer {right} ", f"Bearer{right}", f"Bearer {right} x", "Bearer", ""):
        with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
            keyed(value).ping()
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        ping_as(keyed(None), (("x-authorization", f"Bearer {right}"),))


def test_spellings_that_are_accepted(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    right = guarded.keys["inference"]["key"]
    for value in (f"Bearer {right}", f"Bearer   {right}"):
        assert "Healthy" in keyed(value).ping()


def test_the_last_of_two_headers_counts(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    api = keyed(None)
    right, wrong = ("authorization", key(guarded, "inference")), ("authorization", "Bearer wrong")
    assert "Healthy" in ping_as(api, (wrong, right))
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        ping_as(api, (right, wrong))


@pytest.mark.parametrize("name", ["management", "API"])
def test_other_keys_on_the_inference_port(guarded: Server, keyed: Callable[[str | None], Api], name: str) -> None:
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        keyed(key(guarded, name)).ping()


@pytest.mark.parametrize("name", ["inference", "API"])
def test_other_keys_on_the_management_port(guarded: Server, keyed: Callable[[str | None], Api], name: str) -> None:
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        RPCS["ListModels"](keyed(key(guarded, name)))


def test_open_inference_takes_the_inference_key(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    assert RPCS["ServerLive"](keyed(key(guarded, "inference"))).live


def test_token_comes_before_the_message(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        keyed(None).raw(f"/{INFERENCE}/Predictions", b"\xff\xff\xff")
    with expect_error(StatusCode.INTERNAL, f"Model not found: nope\n{MNF}"):
        keyed(key(guarded, "inference")).predict("nope")


def test_renewal(guarded: Server, keyed: Callable[[str | None], Api]) -> None:
    old = keyed(key(guarded, "inference"))
    assert "Healthy" in old.ping()
    assert guarded.management.get("/token?type=inference", guarded.bearer("API")).status == 200
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        old.ping()
    assert "Healthy" in keyed(key(guarded, "inference")).ping()


def test_expiry(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"disable_token_authorization": "false", "token_expiration_min": "0.05"})
    assert server.management.get("/token?type=inference", server.bearer("API")).status == 200
    api = connect(server, metadata=(("authorization", key(server, "inference")),))
    assert "Healthy" in api.ping()

    def refused() -> bool:
        try:
            api.ping()
        except grpc.RpcError as error:
            return (error.code(), error.details()) == (StatusCode.PERMISSION_DENIED, REFUSED)
        return False

    wait_for("expiry", refused)
    server.stop()


# Sizes


def sized(size: int) -> dict[str, bytes]:
    """Return inputs that make a request for `only` exactly that large."""
    empty = request("only", {"mode": "place", "data": b"x" * 1000}).ByteSize() - 1000
    inputs = {"mode": b"place", "data": b"x" * (size - empty)}
    assert request("only", inputs).ByteSize() == size
    return inputs


def test_row_150_largest_request(closed_api: Api) -> None:
    assert closed_api.predict("only", sized(2000)).endswith(b"x 0 of 1")


def converse_once(api: Api, inputs: dict[str, bytes]) -> object:
    conversation = api.converse()
    conversation.send("only", inputs, "s1")
    return conversation.read()


LARGE: dict[str, Callable[[Api], object]] = {
    "Predictions": lambda api: api.predict("only", sized(2001)),
    "StreamPredictions": lambda api: next(api.stream("only", sized(2001))),
    "StreamPredictions2": lambda api: converse_once(api, sized(2001)),
    "DescribeModel": lambda api: api.management.DescribeModel(
        management_pb2.DescribeModelRequest(model_name="x" * 2001)
    ),
}


@pytest.mark.fix
@pytest.mark.parametrize("rpc", LARGE)
def test_row_150_request_that_is_too_large(closed_api: Api, rpc: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        LARGE[rpc](closed_api)
    assert caught.value.code() == StatusCode.RESOURCE_EXHAUSTED
    assert closed_api.predict("only", {"mode": "place"}) == b" 0 of 1"


def test_row_151_largest_result(closed_api: Api) -> None:
    assert closed_api.predict("only", {"mode": "big", "size": "3000"}) == b"x" * 3000


@pytest.mark.fix
def test_row_151_result_that_is_too_large(closed_api: Api) -> None:
    worker = closed_api.predict("only", {"mode": "pid"})
    with expect_error(StatusCode.INTERNAL, f"Response of 3001 bytes exceeds max_response_size 3000.\n{ISE}"):
        closed_api.predict("only", {"mode": "big", "size": "3001"})
    assert closed_api.predict("only", {"mode": "pid"}) == worker


# Calls that nobody serves


def stream_raw(api: Api, method: str, *messages: bytes) -> Outcome[bytes]:
    """Make a call of any method and kind."""
    call: StreamStreamMultiCallable[bytes, bytes] = api.inference_channel.stream_stream(method)
    return read_all(call(iter(messages), timeout=CALL_S))


@pytest.mark.parametrize(
    ("path", "management"),
    [
        ("inference.GRPCInferenceService/ServerLive", False),
        (f"{OPEN_INFERENCE}/ServerLive", False),
        (f"{OPEN_INFERENCE}/ServerLive", True),
        (f"{MANAGEMENT}/ListModels", False),
        (f"{INFERENCE}/Ping", True),
        (f"{INFERENCE}/Nope", False),
        (f"{MANAGEMENT}/Nope", True),
        ("org.example.Nope/Ping", False),
    ],
)
def test_row_152_unknown_method(api: Api, path: str, management: bool) -> None:
    with expect_error(StatusCode.UNIMPLEMENTED, f"Method not found: {path}"):
        api.raw(f"/{path}", management=management)


def test_row_152_unknown_method_with_a_stream(api: Api) -> None:
    path = f"{INFERENCE}/Nope"
    outcome = stream_raw(api, f"/{path}", b"a", b"b")
    assert (outcome.code, outcome.details) == (StatusCode.UNIMPLEMENTED, f"Method not found: {path}")


@pytest.mark.parametrize("rpc", ["Predictions", "StreamPredictions", "StreamPredictions2"])
@pytest.mark.skipif(is_reference(), reason="TorchServe was tried with Predictions alone")
def test_row_153_invalid_message_to_any_rpc(api: Api, rpc: str) -> None:
    outcome = stream_raw(api, f"/{INFERENCE}/{rpc}", b"\xff\xff\xff")
    assert (outcome.messages, outcome.code, outcome.details) == ([], StatusCode.UNKNOWN, "")


def test_row_153_invalid_message(api: Api) -> None:
    with expect_error(StatusCode.UNKNOWN, ""):
        api.raw(f"/{INFERENCE}/Predictions", b"\xff\xff\xff")
    assert api.predict("noop") == b"ok"


def test_invalid_message_to_the_management_port(api: Api) -> None:
    with expect_error(StatusCode.UNKNOWN, ""):
        api.raw(f"/{MANAGEMENT}/DescribeModel", b"\xff\xff\xff", management=True)
