"""The end of a server: orderly, under load, and by force."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.faults.support import Load, add_model, is_refused, kill, predict
from tests.support.server import Listener
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.faults.support import Clients
    from tests.support.server import Server

CLIENTS = 32
ROUNDS = 3
SLEEPER = """
import os, time
from pathlib import Path


def handle(data, context):
    if not data:
        return None
    (Path(os.environ["RELIGHT_TEST_GATES"]) / f"asleep.{os.getpid()}").touch()
    time.sleep(60)
    return ["awake"] * len(data)
"""
SLOW_IMPORT = """
import os, time
from pathlib import Path

(Path(os.environ["RELIGHT_TEST_GATES"]) / "importing").touch()
time.sleep(60)


def handle(data, context):
    return ["ok"] * len(data)
"""
TORCH = """
import torch


def handle(data, context):
    return [str(torch.ones(1))] * len(data)
"""


@pytest.fixture
def doomed(make_server: ServerFactory) -> Iterator[Server]:
    server = make_server({"disable_token_authorization": "true"})
    yield server
    server.stop()


def family(server: Server) -> list[psutil.Process]:
    """The server process and all that come from it."""
    parent = psutil.Process(server.pid)
    return [parent, *parent.children(recursive=True)]


def exit_status(server: Server) -> int:
    """Wait for the end of the server process."""
    assert server.process is not None
    return server.process.wait(timeout=60)


def assert_gone(server: Server, processes: list[psutil.Process]) -> None:
    """See that no process of a server is left, by kinship and by environment."""
    wait_for("the end of the recorded processes", lambda: not any(map(_lives, processes)))
    wait_for("the end of all others", lambda: not server.processes())


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_again(server: Server) -> None:
    """Start it on the same ports, and use it."""
    server.process = None
    for name in ("inference", "management", "metrics"):
        setattr(server, name, Listener(getattr(server, name).address))
    server.start()
    assert server.inference.get("/ping").status == 200
    assert server.register("swiss_v1.mar", initial_workers=1).status == 200
    assert server.inference.request("POST", "/predictions/swiss", {"x-op": "pid"}, b"x").status == 200


def unpacked(server: Server) -> list[Path]:
    """The directories that models were unpacked to."""
    models = server.temp / "models"
    return [entry for entry in models.iterdir() if entry.is_dir()] if models.exists() else []


def test_sigterm_answers_what_was_accepted(doomed: Server, clients: Clients) -> None:
    """Running, sent ahead and queued: all of it is answered, then everything ends and nothing is left."""
    gate = doomed.gate()
    assert doomed.register("swiss_v1.mar", initial_workers=2, batch_size=2).status == 200
    for _ in range(4):
        clients.connect(doomed.inference.address, predict("swiss", {"x-op": "pid", "x-gate": gate.name}))
    gate.wait_arrived(2)
    for _ in range(CLIENTS):
        clients.connect(doomed.inference.address, predict("swiss", {"x-op": "pid"}))
    wait_for("the queue", lambda: doomed.describe("swiss")["jobQueueStatus"]["pendingRequests"] >= CLIENTS)
    processes = family(doomed)
    assert unpacked(doomed)
    doomed.signal(signal.SIGTERM)
    wait_for("the closed port", lambda: is_refused(doomed.inference.address))
    gate.open()
    assert [connection.read_response().status for connection in clients.all] == [200] * (4 + CLIENTS)
    assert exit_status(doomed) == 128 + signal.SIGTERM
    assert_gone(doomed, processes)
    assert not unpacked(doomed)
    assert "WARN" not in _end_of_log(doomed)
    start_again(doomed)


def _end_of_log(server: Server) -> str:
    return server.log.partition("Stopping: signal")[2]


def test_sigterm_under_load(doomed: Server) -> None:
    """Whatever was sent, whole, before the signal is answered, on connections old and new."""
    assert doomed.register("swiss_v1.mar", initial_workers=2, batch_size=4).status == 200
    request = predict("swiss", {"x-op": "sleep", "x-sleep": "0.002"})
    for round_ in range(ROUNDS):
        with Load(doomed.inference.address, request, CLIENTS) as load:
            load.wait_progress(10)
            processes = family(doomed)
            signalled = time.monotonic()
            doomed.signal(signal.SIGTERM)
            load.join()
        unanswered = [outcome for outcome in load.outcomes if outcome.sent < signalled and outcome.status != 200]
        before = [outcome for outcome in unanswered if outcome.sent]
        assert not before, f"{len(before)} requests that came {signalled - before[-1].sent:.6f} s before the signal"
        assert set(load.statuses) <= {0, 200}
        assert exit_status(doomed) == 128 + signal.SIGTERM
        assert_gone(doomed, processes)
        if round_ < ROUNDS - 1:
            start_again(doomed)


def test_sigterm_right_after_requests_on_new_connections(doomed: Server, clients: Clients) -> None:
    """A connection counts as accepted from the moment the kernel has completed it."""
    assert doomed.register("swiss_v1.mar", initial_workers=1).status == 200
    os.kill(doomed.pid, signal.SIGSTOP)
    try:
        idle = clients.connect(doomed.inference.address)
        request = predict("swiss", {"x-op": "pid"}, b"x" * 100)
        connections = [clients.connect(doomed.inference.address, request) for _ in range(CLIENTS)]
        doomed.signal(signal.SIGTERM)
    finally:
        os.kill(doomed.pid, signal.SIGCONT)
    assert [connection.read_response().status for connection in connections] == [200] * CLIENTS
    assert idle.ending() == "fin"
    assert exit_status(doomed) == 128 + signal.SIGTERM


def test_sigint_ends_with_130_and_removes_the_keys(make_server: ServerFactory) -> None:
    server = make_server({"disable_token_authorization": "false"})
    keys = server.root / "key_file.json"
    assert keys.exists()
    processes = family(server)
    server.signal(signal.SIGINT)
    assert exit_status(server) == 128 + signal.SIGINT
    assert_gone(server, processes)
    assert not keys.exists()


def test_repeated_signals_change_nothing(doomed: Server) -> None:
    gate = doomed.gate()
    assert doomed.register("swiss_v1.mar", initial_workers=1).status == 200
    with doomed.inference.connect() as connection:
        connection.send(predict("swiss", {"x-op": "pid", "x-gate": gate.name}))
        gate.wait_arrived()
        for _ in range(5):
            doomed.signal(signal.SIGTERM)
        doomed.signal(signal.SIGINT)
        wait_for("the closed port", lambda: is_refused(doomed.inference.address))
        gate.open()
        assert connection.read_response().status == 200
    assert exit_status(doomed) == 128 + signal.SIGTERM


def test_half_open_clients_do_not_hold_up_the_end(doomed: Server, clients: Clients) -> None:
    """Connections that have not sent the whole head of a request are simply closed."""
    for data in (b"", b"POST /predictions/swiss HT", b"GET /ping HTTP/1.1\r\nHost: test\r\n") * 5:
        clients.connect(doomed.inference.address, data)
    assert doomed.inference.get("/ping").status == 200
    doomed.signal(signal.SIGTERM)
    assert exit_status(doomed) == 128 + signal.SIGTERM


def test_kill_of_the_frontend_leaves_no_orphan(doomed: Server, clients: Clients) -> None:
    """Not the fork servers, not a worker in a long C call, not one that is importing, idle or busy ones neither."""
    assert doomed.register(add_model(doomed, "sleeper", SLEEPER), initial_workers=2).status == 200
    assert doomed.register("swiss_v1.mar", initial_workers=2).status == 200
    late = add_model(doomed, "late", SLOW_IMPORT)
    assert doomed.register(late, initial_workers=1, synchronous="false").status == 202
    gate = doomed.gate()
    clients.connect(doomed.inference.address, predict("sleeper"))
    clients.connect(doomed.inference.address, predict("swiss", {"x-op": "pid", "x-gate": gate.name}))
    gate.wait_arrived()
    wait_for("sleeping", lambda: list(doomed.gates.glob("asleep.*")))
    wait_for("importing", (doomed.gates / "importing").exists)
    processes = family(doomed)
    # The server, its fork server, and five workers at least.
    assert len(processes) >= 7
    kill(doomed.pid)
    assert exit_status(doomed) == -signal.SIGKILL
    assert_gone(doomed, processes)
    for connection in clients.all:
        with pytest.raises(ConnectionError):
            connection.read_response()
    left = unpacked(doomed)
    assert left
    start_again(doomed)
    wait_for("clean-up after the killed server", lambda: not set(left) & set(unpacked(doomed)))


def test_kill_while_torch_is_being_imported_leaves_no_orphan(doomed: Server) -> None:
    url = add_model(doomed, "torchy", TORCH)
    known = {process.pid for process in family(doomed)}
    answer = threading.Thread(target=_register_and_lose, args=(doomed, url))
    answer.start()
    (template,) = wait_for(
        "the fork server with torch", lambda: [process for process in family(doomed) if process.pid not in known]
    )
    wait_for("its import of torch", lambda: "torch" in _mapped(template))
    processes = family(doomed)
    kill(doomed.pid)
    assert exit_status(doomed) == -signal.SIGKILL
    answer.join(60)
    assert_gone(doomed, processes)


def _register_and_lose(server: Server, url: str) -> None:
    try:
        server.register(url, initial_workers=1)
    except ConnectionError:
        return


def _mapped(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/maps").read_text()
