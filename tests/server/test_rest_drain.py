"""Scale-down and unregistration with work under way (documented_promises.md: `timeout`; rest_api.md §3.14).

Everything here differs from TorchServe 0.12.0, which kills at once and leaves clients hanging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.expect import assert_status
from tests.support.raw import encode
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import RawConnection
    from tests.support.server import Gate, Server

pytestmark = pytest.mark.fix

MODEL = "drained"
DIED = {500, 503, 507}


class Work:
    """A model with requests at a gate in its handler, and requests behind them."""

    def __init__(self, server: Server, workers: int) -> None:
        self.server = server
        self.gate: Gate = server.gate()
        self.open: list[RawConnection] = []
        response = server.register("swiss_v3.mar", model_name=MODEL, initial_workers=workers)
        assert response.status == 200, response.body

    def hold(self, count: int = 1) -> list[RawConnection]:
        """Send requests that wait in the handler, and wait until they are there."""
        before = self.gate.arrivals()
        sent = [self.send() for _ in range(count)]
        self.gate.wait_arrived(before + count)
        return sent

    def send(self) -> RawConnection:
        """Send one request and do not wait."""
        return self.begin("inference", encode("POST", f"/predictions/{MODEL}", self._headers, b"x"))

    def manage(self, method: str, target: str) -> RawConnection:
        """Send one management call and do not wait."""
        return self.begin("management", encode(method, target))

    def begin(self, listener: str, data: bytes) -> RawConnection:
        connection: RawConnection = getattr(self.server, listener).connect()
        self.open.append(connection)
        connection.send(data)
        return connection

    def workers(self) -> int:
        return len(self.server.describe(MODEL)["workers"])

    def close(self) -> None:
        self.gate.open()
        for connection in self.open:
            connection.close()
        self.server.unregister(MODEL)

    @property
    def _headers(self) -> dict[str, str]:
        return {"x-op": "pid", "x-gate": self.gate.name}


@pytest.fixture
def work(server: Server) -> Iterator[Work]:
    work = Work(server, 1)
    yield work
    work.close()


@pytest.fixture
def wide(server: Server) -> Iterator[Work]:
    work = Work(server, 2)
    yield work
    work.close()


@pytest.mark.parametrize("query", ["", "&timeout=-1", "&timeout=600"])
def test_scale_to_zero_lets_the_running_request_finish(work: Work, query: str) -> None:
    (running,) = work.hold()
    scaling = work.manage("PUT", f"/models/{MODEL}?min_worker=0&synchronous=true{query}")
    wait_for("the new minimum", lambda: work.server.describe(MODEL)["minWorkers"] == 0)
    work.gate.open()
    assert running.read_response().status == 200
    assert_status(scaling.read_response(), 200, f"Workers scaled to 0 for model: {MODEL}")
    wait_for("no workers", lambda: work.workers() == 0)


def test_scale_down_keeps_the_other_worker_busy(wide: Work) -> None:
    running = wide.hold(2)
    queued = [wide.send() for _ in range(3)]
    wide.server.wait_pending(MODEL, 3)
    response = wide.server.management.request("PUT", f"/models/{MODEL}?min_worker=1&max_worker=1")
    assert_status(response, 202, "Processing worker updates...")
    wide.gate.open()
    assert [connection.read_response().status for connection in running + queued] == [200] * 5
    wait_for("one worker", lambda: wide.workers() == 1)
    assert wide.server.ready_workers(MODEL)


def test_scale_to_zero_at_once(work: Work) -> None:
    (running,) = work.hold()
    response = work.server.management.request("PUT", f"/models/{MODEL}?min_worker=0&synchronous=true&timeout=0")
    assert_status(response, 200, f"Workers scaled to 0 for model: {MODEL}")
    assert running.read_response().status in DIED
    assert work.workers() == 0


def test_scale_to_zero_with_a_limit(work: Work) -> None:
    (running,) = work.hold()
    scaling = work.manage("PUT", f"/models/{MODEL}?min_worker=0&synchronous=true&timeout=1")
    assert running.read_response().status in DIED
    assert scaling.read_response().status == 200
    assert work.workers() == 0


@pytest.mark.parametrize("timeout", [-1, 0])
def test_queued_requests_are_answered_after_scaling_to_zero(work: Work, timeout: int) -> None:
    running = work.hold()
    queued = [work.send() for _ in range(3)]
    work.server.wait_pending(MODEL, 3)
    scaling = work.manage("PUT", f"/models/{MODEL}?min_worker=0&synchronous=true&timeout={timeout}")
    wait_for("the new minimum", lambda: work.server.describe(MODEL)["minWorkers"] == 0)
    if timeout == 0:
        assert running[0].read_response().status in DIED
    work.gate.open()
    if timeout == -1:
        assert running[0].read_response().status == 200
    assert {connection.read_response().status for connection in queued} <= {200, 503}
    assert scaling.read_response().status == 200


def test_requests_after_scaling_to_zero_are_refused(work: Work) -> None:
    assert work.server.management.request("PUT", f"/models/{MODEL}?min_worker=0&synchronous=true").status == 200
    response = work.server.inference.request("POST", f"/predictions/{MODEL}", (), b"x")
    assert (response.status, response.json()["type"]) == (503, "ServiceUnavailableException")


@pytest.mark.parametrize("query", ["", "?timeout=-1", "?timeout=600"])
def test_unregister_lets_work_finish(work: Work, query: str) -> None:
    (running,) = work.hold()
    queued = [work.send() for _ in range(2)]
    work.server.wait_pending(MODEL, 2)
    removal = work.manage("DELETE", f"/models/{MODEL}{query}")
    wait_for(
        "no new work is taken",
        lambda: (
            work.server.inference.request("OPTIONS", f"/predictions/{MODEL}").status == 404
            or work.server.inference.request("POST", f"/predictions/{MODEL}", {"x-op": "pid"}, b"x").status
            in {404, 503}
        ),
    )
    work.gate.open()
    assert running.read_response().status == 200
    assert {connection.read_response().status for connection in queued} <= {200, 503}
    assert_status(removal.read_response(), 200, f'Model "{MODEL}" unregistered')
    assert work.server.management.get(f"/models/{MODEL}").status == 404


@pytest.mark.parametrize("timeout", [0, 1])
def test_unregister_with_a_limit(work: Work, timeout: int) -> None:
    (running,) = work.hold()
    queued = [work.send() for _ in range(2)]
    work.server.wait_pending(MODEL, 2)
    removal = work.manage("DELETE", f"/models/{MODEL}?timeout={timeout}")
    assert running.read_response().status in DIED
    assert {connection.read_response().status for connection in queued} <= {503}
    assert_status(removal.read_response(), 200, f'Model "{MODEL}" unregistered')
    assert work.server.management.get(f"/models/{MODEL}").status == 404


def test_management_answers_while_something_drains(work: Work) -> None:
    work.hold()
    removal = work.manage("DELETE", f"/models/{MODEL}")
    for _ in range(5):
        assert work.server.management.get("/models").status == 200
        assert work.server.inference.get("/ping").status == 200
        assert work.server.inference.request("POST", "/predictions/noop", (), b"x").status == 200
    work.gate.open()
    assert removal.read_response().status == 200


def test_name_is_free_after_unregistering(work: Work) -> None:
    for _ in range(3):
        assert work.server.management.request("DELETE", f"/models/{MODEL}").status == 200
        assert work.server.register("swiss_v3.mar", model_name=MODEL, initial_workers=1).status == 200
    assert work.server.inference.request("POST", f"/predictions/{MODEL}", {"x-op": "pid"}, b"x").status == 200
