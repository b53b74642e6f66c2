"""What an operator sets and sees of the gRPC listeners (grpc_api.md §3.4, §9; §11, row 161)."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

import grpc
import pytest
from google.protobuf import empty_pb2
from grpc import StatusCode
from tests.support.grpc_api import (
    HEALTHY,
    INFERENCE,
    MANAGEMENT,
    REFUSED,
    expect_error,
    predictions,
    read_all,
    results,
    status,
)
from tests.support.waiting import wait_for

from relight.protos import management_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Gate, Server

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
LINE = re.compile(rf'{STAMP} - /127\.0\.0\.1:(\d+) "gRPC (\S+) HTTP/2\.0" (\d+) \d+')


@pytest.fixture
def gate(grpc_server: Server) -> Iterator[Gate]:
    gate = grpc_server.gate()
    yield gate
    gate.open()


@pytest.fixture(scope="module")
def logged(make_grpc_server: ServerFactory) -> Server:
    """A server that nobody else calls: each test waits for the lines of all its calls."""
    made = make_grpc_server()
    for url in ("noop.mar", "probe.mar", "streamer.mar"):
        assert made.register(url, initial_workers=1).status == 200
    return made


@pytest.fixture
def logged_api(logged: Server, connect: Connect) -> Api:
    return connect(logged)


def access_lines(server: Server, method: str) -> list[tuple[str, int]]:
    """Return peer port and status of each call of a method in the access log, whose lines must have the right form."""
    text = (server.logs / "access_log.log").read_text()
    matches = [LINE.fullmatch(line) for line in text.splitlines() if f'"gRPC {method} ' in line]
    assert None not in matches
    return [(match[1], int(match[3])) for match in matches if match]


def wait_line(server: Server, method: str, before: int) -> tuple[str, int]:
    """Return the line that follows the first `before` ones."""
    wait_for("an access log line", lambda: len(access_lines(server, method)) > before)
    (line,) = access_lines(server, method)[before:]
    return line


# Access log


@pytest.mark.parametrize(
    ("model", "inputs", "code"),
    [
        ("noop", {}, 0),
        ("nope", {}, 13),
        ("probe", {"mode": "raise"}, 14),
        ("probe", {"mode": "predict", "code": "404"}, 5),
    ],
)
def test_access_log_of_predictions(
    logged: Server, logged_api: Api, model: str, inputs: dict[str, bytes | str], code: int
) -> None:
    method = f"{INFERENCE}/Predictions"
    before = len(access_lines(logged, method))
    call = logged_api.start(model, inputs)
    assert int(call.code().value[0]) == code
    assert wait_line(logged, method, before)[1] == code


def test_access_log_of_streams(logged: Server, logged_api: Api) -> None:
    method = f"{INFERENCE}/StreamPredictions"
    before = len(access_lines(logged, method))
    assert read_all(logged_api.stream("streamer", {"n": "2"})).code == StatusCode.OK
    assert wait_line(logged, method, before)[1] == 0


def test_access_log_of_a_stream_of_requests(logged: Server, logged_api: Api) -> None:
    method = f"{INFERENCE}/StreamPredictions2"
    before = len(access_lines(logged, method))
    assert logged_api.converse().finish().code == StatusCode.OK
    assert wait_line(logged, method, before)[1] == 0


def test_access_log_of_ping_and_management(logged: Server, logged_api: Api) -> None:
    methods = [f"{INFERENCE}/Ping", f"{MANAGEMENT}/DescribeModel"]
    before = [len(access_lines(logged, method)) for method in methods]
    logged_api.ping()
    with pytest.raises(grpc.RpcError):
        logged_api.management.DescribeModel(management_pb2.DescribeModelRequest(model_name="nope"))
    found = [wait_line(logged, method, count)[1] for method, count in zip(methods, before, strict=True)]
    assert found == [0, 5]


def test_access_log_of_a_cancelled_call(logged: Server, logged_api: Api) -> None:
    method, gate = f"{INFERENCE}/Predictions", logged.gate()
    before = len(access_lines(logged, method))
    call = logged_api.start("probe", {"mode": "place", "gate": gate.name})
    gate.wait_arrived()
    call.cancel()
    gate.open()
    assert wait_line(logged, method, before)[1] == 1


@pytest.mark.fix
def test_access_log_of_a_refused_call(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"disable_token_authorization": "false"})
    api = connect(server)
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        api.ping()
    with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
        api.management.ListModels(management_pb2.ListModelsRequest())
    assert wait_line(server, f"{INFERENCE}/Ping", 0)[1] == 7
    assert wait_line(server, f"{MANAGEMENT}/ListModels", 0)[1] == 7
    server.stop()


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", names, "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def tls_server(make_grpc_server: ServerFactory, certificate: tuple[Path, Path]) -> Server:
    """TLS on both gRPC ports; `streamer` with a worker."""
    config = {
        "enable_grpc_ssl": "true",
        "certificate_file": str(certificate[0]),
        "private_key_file": str(certificate[1]),
    }
    made = make_grpc_server(config)
    assert made.register("streamer.mar", initial_workers=1).status == 200
    return made


@pytest.fixture
def tls_api(tls_server: Server, certificate: tuple[Path, Path], connect: Connect) -> Api:
    return connect(tls_server, credentials=grpc.ssl_channel_credentials(certificate[0].read_bytes()))


def test_tls(tls_api: Api) -> None:
    assert tls_api.ping() == HEALTHY
    assert '"modelName": "streamer"' in tls_api.management.ListModels(management_pb2.ListModelsRequest(limit=9)).msg
    assert predictions(read_all(tls_api.stream("streamer", {"n": "1"}))) == [b"part-0-0", b"final-0 batch=1"]
    large = read_all(tls_api.stream("streamer", {"n": "3", "size": "2000000", "data": b"x" * 2_000_000}))
    assert [len(part) for part in predictions(large)] == [2_000_008, 2_000_008, 2_000_008, 15]


@pytest.mark.parametrize("port", ["grpc_inference_port", "grpc_management_port"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_versions_and_alpn(
    tls_server: Server, certificate: tuple[Path, Path], port: str, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["http/1.1", "h2"])
    address = ("127.0.0.1", int(tls_server.config[port]))
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname="localhost") as secure:
        assert secure.selected_alpn_protocol() == "h2"


def test_plain_client_of_a_tls_server(tls_server: Server, connect: Connect, tls_api: Api) -> None:
    plain = connect(tls_server)
    with pytest.raises(grpc.RpcError) as caught:
        plain.ping(timeout=20)
    assert caught.value.code() == StatusCode.UNAVAILABLE
    assert tls_api.ping() == HEALTHY


def test_client_that_does_not_trust_the_certificate(tls_server: Server, connect: Connect, tls_api: Api) -> None:
    stranger = connect(tls_server, credentials=grpc.ssl_channel_credentials())
    with pytest.raises(grpc.RpcError) as caught:
        stranger.ping(timeout=20)
    assert caught.value.code() == StatusCode.UNAVAILABLE
    assert tls_api.ping() == HEALTHY


def test_tls_client_of_a_plain_server(grpc_server: Server, connect: Connect, api: Api) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        connect(grpc_server, credentials=grpc.ssl_channel_credentials()).ping(timeout=20)
    assert caught.value.code() == StatusCode.UNAVAILABLE
    assert api.ping() == HEALTHY


# Age of connections


@pytest.fixture(scope="module")
def ageing(make_grpc_server: ServerFactory) -> Server:
    """Connections live for a second; calls on the inference port have one more."""
    config = {
        "grpc_inference_max_connection_age_ms": "1000",
        "grpc_inference_max_connection_age_grace_ms": "1000",
        "grpc_management_max_connection_age_ms": "1000",
    }
    made = make_grpc_server(config)
    assert made.register("streamer.mar", initial_workers=1).status == 200
    return made


def test_row_161_connection_age_and_grace(ageing: Server, connect: Connect) -> None:
    api = connect(ageing)
    gate = ageing.gate()
    call = api.stream("streamer", {"n": "3", "at": "2", "gate": gate.name})
    assert [next(call).prediction for _ in range(2)] == [b"part-0-0", b"part-0-1"]
    outcome = read_all(call)
    assert (outcome.messages, outcome.code) == ([], StatusCode.UNAVAILABLE)
    gate.open()
    assert predictions(read_all(api.stream("streamer", {"n": "1"}))) == [b"part-0-0", b"final-0 batch=1"]


def test_an_aged_connection_is_replaced_without_a_failed_call(ageing: Server, connect: Connect) -> None:
    api = connect(ageing)
    first, ports = len(access_lines(ageing, f"{INFERENCE}/Ping")), set[str]()

    def two_connections() -> bool:
        api.ping()
        ports.update(port for port, _ in access_lines(ageing, f"{INFERENCE}/Ping")[first:])
        return len(ports) > 1

    wait_for("another connection", two_connections)


def test_a_running_call_outlives_an_aged_connection_without_grace(ageing: Server, connect: Connect) -> None:
    """A synchronous registration is under way on the old connection while others are made on a new one."""
    api = connect(ageing)
    name, method = "slow", f"{MANAGEMENT}/ListModels"
    message = management_pb2.RegisterModelRequest(
        url="loader.mar", model_name=name, initial_workers=1, synchronous=True
    )
    call = api.management.RegisterModel.future(message)
    first, ports = len(access_lines(ageing, method)), set[str]()

    def two_connections() -> bool:
        api.management.ListModels(management_pb2.ListModelsRequest())
        ports.update(port for port, _ in access_lines(ageing, method)[first:])
        return len(ports) > 1

    wait_for("another connection", two_connections)
    assert not call.done()
    ageing.gate(name).open()
    assert call.result().msg == f'Model "{name}" Version: 1.0 registered with 1 initial workers'


# The protocol's limits and options


def test_metadata_of_seven_kilobytes(grpc_server: Server, connect: Connect) -> None:
    assert connect(grpc_server, metadata=(("x-large", "x" * 7000),)).predict("noop") == b"ok"


@pytest.mark.parametrize("size", [9_000, 20_000, 200_000])
def test_metadata_that_is_too_large(grpc_server: Server, connect: Connect, gate: Gate, size: int) -> None:
    api = connect(grpc_server, options=(("grpc.max_metadata_size", 1_000_000),))
    with pytest.raises(grpc.RpcError):
        api.inference.Ping(empty_pb2.Empty(), metadata=(("x-large", "x" * size),), timeout=20)
    assert api.predict("noop") == b"ok"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
def test_compressed_requests(grpc_server: Server, connect: Connect, compression: grpc.Compression) -> None:
    api = connect(grpc_server, compression=compression)
    assert api.see("m", {"data": b"x" * 100_000})["row"]["data"]["text"] == "x" * 100_000
    conversation = api.converse()
    conversation.send("nope", {"data": b"x" * 100_000}, sequence_id="s1")
    assert conversation.read().status.message == "Model not found: nope"


@pytest.mark.fix
def test_compressed_request_that_is_too_large(make_grpc_server: ServerFactory, connect: Connect) -> None:
    server = make_grpc_server({"max_request_size": "2000"})
    api = connect(server, compression=grpc.Compression.Gzip)
    with pytest.raises(grpc.RpcError) as caught:
        api.predict("nope", {"data": b"x" * 1_000_000})
    assert caught.value.code() == StatusCode.RESOURCE_EXHAUSTED
    assert api.ping() == HEALTHY
    server.stop()


def test_any_address(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"grpc_inference_address": "0.0.0.0", "grpc_management_address": "localhost"})
    api = connect(server)
    assert api.ping() == HEALTHY
    assert '"models": []' in api.management.ListModels(management_pb2.ListModelsRequest(limit=9)).msg
    server.stop()


# Keepalive


PING = struct.pack(">I", 8)[1:] + b"\x06\x00" + struct.pack(">I", 0)
EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
GOAWAY = 7


def frames(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Read HTTP/2 frames: type, flags, payload."""
    while head := file.read(9):
        yield head[3], head[4], file.read(int.from_bytes(head[:3], "big"))


