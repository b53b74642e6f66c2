"""Time limits and full queues (rest_api.md §3.11, §3.13, §3.14; rows 61, 113, 117)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.expect import assert_body, assert_error
from tests.support.raw import encode
from tests.support.server import is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import RawConnection, RawResponse
    from tests.support.server import Gate, Server

FAILURE = "InternalServerException"
TAIL = (
    "has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


class Clients:
    """Requests that are under way at the same time."""

    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._target = f"/predictions/{model}"
        self.open: list[RawConnection] = []

    def send(self, gate: Gate | None = None, **headers: str) -> RawConnection:
        """Send a request and do not wait for its answer."""
        connection = self._server.inference.connect()
        self.open.append(connection)
        fields = {"x-op": "pid", **headers} | ({"x-gate": gate.name} if gate else {})
        connection.send(encode("POST", self._target, fields, b"x"))
        return connection

    def call(self, **headers: str) -> RawResponse:
        return self._server.inference.request("POST", self._target, {"x-op": "pid", **headers}, b"x")


@pytest.fixture
def gate(server: Server) -> Iterator[Gate]:
    gate = server.gate()
    yield gate
    gate.open()


def clients_of(server: Server, url: str, name: str, **params: object) -> Iterator[Clients]:
    with server.registered(url, name, initial_workers=1, **params):
        clients = Clients(server, name)
        yield clients
        for connection in clients.open:
            connection.close()


@pytest.fixture
def hurried(server: Server) -> Iterator[Clients]:
    """Clients of a model whose handler gets two seconds."""
    yield from clients_of(server, "swiss_v3.mar", "hurried", response_timeout=2)


@pytest.fixture
def impatient(server: Server) -> Iterator[Clients]:
    """Clients of a model that gives up on a request after half a second."""
    yield from clients_of(server, "impatient.mar", "impatient")


@pytest.fixture
def ticket(server: Server) -> Iterator[Clients]:
    """Clients of a model that takes requests only while a worker is idle."""
    yield from clients_of(server, "ticket.mar", "ticket")


@pytest.fixture
def narrow(server: Server) -> Iterator[Clients]:
    """Clients of a model with a queue of two."""
    yield from clients_of(server, "narrow.mar", "narrow")


def assert_timed_out(response: RawResponse) -> None:
    assert response.status == 408
    assert_error(response, 408, "RequestTimeoutException", response.json()["message"])


def test_row_061_startup_timeout(server: Server) -> None:
    response = server.register("slowinit.mar", model_name="toolate", initial_workers=1, startup_timeout=1)
    message = "Failed to start workers for model toolate version: 1.0"
    assert_error(response, 500, FAILURE, message)
    if is_reference():  # there it goes a moment later
        wait_for("the rollback", lambda: server.management.get("/models/toolate").status == 404)
    assert server.management.get("/models/toolate").status == 404


def test_row_113_response_timeout(hurried: Clients, gate: Gate) -> None:
    held = hurried.send(gate)
    assert_error(held.read_response(), 500, FAILURE, "Worker died.", 84)
    assert hurried.call().status == 200


def test_response_timeout_starts_anew_with_each_chunk(hurried: Clients) -> None:
    response = hurried.call(**{"x-op": "stream", "x-pause": "1.2"})
    assert response.chunks == [b"part0 ", b"part1 ", b"part2 ", b"last"]


@pytest.mark.fix
def test_response_timeout_of_customized_description(server: Server, hurried: Clients, gate: Gate) -> None:
    response = server.management.get("/models/hurried?customized=true", {"x-gate": gate.name})
    assert_error(response, 500, FAILURE, "Worker died.")
    assert hurried.call().status == 200


def test_client_timeout_not_reached(impatient: Clients) -> None:
    assert impatient.call().status == 200


@pytest.mark.fix
def test_client_timeout_of_a_running_request(server: Server, impatient: Clients, gate: Gate) -> None:
    held = impatient.send(gate)
    gate.wait_arrived()
    assert_timed_out(held.read_response())
    assert held.ending() == "fin"
    gate.open()
    wait_for("the worker to be free", lambda: impatient.call().status == 200)


@pytest.mark.fix
def test_client_timeout_of_a_queued_request(server: Server, impatient: Clients, gate: Gate) -> None:
    held = impatient.send(gate)
    gate.wait_arrived()
    other = server.gate()
    queued = impatient.send(other)
    for connection in (held, queued):
        assert_timed_out(connection.read_response())
    gate.open()
    wait_for("the worker to be free", lambda: impatient.call().status == 200)
    assert other.arrivals() == 0  # nobody was waiting for it any more


def test_job_ticket(server: Server, ticket: Clients, gate: Gate) -> None:
    assert ticket.call().status == 200
    held = ticket.send(gate)
    gate.wait_arrived()
    assert_error(ticket.call(), 503, "ServiceUnavailableException", f'Model "ticket" {TAIL}')
    assert server.management.get("/models/ticket?customized=true").status == 503
    gate.open()
    assert held.read_response().status == 200
    wait_for("a ticket", lambda: ticket.call().status == 200)


def test_queue_full(server: Server, narrow: Clients, gate: Gate) -> None:
    held = [narrow.send(gate)]
    gate.wait_arrived()
    for count in (1, 2):
        held.append(narrow.send(gate))
        server.wait_pending("narrow", count)
    assert server.describe("narrow")["jobQueueStatus"] == {"remainingCapacity": 0, "pendingRequests": 2}
    refused = narrow.call()
    assert_error(refused, 503, "ServiceUnavailableException", f'Model "narrow" {TAIL}')
    description = server.management.get("/models/narrow?customized=true")
    assert description.status == 503
    gate.open()
    assert [connection.read_response().status for connection in held] == [200, 200, 200]


@pytest.mark.fix
def test_queued_request_of_a_client_that_left_is_dropped(server: Server, narrow: Clients, gate: Gate) -> None:
    other = server.gate()
    held = narrow.send(gate)
    gate.wait_arrived()
    gone = narrow.send(other)
    server.wait_pending("narrow", 1)
    gone.close()
    server.wait_pending("narrow", 0)
    gate.open()
    assert held.read_response().status == 200
    assert narrow.call().status == 200
    assert other.arrivals() == 0


@pytest.mark.fix
def test_row_117_batch_queue_and_client_timeout(server: Server) -> None:
    """Two requests run, two wait in the queue until their time is over, and two are refused."""
    first, second = server.gate(), server.gate()
    name = "cfg1q"
    with server.registered("cfg1fixed.mar", name):
        clients = Clients(server, name)
        try:
            running = [clients.send(first), clients.send(first)]
            first.wait_arrived()
            waiting = [clients.send(second)]
            server.wait_pending(name, 1)
            waiting.append(clients.send(second))
            server.wait_pending(name, 2)
            refused = [clients.call() for _ in range(2)]
            first.open()
            assert [connection.read_response().status for connection in running] == [200, 200]
            assert [response.status for response in refused] == [503, 503]
            for connection in waiting:
                assert_timed_out(connection.read_response())
        finally:
            for gate in (first, second):
                gate.open()
            for connection in clients.open:
                connection.close()


@pytest.mark.fix
@pytest.mark.skipif(is_reference(), reason="the request would wait for ever")
def test_no_worker_can_recover(server: Server) -> None:
    with server.registered("badretry.mar", "hopeless"):
        assert server.management.request("PUT", "/models/hopeless?min_worker=1").status == 202
        wait_for("the end of the retries", lambda: server.inference.get("/ping").status == 500)
        clients = Clients(server, "hopeless")
        assert_error(clients.call(), 503, "ServiceUnavailableException", f'Model "hopeless" {TAIL}')


def test_requests_wait_for_a_loading_worker(server: Server) -> None:
    name = "patience"
    try:
        assert server.register("slowinit.mar", model_name=name, initial_workers=1, synchronous="false").status == 202
        server.gate(name).wait_arrived()
        with server.inference.connect() as connection:
            connection.send(encode("POST", f"/predictions/{name}", (), b"x"))
            server.wait_pending(name, 1)
            server.gate(name).open()
            assert_body(connection.read_response(), 200, b"at last")
    finally:
        server.gate(name).open()
        server.unregister(name)
