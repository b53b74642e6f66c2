"""Ping, and the inputs and outputs of unary predictions over gRPC (grpc_api.md §11, rows 1 to 29)."""

from __future__ import annotations

import io
import uuid
import zipfile
from typing import TYPE_CHECKING

import pytest
from google.protobuf import empty_pb2
from grpc import StatusCode
from tests.support.grpc_api import (
    BAD_REQUEST,
    HEALTHY,
    ISE,
    MNF,
    MVNF,
    UNHEALTHY,
    expect_error,
    metadata_of,
    request,
)
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Server


def seen(text: str) -> dict[str, str]:
    return {"type": "bytearray", "text": text}


# Ping


def test_row_001_ping(api: Api) -> None:
    answer, call = api.inference.Ping.with_call(empty_pb2.Empty())
    assert answer.health == HEALTHY
    assert call.code() == StatusCode.OK
    assert metadata_of(call.initial_metadata()) == {}
    assert metadata_of(call.trailing_metadata()) == {}


def test_row_002_ping_when_a_model_is_past_its_retry_window(make_grpc_server: ServerFactory, connect: Connect) -> None:
    server = make_grpc_server()
    api = connect(server)
    name = "never"
    (server.gates / f"{name}.broken").touch()
    server.gate(name).open()
    assert server.register("loader_retry.mar", model_name=name, initial_workers=1, synchronous="false").status == 202
    assert api.ping() == HEALTHY
    wait_for("Unhealthy", lambda: api.ping() == UNHEALTHY)
    server.unregister(name)
    assert api.ping() == HEALTHY
    server.stop()


def test_row_003_ping_right_after_a_worker_died(grpc_server: Server, api: Api) -> None:
    with grpc_server.registered("probe.mar", "mortal", initial_workers=1):
        with expect_error(StatusCode.INTERNAL, f"Worker died.\n{ISE}"):
            api.predict("mortal", {"mode": "exit"})
        assert api.ping() == HEALTHY


# Inputs


def test_row_004_predict(api: Api) -> None:
    answer, call = api.inference.Predictions.with_call(request("noop", {"data": "x"}))
    assert answer.prediction == b"ok"
    assert not answer.HasField("sequence_id")
    assert not answer.HasField("status")
    assert call.code() == StatusCode.OK
    assert call.details() == ""
    assert metadata_of(call.initial_metadata()) == {}
    assert metadata_of(call.trailing_metadata()) == {}


def test_row_005_no_inputs(api: Api) -> None:
    document = api.see("m")
    assert (document["row"], document["headers"], document["sequence"]) == ({}, {}, None)


def test_row_006_inputs(api: Api) -> None:
    document = api.see("m", {"data": "x", "other": b"\xc3\xbc"})
    assert document["row"] == {"data": seen("x"), "other": seen("ü")}
    assert document["headers"] == {"data": {"content-type": ""}, "other": {"content-type": ""}}


def test_row_007_metadata_does_not_reach_the_handler(grpc_server: Server, connect: Connect) -> None:
    api = connect(grpc_server, metadata=(("x-mine", "1"), ("ts_request_sequence_id", "s1")))
    document = api.see("m", {"data": "x"})
    assert document["headers"] == {"data": {"content-type": ""}}
    assert document["sequence"] is None


def test_row_008_any_key(api: Api) -> None:
    document = api.see("m", {"": "a", "ü": "b", "body": "c"})
    assert document["row"] == {"": seen("a"), "ü": seen("b"), "body": seen("c")}
    assert document["headers"] == {key: {"content-type": ""} for key in ("", "ü", "body")}


def test_row_009_sequence_id_is_ignored(api: Api) -> None:
    document = api.see("m", {"data": "x"}, sequence_id="s1")
    assert document["sequence"] is None
    assert document["headers"] == {"data": {"content-type": ""}}


def test_row_010_version(api: Api) -> None:
    assert api.predict("noop", {"data": "x"}, "1.0") == b"ok"


