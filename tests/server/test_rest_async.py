"""Models with `asyncCommunication` over HTTP (batching_and_llm.md §10, archives_and_handlers.md §6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.archives import HANDLERS, contents, write_mar
from tests.support.expect import assert_error
from tests.support.raw import encode
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import RawConnection, RawResponse
    from tests.support.server import Gate, Server

PATH = "/predictions/asynchronous"
ASYNC = "asyncCommunication: true\n"


def archive(server: Server, name: str, handler: str, config: str | None = ASYNC) -> str:
    """Put an archive into the model store; its url."""
    files = {**contents(name, handler, config=config), "gates.py": (HANDLERS / "gates.py").read_bytes()}
    return write_mar(server.store / f"{name}.mar", files).name


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return archive(server, "asynchronous", "asynchronous")


@pytest.fixture(scope="module")
def model(server: Server, url: str) -> Iterator[str]:
    with server.registered(url, "asynchronous", initial_workers=1):
        yield PATH


@pytest.fixture
def own(server: Server, url: str) -> Iterator[str]:
    """A model whose worker nobody else uses."""
    with server.registered(url, "own", initial_workers=1, response_timeout=1):
        yield "/predictions/own"


def begin(server: Server, body: bytes, op: str, gate: Gate | None = None, path: str = PATH) -> RawConnection:
    """Send a request over a connection of its own, and wait for nothing."""
    connection = server.inference.connect()
    headers = {"x-op": op, **({"x-gate": gate.name} if gate else {})}
    connection.send(encode("POST", path, headers, body))
    return connection


def read_all(connections: list[RawConnection]) -> list[RawResponse]:
    """Read the answer from each connection, and close it."""
    responses = []
    for connection in connections:
        with connection:
            responses.append(connection.read_response())
    return responses


def test_requests_run_at_the_same_time(server: Server, model: str) -> None:
    gate = server.gate()
    connections = [begin(server, b"%d" % number, "echo", gate) for number in range(300)]
    gate.wait_arrived(300)
    assert server.describe("asynchronous")["jobQueueStatus"]["pendingRequests"] == 0
    gate.open()
    for number, response in enumerate(read_all(connections)):
        answer = response.json()
        assert (response.status, answer["body"]) == (200, str(number))
        assert answer["id"] == response.header("x-request-id") == response.header("x-id")


def test_they_are_answered_as_they_end(server: Server, model: str) -> None:
    slow, quick = server.gate(), server.gate()
    with begin(server, b"slow", "echo", slow) as first, begin(server, b"quick", "echo", quick) as second:
        slow.wait_arrived()
        quick.wait_arrived()
        quick.open()
        assert second.read_response().json()["body"] == "quick"
        slow.open()
        assert first.read_response().json()["body"] == "slow"


def test_each_has_a_context_of_its_own_and_the_loop_of_initialize(server: Server, model: str) -> None:
    for _ in range(2):
        answer = server.inference.request("POST", PATH, {"x-op": "echo"}, b"x").json()
        # What a request puts into the context, the next one does not see; what cannot be copied is shared.
        assert (answer["scratch"], answer["loop"], answer["lock"]) == (1, True, True)


@pytest.mark.fix
@pytest.mark.parametrize(
    ("op", "status", "message"),
    [
        ("raise", 503, "Prediction failed"),
        ("refuse", 444, "not this one"),
        ("cancelled_error", 503, "Prediction failed"),
    ],
)
def test_an_error_concerns_its_request_alone(server: Server, model: str, op: str, status: int, message: str) -> None:
    """TorchServe sends it to all that are under way."""
    gate, bad = server.gate(), server.gate()
    with begin(server, b"x", "echo", gate) as plain, begin(server, b"s", "stream", gate) as stream:
        gate.wait_arrived(2)
        with begin(server, b"x", op, bad) as failing:
            bad.open()
            assert_error(failing.read_response(), status, "InternalServerException", message)
        gate.open()
        assert plain.read_response().status == 200
        assert stream.read_response().chunks == [b"s-0 ", b"s-1 ", b"s-2 ", b"s-3 ", b"end"]


def test_streams_run_at_the_same_time(server: Server, model: str) -> None:
    gate = server.gate()
    connections = [begin(server, b"%d" % number, "stream", gate) for number in range(20)]
    gate.wait_arrived(20)
    for number, connection in enumerate(connections):
        connection.read_head()
        assert connection.read_chunk() == b"%d-0 " % number
    gate.open()
    for number, connection in enumerate(connections):
        with connection:
            parts = [connection.read_chunk() for _ in range(5)]
            assert parts == [b"%d-%d " % (number, part) for part in (1, 2, 3)] + [b"end", b""]


def test_a_handler_that_is_not_asynchronous_fails_its_requests(server: Server) -> None:
    with server.registered(archive(server, "swissasync", "swiss"), "swissasync", initial_workers=1):
        for _ in range(2):
            response = server.inference.request("POST", "/predictions/swissasync", (), b"x")
            assert_error(response, 503, "InternalServerException", "Prediction failed")
    assert "asyncCommunication needs an `async def handle`" in server.log


@pytest.mark.fix
def test_async_def_without_the_key_runs_one_batch_at_a_time(server: Server) -> None:
    """TorchServe answers 503 `Invalid model predict output`."""
    gate = server.gate()
    path = "/predictions/serial"
    with server.registered(archive(server, "serial", "asynchronous", None), "serial", initial_workers=1):
        with begin(server, b"1", "echo", gate, path) as first, begin(server, b"2", "echo", gate, path) as second:
            gate.wait_arrived()
            assert gate.arrivals() == 1
            gate.open()
            answers = [connection.read_response().json() for connection in (first, second)]
        assert [(answer["body"], answer["loop"]) for answer in answers] == [("1", True), ("2", True)]
        response = server.inference.request("POST", path, {"x-op": "stream"}, b"s")
        assert response.chunks == [b"s-0 ", b"s-1 ", b"s-2 ", b"s-3 ", b"end"]
        assert_error(
            server.inference.request("POST", path, {"x-op": "raise"}, b"s"),
            503,
            "InternalServerException",
            "Prediction failed",
        )


def test_describe(server: Server, model: str) -> None:
    document = server.management.get("/models/asynchronous?customized=true").json()
    assert document[0]["customizedMetadata"] == {"who": "asynchronous"}


@pytest.mark.parametrize("op", ["watch", "watch_without_rest"])
def test_a_handler_can_see_that_its_client_has_gone(server: Server, model: str, op: str) -> None:
    before = _cancelled(server)
    with begin(server, b"x", op) as connection:
        connection.read_head()
        connection.read_chunk()
    wait_for("the handler to see it", lambda: _cancelled(server) == before + 1)


def _cancelled(server: Server, path: str = PATH) -> int:
    count: int = server.inference.request("POST", path, {"x-op": "cancelled"}, b"x").json()["cancelled"]
    return count


@pytest.mark.fix
def test_the_response_timeout_ends_one_request(server: Server, own: str) -> None:
    """TorchServe does not enforce it."""
    pid = server.ready_workers("own")[0]["pid"]
    with begin(server, b"x", "stream", path=own) as stream, begin(server, b"x", "hang", path=own) as hanging:
        message = "No response within response_timeout of 1 s."
        assert_error(hanging.read_response(), 500, "InternalServerException", message)
        assert stream.read_response().status == 200
    assert _cancelled(server, own) == 1
    assert server.ready_workers("own")[0]["pid"] == pid


def test_batches(server: Server) -> None:
    """They form while requests wait for each other, as the worker is never busy."""
    config = f"{ASYNC}batchSize: 4\nmaxBatchDelay: 60000\n"
    with server.registered(archive(server, "batches", "asynchronous", config), "batches", initial_workers=1):
        connections = [begin(server, b"%d" % number, "echo", path="/predictions/batches") for number in range(8)]
        answers = [response.json() for response in read_all(connections)]
        assert [answer["n"] for answer in answers] == [4] * 8
        assert sorted(answer["body"] for answer in answers) == [str(number) for number in range(8)]


@pytest.mark.fix
def test_death_ends_what_was_begun_and_nothing_else(server: Server, own: str) -> None:
    """TorchServe leaves those requests without an answer."""
    gate, fatal = server.gate(), server.gate()
    with begin(server, b"x", "stream", gate, own) as stream, begin(server, b"x", "exit", fatal, own) as last:
        stream.read_head()
        assert stream.read_chunk() == b"x-0 "
        fatal.wait_arrived()
        fatal.open()
        assert_error(last.read_response(), 500, "InternalServerException", "Worker died.")
        with pytest.raises(ConnectionError):
            stream.read_chunk()
    assert server.inference.request("POST", own, {"x-op": "echo"}, b"x").status == 200
    assert server.describe("own")["workers"][0]["status"] == "READY"


def test_two_workers_share_the_requests(server: Server, url: str) -> None:
    with server.registered(url, "two", initial_workers=2):
        server.wait_ready("two", 2)
        gate = server.gate()
        connections = [begin(server, b"x", "echo", gate, "/predictions/two") for _ in range(10)]
        gate.wait_arrived(10)
        gate.open()
        pids = [response.json()["pid"] for response in read_all(connections)]
        assert sorted(pids.count(pid) for pid in set(pids)) == [5, 5]


def test_a_slow_client_holds_up_its_own_handler_alone(server: Server, model: str) -> None:
    parts, size = 200, 1 << 20
    headers = {"x-op": "stream", "x-parts": str(parts), "x-size": str(size)}

    def sent() -> int:
        count: int = server.inference.request("POST", PATH, {"x-op": "sent"}, b"x").json()["sent"]
        return count

    def waits() -> bool:
        # Each of these requests is a turn of the worker's loop, in which the handler could go on.
        counts = [sent() for _ in range(20)]
        return counts[0] == counts[-1]

    before = sent()
    with server.inference.connect() as lazy:
        lazy.send(encode("POST", PATH, headers, b"s"))
        lazy.read_head()
        wait_for("the handler to wait for its client", waits)
        assert 0 < sent() - before < parts
        total = 0
        while lazy.read_chunk():
            total += 1
        assert total == parts + 1


def test_unregistering_lets_them_end(server: Server, own: str) -> None:
    gate = server.gate()
    with begin(server, b"x", "echo", gate, own) as connection, server.management.connect() as operator:
        gate.wait_arrived()
        operator.send(encode("DELETE", "/models/own"))
        gate.open()
        assert connection.read_response().status == 200
        assert operator.read_response().status == 200


def test_the_traceback_of_an_asynchronous_initialize_begins_with_the_handler(server: Server) -> None:
    files = contents("badasync", "noop", config=ASYNC)
    files["noop.py"] = (
        b"class H:\n    async def initialize(self, context):\n        raise ValueError('no weights')\n\n"
        b"    async def handle(self, data, context):\n        return data\n"
    )
    write_mar(server.store / "badasync.mar", files)
    assert server.register("badasync.mar", initial_workers=1, synchronous="false").status == 202
    try:
        failure = wait_for("the failure", lambda: server.describe("badasync")["workers"][0].get("lastFailure"))
        assert failure["exception"] == "ValueError: no weights"
        assert "in initialize" in failure["traceback"].splitlines()[1]
    finally:
        server.unregister("badasync")