@pytest.mark.fix
def test_pings_on_an_idle_connection(grpc_server: Server) -> None:
    address = ("127.0.0.1", int(grpc_server.config["grpc_inference_port"]))
    with socket.create_connection(address, 30) as client, client.makefile("rb") as file:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS)
        received = frames(file)
        for number in range(10):
            payload = struct.pack(">Q", number)
            client.sendall(PING + payload)
            answer = next(frame for frame in received if frame[0] in {6, GOAWAY})
            assert answer == (6, 1, payload)


def test_client_with_keepalive(grpc_server: Server, connect: Connect) -> None:
    options = (
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    api = connect(grpc_server, options=options)
    with grpc_server.registered("streamer.mar", "kept", initial_workers=1):
        outcome = read_all(api.stream("kept", {"n": "4", "pause": "1.2"}))
        assert (len(outcome.messages), outcome.code) == (5, StatusCode.OK)


# Both ports at once


def test_management_and_inference_at_the_same_time(grpc_server: Server, connect: Connect) -> None:
    api = connect(grpc_server)

    def manage(number: int) -> None:
        name = f"together-{number}"
        for _ in range(3):
            register = management_pb2.RegisterModelRequest(
                url="noop.mar", model_name=name, initial_workers=1, synchronous=True
            )
            assert api.management.RegisterModel(register).msg.endswith("registered with 1 initial workers")
            assert api.predict(name) == b"ok"
            gone = management_pb2.UnregisterModelRequest(model_name=name)
            assert api.management.UnregisterModel(gone).msg == f'Model "{name}" unregistered'

    with ThreadPoolExecutor(2) as pool:
        managers = [pool.submit(manage, number) for number in range(2)]
        for _ in range(50):
            assert results([api.start("noop") for _ in range(8)]) == [b"ok"] * 8
        for manager in managers:
            manager.result()
    assert status(api.start("noop")) == (StatusCode.OK, "")
