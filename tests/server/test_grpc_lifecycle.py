"""Listeners that cannot start, and what becomes of calls when the server ends (grpc_api.md §9)."""

from __future__ import annotations

import re
import signal
import socket
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf import empty_pb2
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support.grpc_api import HEALTHY, predictions, read_all
from tests.support.server import Server, is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Stream

not_there = pytest.mark.skipif(is_reference(), reason="TorchServe writes Java's exceptions")


# Starts that fail


def assert_does_not_start(server: Server, *words: str) -> None:
    """Check that the server ends at once with a failure, one line of which names the words."""
    try:
        with pytest.raises(RuntimeError, match="the server ended with"):
            server.start()
        assert server.process is not None
        assert server.process.returncode not in {0, None}
        log = server.log
    finally:
        server.stop()
    assert "Traceback" not in log
    assert "Model server started." not in log
    clear = [line for line in log.splitlines() if all(re.search(word, line) for word in words)]
    assert len(clear) == 1, log


@not_there
@pytest.mark.parametrize("key", ["grpc_inference_port", "grpc_management_port"])
def test_port_in_use(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_does_not_start(Server(tmp_path, config={key: port}), rf"\b{port}\b", "(?i)in use")


@not_there
def test_one_port_for_both(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.config["grpc_management_port"] = port = server.config["grpc_inference_port"]
    assert_does_not_start(server, rf"\b{port}\b", "(?i)in use")


@not_there
def test_port_of_a_running_server(tmp_path: Path, grpc_server: Server, connect: Connect) -> None:
    port = grpc_server.config["grpc_inference_port"]
    assert_does_not_start(Server(tmp_path, config={"grpc_inference_port": port}), rf"\b{port}\b", "(?i)in use")
    assert connect(grpc_server).ping() == HEALTHY


@not_there
@pytest.mark.parametrize("key", ["grpc_inference_address", "grpc_management_address"])
@pytest.mark.parametrize("value", ["http://127.0.0.1", "no.such.host.invalid", "127.0.0.1:7070"])
def test_bad_address(tmp_path: Path, key: str, value: str) -> None:
    assert_does_not_start(Server(tmp_path, config={key: value}), re.escape(value))


@not_there
@pytest.mark.parametrize("key", ["grpc_inference_port", "grpc_management_port"])
@pytest.mark.parametrize("value", ["x", "http://127.0.0.1:7070", "70000", "-1"])
def test_bad_port(tmp_path: Path, key: str, value: str) -> None:
    assert_does_not_start(Server(tmp_path, config={key: value}), key, re.escape(value))


@not_there
@pytest.mark.parametrize(
    "key",
    [
        "grpc_inference_max_connection_age_ms",
        "grpc_inference_max_connection_age_grace_ms",
        "grpc_management_max_connection_age_ms",
        "grpc_management_max_connection_age_grace_ms",
    ],
)
@pytest.mark.parametrize("value", ["0", "-5", "soon"])
def test_bad_age(tmp_path: Path, key: str, value: str) -> None:
    if "grace" in key and value == "0":
        pytest.skip("no grace at all is a choice")
    assert_does_not_start(Server(tmp_path, config={key: value}), key, value)


@not_there
def test_tls_without_a_certificate(tmp_path: Path) -> None:
    assert_does_not_start(Server(tmp_path, config={"enable_grpc_ssl": "true"}), "certificate_file")


@not_there
def test_tls_with_files_that_are_missing_or_no_certificates(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for number, path in enumerate((tmp_path / "missing.pem", garbage)):
        config = {"enable_grpc_ssl": "true", "certificate_file": str(path), "private_key_file": str(path)}
        assert_does_not_start(Server(tmp_path / str(number), config=config), re.escape(path.name))


# The end


def is_refused(server: Server, key: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", int(server.config[key])), 5):
            return False
    except ConnectionRefusedError:
        return True


def test_running_calls_finish(make_grpc_server: ServerFactory, connect: Connect) -> None:
    server = make_grpc_server()
    assert server.register("probe.mar", initial_workers=1).status == 200
    assert server.register("streamer.mar", initial_workers=1).status == 200
    api, late = connect(server), connect(server)
    gate = server.gate()
    unary = api.start("probe", {"mode": "place", "gate": gate.name})
    stream = api.stream("streamer", {"n": "3", "at": "1", "gate": gate.name})
    assert next(stream).prediction == b"part-0-0"
    gate.wait_arrived(2)
    server.signal(signal.SIGTERM)
    wait_for("the listener to close", lambda: is_refused(server, "grpc_inference_port"))
    with pytest.raises(grpc.RpcError) as caught:
        late.ping(timeout=20)
    assert caught.value.code() == StatusCode.UNAVAILABLE
    assert not unary.done()
    gate.open()
    assert unary.result().prediction == b" 0 of 1"
    outcome = read_all(stream)
    assert (predictions(outcome), outcome.code) == ([b"part-0-1", b"part-0-2", b"final-0 batch=1"], StatusCode.OK)
    server.stop()


def test_idle_connections_do_not_hold_up_the_end(make_grpc_server: ServerFactory, connect: Connect) -> None:
    server = make_grpc_server()
    api = connect(server)
    assert api.ping() == HEALTHY
    gone = threading.Event()

    def watch(state: grpc.ChannelConnectivity) -> None:
        if state in {grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.TRANSIENT_FAILURE}:
            gone.set()

    api.inference_channel.subscribe(watch)
    gone.clear()
    server.stop()
    assert gone.wait(60)
    with pytest.raises(grpc.RpcError) as caught:
        api.ping(timeout=20)
    assert caught.value.code() == StatusCode.UNAVAILABLE


@pytest.mark.fix
@pytest.mark.parametrize("kind", ["StreamPredictions2", "Watch", "ServerReflectionInfo"])
@pytest.mark.skipif(is_reference(), reason="it would wait for ever")
def test_streams_without_work_do_not_hold_up_the_end(
    make_grpc_server: ServerFactory, connect: Connect, kind: str
) -> None:
    server = make_grpc_server({"shutdown_timeout": "600"})
    api = connect(server)
    requests: SimpleQueue[reflection_pb2.ServerReflectionRequest | None] = SimpleQueue()
    call: Stream[object]
    if kind == "Watch":
        call = health_pb2_grpc.HealthStub(api.inference_channel).Watch(health_pb2.HealthCheckRequest())
        next(call)
    elif kind == "StreamPredictions2":
        conversation = api.converse(600)
        conversation.send("nope", sequence_id="s1")
        assert conversation.read().status.message == "Model not found: nope"
        call = conversation.call
    else:
        requests.put(reflection_pb2.ServerReflectionRequest(list_services="*"))
        stub = reflection_pb2_grpc.ServerReflectionStub(api.inference_channel)
        call = stub.ServerReflectionInfo(iter(requests.get, None))
        next(call)
    server.stop()
    assert read_all(call).code in {StatusCode.OK, StatusCode.UNAVAILABLE}
    requests.put(None)


def test_clients_reconnect_after_a_restart(make_grpc_server: ServerFactory, connect: Connect) -> None:
    server = make_grpc_server()
    api = connect(server)
    assert api.ping() == HEALTHY
    server.restart()
    assert api.inference.Ping(empty_pb2.Empty(), wait_for_ready=True, timeout=60).health == HEALTHY
    server.stop()
