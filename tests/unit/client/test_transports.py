"""The wires themselves: limits in time, TLS, servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import empty_pb2
from tests.support.client import PROTOCOLS, Clients
from tests.support.server import free_ports
from tests.unit.client.support import Pair, http_server, make_pair

from relight.client import TLS, AsyncClient, Client, DeadlineExceeded, PredictionFailed, ServerError, Unavailable
from relight.protos import inference_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler

SERVICE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
HEALTHY = b'{"status": "Healthy"}'


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_pair(folder, name) for name in ("server.test", "client.test", "other.test")}


def healthy(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", str(len(HEALTHY)))
    handler.end_headers()
    handler.wfile.write(HEALTHY)


@contextlib.contextmanager
def counting_server(before: Callable[[], object] = lambda: None) -> Iterator[tuple[int, set[Any]]]:
    """A server that collects the addresses of its connections; `before` runs before each answer."""
    connections: set[Any] = set()

    def handle(handler: BaseHTTPRequestHandler) -> None:
        connections.add(handler.client_address)
        before()
        handler.rfile.read(int(handler.headers["content-length"] or 0))
        healthy(handler)

    with http_server(handle) as port:
        yield port, connections


def ping(request: Any, context: Any) -> inference_pb2.TorchServeHealthResponse:
    return inference_pb2.TorchServeHealthResponse(health=HEALTHY.decode())


@contextlib.contextmanager
def grpc_server(port: int, credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """A server that answers pings, on that port; 0 for a free one."""
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        answer = inference_pb2.TorchServeHealthResponse.SerializeToString
        method = grpc.unary_unary_rpc_method_handler(ping, empty_pb2.Empty.FromString, answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Ping": method}),))
        address = f"127.0.0.1:{port}"
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        server.start()
        try:
            yield bound
        finally:
            server.stop(None).wait()


@pytest.fixture
def http_tls(pairs: dict[str, Pair]) -> Iterator[str]:
    """A server that asks for the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pairs["server.test"])
    context.load_verify_locations(pairs["client.test"].certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with http_server(healthy, context) as port:
        yield f"https://127.0.0.1:{port}"


@pytest.fixture
def grpc_tls(pairs: dict[str, Pair]) -> Iterator[str]:
    """A server that asks for the client's certificate."""
    certificate, key = (path.read_bytes() for path in pairs["server.test"])
    client = pairs["client.test"].certificate.read_bytes()
    credentials = grpc.ssl_server_credentials([(key, certificate)], client, require_client_auth=True)
    with grpc_server(0, credentials) as port:
        yield f"grpcs://127.0.0.1:{port}"


@pytest.fixture(params=["http_tls", "grpc_tls"])
def secure(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


def test_tls(secure: str, pairs: dict[str, Pair], clients: Clients, way: str) -> None:
    tls = TLS(pairs["server.test"].certificate, *pairs["client.test"], server_name="server.test")
    assert clients.make(way, url=secure, tls=tls).ping().healthy


def test_key_and_certificate_in_one_file(
    secure: str, pairs: dict[str, Pair], clients: Clients, way: str, tmp_path: Any
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in pairs["client.test"]))
    tls = TLS(str(pairs["server.test"].certificate), str(both), server_name="server.test")
    assert clients.make(way, url=secure, tls=tls).ping().healthy


@pytest.mark.parametrize(
    ("ca", "certificate", "name"),
    [
        (None, "client.test", "server.test"),
        ("other.test", "client.test", "server.test"),
        ("server.test", "client.test", None),
        ("server.test", "client.test", "other.test"),
        ("server.test", None, "server.test"),
        ("server.test", "other.test", "server.test"),
    ],
    ids=["unknown server", "wrong authority", "wrong host", "wrong name", "no certificate", "wrong certificate"],
)
def test_tls_that_is_refused(
    secure: str,
    pairs: dict[str, Pair],
    clients: Clients,
    way: str,
    ca: str | None,
    certificate: str | None,
    name: str | None,
) -> None:
    authority = pairs[ca].certificate if ca else None
    own = pairs[certificate] if certificate else None
    tls = TLS(authority, own and own.certificate, own and own.key, server_name=name)
    client = clients.make(way, url=secure, tls=tls)
    with pytest.raises(Unavailable):
        client.ping()


def test_files_that_are_not_there(clients: Clients, way: str) -> None:
    for url in ("https://127.0.0.1:1", "grpcs://127.0.0.1:1"):
        with pytest.raises(FileNotFoundError):
            clients.make(way, url=url, tls=TLS(ca="/nowhere/ca.pem"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_comes_later(clients: Clients, way: str, protocol: str) -> None:
    (port,) = free_ports(1)
    client = clients.make(way, url=f"{protocol}://127.0.0.1:{port}")
    for _ in range(10):
        with pytest.raises(Unavailable):
            client.ping()
    with http_server(healthy, port=port) if protocol == "http" else grpc_server(port):
        assert client.wait_healthy(30).healthy


def test_silence_ends_in_time(clients: Clients, way: str) -> None:
    go_on = threading.Event()

    def hang(_: BaseHTTPRequestHandler) -> None:
        go_on.wait(60)

    with http_server(hang) as port:
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.2 s"):
            clients.make(way, url=f"http://127.0.0.1:{port}", timeout=0.2).predict("m", b"")
        go_on.set()


def test_trickles_end_in_time(clients: Clients, way: str) -> None:
    stop = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "1000000")
        handler.end_headers()
        while not stop.wait(0.01):
            handler.wfile.write(b".")

    with http_server(trickle) as port:
        client = clients.make(way, url=f"http://127.0.0.1:{port}", timeout=0.3)
        with pytest.raises(DeadlineExceeded, match=r"no complete answer within 0\.3 s"):
            client.predict("m", b"")
        parts = client.stream("m", b"", timeout=0.3)
        assert next(parts) == b"."
        with pytest.raises(DeadlineExceeded, match=r"no complete answer within 0\.3 s"):
            list(parts)
        stop.set()


def test_answers_that_break_off(clients: Clients, way: str) -> None:
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "10")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    with http_server(half) as port:
        client = clients.make(way, url=f"http://127.0.0.1:{port}")
        with pytest.raises(Unavailable):
            client.predict("m", b"")
        parts = client.stream("m", b"")
        assert next(parts) == b"half"
        with pytest.raises(PredictionFailed, match="the stream broke off"):
            list(parts)


def test_connections_are_used_again(clients: Clients, way: str) -> None:
    with counting_server() as (port, connections):
        client = clients.make(way, url=f"http://127.0.0.1:{port}")
        for _ in range(3):
            assert client.predict("m", b"").content == HEALTHY
        assert list(client.stream("m", b"")) == [HEALTHY]
        assert len(connections) == 1


def test_connections_at_a_time(clients: Clients) -> None:
    barrier = threading.Barrier(4, timeout=60)

    async def ask(port: int) -> None:
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            for _ in range(2):
                await asyncio.gather(*(client.predict("m", b"") for _ in range(4)))

    with counting_server(barrier.wait) as (port, connections):
        clients.run(ask(port))
        assert len(connections) == 4
        with ThreadPoolExecutor(4) as threads, Client(f"http://127.0.0.1:{port}") as client:
            for _ in range(2):
                list(threads.map(lambda _: client.predict("m", b""), range(4)))
        assert len(connections) == 8


def test_calls_that_are_cancelled_leave_no_connection(clients: Clients) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        go_on.wait(60)

    async def ask(port: int) -> bytes:
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            call = asyncio.create_task(client.predict("m", b""))
            await asyncio.to_thread(arrived.wait, 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go_on.set()
            return (await client.predict("m", b"")).content

    with counting_server(hold) as (port, connections):
        assert clients.run(ask(port)) == HEALTHY
        assert len(connections) == 2


def test_closed_clients_send_nothing(clients: Clients, way: str) -> None:
    with counting_server() as (port, connections):
        client = clients.make(way, url=f"http://127.0.0.1:{port}")
        client.close()
        with pytest.raises(RuntimeError):
            client.predict("m", b"")
        assert not connections


def test_what_is_no_model_server(clients: Clients, way: str) -> None:
    def odd(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.send_header("content-length", "4")
        handler.end_headers()
        handler.wfile.write(b"oops")

    with http_server(odd) as port:
        with pytest.raises(ServerError, match=r"^oops$"):
            clients.make(way, url=f"http://127.0.0.1:{port}").ping()
        with pytest.raises(Unavailable):
            clients.make(way, url=f"grpc://127.0.0.1:{port}", timeout=5).ping()