def test_request_ids_are_new_for_each_call(grpc_server: Server, connect: Connect) -> None:
    api = connect(grpc_server, metadata=(("x-request-id", "mine"),))
    documents = [api.see("m") for _ in range(2)]
    ids = [document["id"] for document in documents]
    assert [document["ids"] for document in documents] == [[each] for each in ids]
    assert len(set(ids)) == 2
    assert [uuid.UUID(each).version for each in ids] == [4, 4]


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_large_inputs(api: Api, size: int) -> None:
    assert len(api.see("m", {"data": b"x" * size})["row"]["data"]["text"]) == size


# Outputs


@pytest.mark.parametrize(
    ("kind", "prediction"),
    [
        pytest.param("bytes", b"\x00\xffraw", id="11"),
        pytest.param("bytearray", b"\x01array", id="12"),
        pytest.param("empty", b"", id="13"),
        pytest.param("str", "grüße".encode(), id="14"),
        pytest.param("int", b"7", id="15"),
        pytest.param("float", b"1.5", id="16"),
        pytest.param("nan", b"NaN", id="17"),
        pytest.param("none", b"null", id="18"),
        pytest.param("true", b"true", id="19"),
        pytest.param("list", b'[\n  1,\n  "two",\n  null\n]', id="20"),
        pytest.param("tuple", b"[\n  1,\n  2\n]", id="21"),
        pytest.param("dict", b'{\n  "\\u00fc": "\\u00fc"\n}', id="22"),
    ],
)
def test_row_011_to_022_outputs(api: Api, kind: str, prediction: bytes) -> None:
    assert api.predict("m", {"mode": "ret", "kind": kind}) == prediction


def test_row_023_tensor(api: Api) -> None:
    prediction = api.predict("m", {"mode": "ret", "kind": "tensor"})
    assert prediction.startswith(b"PK\x03\x04")
    with zipfile.ZipFile(io.BytesIO(prediction)) as archive:
        assert any(name.endswith("/data.pkl") for name in archive.namelist())


def test_row_024_not_serializable(api: Api) -> None:
    with expect_error(StatusCode.UNAVAILABLE, f"Unsupported model output data type.\n{ISE}"):
        api.predict("m", {"mode": "ret", "kind": "object"})
    assert api.predict("m", {"mode": "ret", "kind": "int"}) == b"7"


def test_row_025_response_status_has_no_effect(api: Api) -> None:
    answer, call = api.inference.Predictions.with_call(request("m", {"mode": "status"}))
    assert (answer.prediction, call.code()) == (b"with status", StatusCode.OK)
    assert not answer.HasField("status")


def test_row_026_response_headers_have_no_effect(api: Api) -> None:
    answer, call = api.inference.Predictions.with_call(request("m", {"mode": "header"}))
    assert (answer.prediction, call.code()) == (b"with header", StatusCode.OK)
    assert metadata_of(call.initial_metadata()) == {}
    assert metadata_of(call.trailing_metadata()) == {}


def test_large_output(api: Api) -> None:
    assert api.predict("m", {"mode": "big", "size": "5000000"}) == b"x" * 5_000_000


# Names


@pytest.mark.parametrize("version", ["", "1.0"])
def test_row_027_no_model_name(api: Api, version: str) -> None:
    with expect_error(StatusCode.INTERNAL, f"Parameter model_name is required.\n{BAD_REQUEST}"):
        api.predict("", {"data": "x"}, version)


@pytest.mark.parametrize("version", ["", "9.9"])
def test_row_028_unknown_model(api: Api, version: str) -> None:
    with expect_error(StatusCode.INTERNAL, f"Model not found: nope\n{MNF}"):
        api.predict("nope", {"data": "x"}, version)


def test_unknown_model_with_a_name_beyond_ascii(api: Api) -> None:
    with expect_error(StatusCode.INTERNAL, f"Model not found: grüße %41\n\n{MNF}"):
        api.predict("grüße %41\n", {"data": "x"})


def test_row_029_unknown_version(api: Api) -> None:
    with expect_error(StatusCode.INTERNAL, f"Model version: 9.9 does not exist for model: m\n{MVNF}"):
        api.predict("m", {"data": "x"}, "9.9")
