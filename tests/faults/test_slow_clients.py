"""Clients that are slow, silent or gone: nobody else waits for them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.faults.support import MIB, Client, Clients, accepted, add_model, frontend, predict, queue_status
from tests.support.raw import encode
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil
    from tests.conftest import ServerFactory
    from tests.support.raw import RawConnection
    from tests.support.server import Server

HALF_OPEN = 50
BIG = 6_000_000
"""Bytes; just below the default of max_response_size."""
STREAMED = 600 * MIB
FLOOD = f"""
import os
from pathlib import Path

from ts.handler_utils.utils import send_intermediate_predict_response

GATES = Path(os.environ["RELIGHT_TEST_GATES"])
CHUNK = "x" * {MIB}


def handle(data, context):
    if not data:
        return None
    chunks = 0
    while chunks < {STREAMED // MIB} and not context.is_cancelled():
        send_intermediate_predict_response([CHUNK], context.request_ids, "more", 200, context)
        chunks += 1
    (GATES / "flood.part").write_text(str(chunks))
    (GATES / "flood.part").rename(GATES / "flood")
    return ["end"]
"""
WATCHFUL = """
import os
import time
from pathlib import Path

GATES = Path(os.environ["RELIGHT_TEST_GATES"])


def handle(data, context):
    if not data:
        return None
    names = [context.get_request_header(idx, "x-name") for idx in range(len(data))]
    for name in names:
        (GATES / f"seen-{name}").touch()
    deadline = time.monotonic() + 60
    while not (GATES / "let-go").exists() and time.monotonic() < deadline:
        for idx, name in enumerate(names):
            if context.is_cancelled(idx):
                (GATES / f"cancelled-{name}").touch()
        time.sleep(0.005)
    return ["done"] * len(data)
"""


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = make_server()
    assert server.register("swiss_v1.mar", initial_workers=1).status == 200
    assert server.register("noop.mar", initial_workers=1).status == 200
    yield server
    server.stop()


def assert_others_are_served(server: Server, count: int = 3) -> None:
    """Use every listener as a client who has nothing to do with the slow ones."""
    for _ in range(count):
        assert server.inference.request("POST", "/predictions/noop", (), b"x").status == 200
        assert server.inference.get("/ping").status == 200
        assert server.management.get("/models/noop").status == 200
        assert server.metrics.get("/metrics").status == 200


def assert_closed(connection: RawConnection) -> None:
    """Wait until the server has broken the connection off; what it sent before is read and dropped."""
    with contextlib.suppress(ConnectionResetError):
        while connection.socket.recv(1 << 20):
            pass


def test_one_byte_at_a_time(target: Server, clients: Clients) -> None:
    data = predict("swiss", {"x-op": "pid"}, b"slow body")
    slow = clients.connect(target.inference.address)
    for at in range(len(data)):
        slow.send(data[at : at + 1])
        assert_others_are_served(target, 1)
    assert slow.read_response().status == 200


@pytest.mark.parametrize("before", [b"", encode("GET", "/ping")], ids=["first", "pipelined"])
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_request_in_two_pieces(target: Server, clients: Clients, method: str, before: bytes) -> None:
    """Wherever the network cuts a request, it is the same request."""
    data = encode(method, "/predictions/noop", body=b"x")
    for at in range(1, len(data)):
        client = clients.connect(target.inference.address, before + data[:at])
        # An answer on another connection: the server has had the time to read the first piece.
        assert target.inference.get("/ping").status == 200
        client.send(data[at:])
        assert [client.read_response().status for _ in range(1 + bool(before))] == [200] * (1 + bool(before)), data[:at]
        client.close()


def test_many_slow_requests_at_once(target: Server, clients: Clients) -> None:
    data = predict("noop", body=b"a body that takes its time")
    slow = [clients.connect(target.inference.address) for _ in range(HALF_OPEN)]
    for at in range(0, len(data), 7):
        for connection in slow:
            connection.send(data[at : at + 7])
        assert_others_are_served(target, 1)
    assert [connection.read_response().status for connection in slow] == [200] * HALF_OPEN


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"P",
        b"POST /predictions/noop HTTP/1.1\r\nHost: test\r\nX-Unfin",
        b"POST /predictions/noop HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nhalf of it",
        b"POST /predictions/noop HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
    ],
    ids=["nothing", "method", "header", "body", "chunk"],
)
def test_half_open_connections(target: Server, beginning: bytes) -> None:
    process = frontend(target)
    clients = Clients()
    try:
        for listener in (target.inference, target.management, target.metrics):
            for _ in range(HALF_OPEN):
                clients.connect(listener.address, beginning)
        wait_for("connections", lambda: accepted(process) >= 3 * HALF_OPEN)
        assert_others_are_served(target)
    finally:
        clients.close()
    wait_for("the end of the connections", lambda: not accepted(process))


def test_requests_whose_answers_are_not_read(target: Server, clients: Clients) -> None:
    """The server does not start on the next request of a client that has not read the last answer."""
    process = frontend(target)
    request = predict("swiss", {"x-op": "big", "x-n": str(BIG)})
    for _ in range(2):
        assert len(target.inference.request("POST", "/predictions/swiss", {"x-op": "big", "x-n": str(BIG)}).body) == BIG
    before = process.memory_info().rss
    lazy = [clients.connect(target.inference.address) for _ in range(3)]
    for connection in lazy:
        connection.send(request * 20)
    assert_others_are_served(target)
    # Another client of the same model, behind them in the queue.
    assert target.inference.request("POST", "/predictions/swiss", {"x-op": "pid"}, b"x").status == 200
    wait_for("no work left", lambda: queue_status(target, "swiss")["pendingRequests"] == 0)
    # Per client: an answer in the buffer, and one more on its way. All of them would be 360 MB.
    assert process.memory_info().rss < before + 3 * 3 * BIG + 15 * MIB
    for connection in lazy:
        for _ in range(20):
            assert len(connection.read_response().body) == BIG


def test_stream_that_is_read_late(target: Server, clients: Clients) -> None:
    """The handler waits for its client, the server keeps next to nothing, and nothing is lost."""
    process = frontend(target)
    peak = Peak(process)
    (target.gates / "flood").unlink(missing_ok=True)
    with target.registered(add_model(target, "flood", FLOOD), "flood", initial_workers=1):
        before = process.memory_info().rss
        lazy = clients.connect(target.inference.address, predict("flood"))
        for _ in range(20):
            assert_others_are_served(target, 1)
        assert not (target.gates / "flood").exists()
        received = 0
        while not (target.gates / "flood").exists():
            received += len(lazy.socket.recv(1 << 20))
            peak.measure()
        while received < STREAMED:
            received += len(lazy.socket.recv(1 << 20))
        assert int((target.gates / "flood").read_text()) == STREAMED // MIB
        assert peak.rss < before + 30 * MIB


def test_stream_that_is_not_read_is_broken_off(target: Server, clients: Clients) -> None:
    """A worker waits for a client as long as a client for a worker; then the client loses its stream."""
    process = frontend(target)
    peak = Peak(process)
    (target.gates / "flood").unlink(missing_ok=True)
    url = add_model(target, "flood", FLOOD, "responseTimeout: 2\n")
    with target.registered(url, "flood", initial_workers=1):
        before = process.memory_info().rss
        lazy = clients.connect(target.inference.address, predict("flood"))

        def finished() -> bool:
            peak.measure()
            assert_others_are_served(target, 1)
            return (target.gates / "flood").exists()

        wait_for("the end of the flood", finished)
        chunks = int((target.gates / "flood").read_text())
        assert chunks < STREAMED // MIB, "the handler was not told"
        assert peak.rss < before + 30 * MIB
        assert_closed(lazy)
        # Its worker is free again.
        target.wait_ready("flood")
        assert queue_status(target, "flood")["pendingRequests"] == 0


class Peak:
    """The most resident memory that was seen."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.rss = 0

    def measure(self) -> None:
        self.rss = max(self.rss, self._process.memory_info().rss)


def test_client_gone_while_queued(target: Server, clients: Clients) -> None:
    """Its request leaves the queue at once, and no handler ever sees it."""
    (target.gates / "let-go").unlink(missing_ok=True)
    url = add_model(target, "watchful", WATCHFUL, "batchPolicy: fixed\nmaxBatchDelay: 1\n")
    with target.registered(url, "watchful", initial_workers=1):
        first = clients.connect(target.inference.address, predict("watchful", {"x-name": "first"}))
        wait_for("the first request", (target.gates / "seen-first").exists)
        gone = [
            clients.connect(target.inference.address, predict("watchful", {"x-name": f"gone{number}"}))
            for number in range(10)
        ]
        stays = clients.connect(target.inference.address, predict("watchful", {"x-name": "stays"}))
        target.wait_pending("watchful", 11)
        for connection in gone:
            connection.close()
        target.wait_pending("watchful", 1)
        (target.gates / "let-go").touch()
        assert [connection.read_response().status for connection in (first, stays)] == [200, 200]
        assert queue_status(target, "watchful")["pendingRequests"] == 0
        assert not list(target.gates.glob("seen-gone*"))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_client_gone_while_running(target: Server, clients: Clients, batch_size: int) -> None:
    """The handler can ask whether somebody still waits for each of its requests."""
    (target.gates / "let-go").unlink(missing_ok=True)
    url = add_model(target, "watchful", WATCHFUL, "batchPolicy: fixed\nmaxBatchDelay: 60000\n")
    with target.registered(url, "watchful", initial_workers=1, batch_size=batch_size):
        names = [f"run{batch_size}-{number}" for number in range(batch_size)]
        running = [
            clients.connect(target.inference.address, predict("watchful", {"x-name": name}, name.encode()))
            for name in names
        ]
        wait_for("the batch", lambda: all((target.gates / f"seen-{name}").exists() for name in names))
        running[-1].close()
        wait_for("word of the client's end", (target.gates / f"cancelled-{names[-1]}").exists)
        assert not [name for name in names[:-1] if (target.gates / f"cancelled-{name}").exists()]
        (target.gates / "let-go").touch()
        assert [connection.read_response().status for connection in running[:-1]] == [200] * (batch_size - 1)
        assert target.inference.request("POST", "/predictions/noop", (), b"x").status == 200


def test_many_clients_come_and_go_without_a_word(target: Server) -> None:
    process = frontend(target)
    for _ in range(200):
        Client(target.inference.address).close()
        with Client(target.inference.address) as connection:
            connection.send(encode("POST", "/predictions/swiss", {"x-op": "pid"}, b"x"))
    assert_others_are_served(target)
    wait_for("the end of the connections", lambda: not accepted(process))
    wait_for("an empty queue", lambda: queue_status(target, "swiss")["pendingRequests"] == 0)
