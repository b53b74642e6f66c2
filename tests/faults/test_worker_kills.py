"""Workers are killed, again and again, while clients send: only what they were running is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.faults.support import (
    LONG,
    MIB,
    Load,
    accepted,
    deaths,
    fork_servers,
    frontend,
    holdings,
    kill,
    predict,
    queue_status,
    wait_back,
)
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.faults.support import Clients
    from tests.support.server import Server

CLIENTS = 32
KEPT = 15 * MIB
"""What the allocators may keep of a load; a leak of one batch per kill would be far more."""
SETTLED = 1.1
"""Seconds after which a worker that dies is not held to be in a crash loop, and is restarted at once."""


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = make_server()
    yield server
    server.stop()


class Killer:
    """Kills workers of a model.

    Args:
        server: The server.
        model: The model.
        settled: Seconds that a worker is left alone.
    """

    def __init__(self, server: Server, model: str, settled: float) -> None:
        self._server = server
        self._model = model
        self._settled = settled
        self._seen: dict[int, float] = {}
        self._random = random.Random(model)
        self.killed: list[int] = []

    def kill_one(self) -> int:
        """Kill a random ready worker, and wait until the server knows."""
        pid = self._random.choice(wait_for(f"a worker to kill of {self._model}", self._candidates))
        kill(pid)
        self.killed.append(pid)
        wait_for("the end of the worker", lambda: pid not in self._pids())
        return pid

    def _pids(self) -> list[int]:
        return [worker["pid"] for worker in self._server.ready_workers(self._model)]

    def _candidates(self) -> list[int]:
        now = time.monotonic()
        return [pid for pid in self._pids() if now - self._seen.setdefault(pid, now) >= self._settled]


def _lost_requests(records: list[str]) -> list[list[str]]:
    lines = [line for record in records for line in record.splitlines() if line.startswith("requests lost: ")]
    return [[] if line.endswith(": none") else line.removeprefix("requests lost: ").split(", ") for line in lines]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("workers", "batch_size", "kills", "settled"),
    [
        (4, 4, 50, SETTLED),
        (4, 2, 50 if LONG else 15, 0.0),
        (2, 8, 50 if LONG else 10, SETTLED),
        (1, 1, 50 if LONG else 10, SETTLED),
    ],
    ids=["four-workers", "four-workers-in-a-hurry", "two-workers-large-batches", "one-worker"],
)
def test_kills_under_load(target: Server, workers: int, batch_size: int, kills: int, settled: float) -> None:
    model = f"mortal-{workers}-{batch_size}"
    with target.registered("swiss_v1.mar", model, initial_workers=workers, batch_size=batch_size):
        request = predict(model, {"x-op": "sleep", "x-sleep": "0.002"})
        # The first round brings allocators and caches to where they stay.
        with Load(target.inference.address, request, CLIENTS) as load:
            load.wait_progress(5)
        watched = [frontend(target), *fork_servers(target)]
        wait_for("the end of all connections", lambda: not accepted(watched[0]))
        before = [holdings(process) for process in watched]

        killer = Killer(target, model, settled)
        with Load(target.inference.address, request, CLIENTS) as load:
            for _ in range(kills):
                load.wait_progress()
                killer.kill_one()
            load.wait_progress(3)
        target.wait_ready(model, workers)

        _check_outcomes(load, target, model, batch_size, kills)
        assert queue_status(target, model) == {"remainingCapacity": 100, "pendingRequests": 0}
        for process, then in zip(watched, before, strict=True):
            assert process.is_running()
            wait_back(f"what {process.pid} held before", process, then, KEPT)


def _check_outcomes(load: Load, server: Server, model: str, batch_size: int, kills: int) -> None:
    failed = [outcome for outcome in load.outcomes if outcome.status != 200]
    assert {(outcome.status, _message(outcome.text)) for outcome in failed} <= {(507, "Worker died.")}, load.statuses
    assert {outcome.text for outcome in load.outcomes if outcome.status == 200} == {"slept"}
    records = deaths(server, model)
    assert len(records) == kills
    lost = _lost_requests(records)
    assert len(lost) == kills
    assert all(len(each) <= batch_size for each in lost)
    # What the log says was running is what failed, to the request.
    assert Counter(request for each in lost for request in each) == Counter(outcome.request_id for outcome in failed)


def _message(text: str) -> str:
    return text.partition('"message": "')[2].partition('"')[0]


def test_killed_worker_while_idle_loses_nothing(target: Server) -> None:
    with target.registered("swiss_v1.mar", "idler", initial_workers=1):
        for _ in range(2):
            (worker,) = target.wait_ready("idler")
            kill(worker["pid"])
            response = target.inference.request("POST", "/predictions/idler", {"x-op": "pid"}, b"x")
            assert response.status == 200
            assert int(response.body) != worker["pid"]


def test_pipelined_batches_are_given_to_the_next_worker(target: Server, clients: Clients) -> None:
    """What lies in the socket of a dead worker, but was not begun, is not lost."""
    with target.registered("swiss_v1.mar", "ahead", initial_workers=1) as model:
        # Short turns bring the pipeline to its depth.
        for _ in range(50):
            assert target.inference.request("POST", f"/predictions/{model}", {"x-op": "pid"}, b"x").status == 200
        gate = target.gate()
        (worker,) = target.wait_ready(model)
        first = clients.connect(target.inference.address, predict(model, {"x-op": "pid", "x-gate": gate.name}))
        gate.wait_arrived()
        others = [clients.connect(target.inference.address, predict(model, {"x-op": "pid"})) for _ in range(5)]
        target.wait_pending(model, 5)
        kill(worker["pid"])
        assert first.read_response().status == 507
        responses = [other.read_response() for other in others]
        assert [response.status for response in responses] == [200] * 5
        assert str(worker["pid"]).encode() not in {response.body for response in responses}
        assert queue_status(target, model)["pendingRequests"] == 0


def test_full_queue_is_refused_at_once(target: Server, clients: Clients) -> None:
    gate = target.gate()
    with target.registered("narrow.mar", "narrowed", initial_workers=1) as model:
        request = predict(model, {"x-op": "pid", "x-gate": gate.name})
        clients.connect(target.inference.address, request)
        gate.wait_arrived()
        for _ in range(2):
            clients.connect(target.inference.address, request)
        target.wait_pending(model, 2)
        for _ in range(20):
            response = target.inference.request("POST", f"/predictions/{model}", (), b"x")
            assert (response.status, response.json()["type"]) == (503, "ServiceUnavailableException")
        gate.open()
        assert [connection.read_response().status for connection in clients.all] == [200] * 3
