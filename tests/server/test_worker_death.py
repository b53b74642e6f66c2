"""When a worker dies or cannot start, the server says why, once and completely: in one log record and in describe."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest
from tests.faults.support import Clients, add_model, deaths, kill, log_records, predict
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

HANDLE = """

def handle(data, context):
    # Called without data, a module-level handler is to initialize.
    return data and ["ok"] * len(data)
"""
IMPORT_ERROR = f"import a_module_that_nobody_has\n{HANDLE}"
NESTED_IMPORT_ERROR = f"""
try:
    import yaml
except ImportError:
    raise
from json import a_name_that_json_does_not_have
{HANDLE}"""
SYNTAX_ERROR = f"def oops(:\n{HANDLE}"
INIT = """
import ctypes
import os
import sys


class Model:
    def initialize(self, context):
        print("about to fail", flush=True)
        {action}

    def handle(self, data, context):
        return ["ok"] * len(data)
"""
FATAL = """
import ctypes
import os
import signal
import sys


def handle(data, context):
    if not data:
        return None
    action = context.get_request_header(0, "x-action")
    print(f"asked to {action}", flush=True)
    print(f"this is {context.get_request_id(0)}", file=sys.stderr, flush=True)
    if action == "crash":
        ctypes.string_at(0)
    if action == "exit":
        os._exit(3)
    if action == "sys-exit":
        sys.exit(5)
    if action == "abort":
        os.abort()
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "memory":
        raise MemoryError("no more")
    return [str(os.getpid())] * len(data)
"""
LAST_FAILURE = {"time", "phase", "cause", "outOfMemory", "output", "lostRequests"}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(scope="module")
def morgue(make_server: ServerFactory) -> Iterator[Server]:
    server = make_server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def fatal(morgue: Server) -> Iterator[str]:
    """A model whose handler dies as the request says."""
    with morgue.registered(add_model(morgue, "fatal", FATAL), "fatal", initial_workers=1, batch_size=4) as name:
        yield name


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


def last_failure(server: Server, model: str) -> dict[str, Any] | None:
    """The member of the model's only worker."""
    (worker,) = server.describe(model)["workers"]
    failure: dict[str, Any] | None = worker.get("lastFailure")
    return failure


def wait_failure(server: Server, model: str) -> dict[str, Any]:
    """Wait until the model's only worker has failed."""
    return wait_for(f"a failure of {model}", lambda: last_failure(server, model))


class Failing(NamedTuple):
    """A handler that does not come up, and what is said about it."""

    source: str
    phase: str
    exit_code: int | None
    number: int | None
    exception: str | None
    status: int = 500


CANNOT_START = {
    "missing-module": Failing(
        IMPORT_ERROR, "import", 1, None, "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    ),
    "missing-name": Failing(
        NESTED_IMPORT_ERROR, "import", 1, None, "ImportError: cannot import name 'a_name_that_json_does_not_have'"
    ),
    "syntax-error": Failing(SYNTAX_ERROR, "import", 1, None, "SyntaxError: "),
    "import-exit": Failing(f"import os\nos._exit(4)\n{HANDLE}", "import", 4, None, None),
    "value-error": Failing(
        INIT.format(action="raise ValueError('no weights here')"),
        "initialize",
        1,
        None,
        "ValueError: no weights here",
    ),
    "memory-error": Failing(
        INIT.format(action="raise MemoryError('too big')"), "initialize", 1, None, "MemoryError: too big", 507
    ),
    "init-exit": Failing(INIT.format(action="os._exit(3)"), "initialize", 3, None, None),
    "init-sys-exit": Failing(INIT.format(action="sys.exit(3)"), "initialize", 1, None, "SystemExit: 3"),
    "init-segfault": Failing(INIT.format(action="ctypes.string_at(0)"), "initialize", None, signal.SIGSEGV, None),
    "init-killed": Failing(
        INIT.format(action="os.kill(os.getpid(), 9)"), "initialize", None, signal.SIGKILL, None, 507
    ),
}


@pytest.mark.parametrize("case", CANNOT_START)
def test_worker_that_cannot_start(morgue: Server, case: str) -> None:
    failing = CANNOT_START[case]
    model = f"stillborn-{case}"
    # Without a second try there is one death to tell of.
    url = add_model(morgue, model, failing.source, "maxRetryTimeoutInSec: 0\n")
    assert morgue.register(url, initial_workers=1, synchronous="false").status == 202
    try:
        failure = wait_failure(morgue, model)
        record = wait_for("the record", lambda: deaths(morgue, model))
        assert len(record) == 1
        check_failure(failure, failing.phase, failing.exit_code, failing.number)
        check_record(record[0], failing.phase, failing.exit_code, failing.number)
        assert "requests lost: none" in record[0]
        assert failure["lostRequests"] == []
        check_traceback(failing, failure, record[0])
        if failing.phase == "initialize":
            assert "about to fail" in failure["output"]
            assert "\nabout to fail" in record[0]
    finally:
        morgue.unregister(model)


def check_failure(failure: dict[str, Any], phase: str, exit_code: int | None, number: int | None) -> None:
    """Check the members of `lastFailure` that every failure has."""
    assert failure.keys() >= LAST_FAILURE
    assert _TIME.fullmatch(failure["time"])
    assert failure["phase"] == phase
    assert (failure.get("exitCode"), failure.get("signal")) == (exit_code, number)
    assert failure["cause"]


def check_record(record: str, phase: str, exit_code: int | None, number: int | None) -> None:
    """Check the first lines of the log record."""
    ended = f"signal {number} ({signal.Signals(number).name})" if number is not None else f"exit code {exit_code}"
    assert "[ERROR]" in record.splitlines()[0]
    assert f"phase: {phase}; cause: " in record.splitlines()[0]
    assert f"ended by {ended}" in record.splitlines()[0]


def check_traceback(failing: Failing, failure: dict[str, Any], record: str) -> None:
    """The handler's own traceback, never an import error of something else."""
    if failing.exception is None:
        assert failure.keys().isdisjoint({"exception", "traceback"})
        assert "Traceback" not in record
        return
    assert failure["exception"].startswith(failing.exception)
    assert failing.exception in failure["cause"]
    assert "handler_of_test.py" in failure["traceback"]
    assert failing.exception in failure["traceback"]
    assert record.count("Traceback (most recent call last):") == 1, record
    assert failure["traceback"].rstrip() in record
    errors = set(re.findall(r"^(\w*Error|SystemExit)\b", failure["traceback"], re.MULTILINE))
    assert errors == {failing.exception.partition(":")[0]}


@pytest.mark.parametrize("case", ["missing-module", "memory-error", "init-exit", "init-killed"])
def test_synchronous_registration_that_fails(morgue: Server, case: str) -> None:
    """The client is told; why, is in the log once, for the model is gone from describe."""
    model = f"sync-{case}"
    url = add_model(morgue, model, CANNOT_START[case].source)
    response = morgue.register(url, initial_workers=1)
    assert (response.status, response.json()["type"]) == (CANNOT_START[case].status, "InternalServerException")
    assert response.json()["message"] == f"Failed to start workers for model {model} version: 1.0"
    assert len(deaths(morgue, model)) == 1
    assert morgue.management.get(f"/models/{model}").status == 404


class Fatal(NamedTuple):
    """How a worker dies with requests, and what is said about it."""

    action: str
    exit_code: int | None
    number: int | None
    status: int


@pytest.mark.parametrize(
    "case",
    [
        Fatal("crash", None, signal.SIGSEGV, 500),
        Fatal("exit", 3, None, 500),
        Fatal("sys-exit", 5, None, 500),
        Fatal("abort", None, signal.SIGABRT, 500),
        Fatal("kill", None, signal.SIGKILL, 507),
    ],
    ids=lambda case: case.action,
)
def test_worker_that_dies_at_work(morgue: Server, fatal: str, case: Fatal) -> None:
    morgue.wait_ready(fatal)
    before = len(deaths(morgue, fatal))
    headers = {"x-action": case.action}
    response = morgue.inference.request("POST", f"/predictions/{fatal}", headers, b"x")
    document = {"code": case.status, "type": "InternalServerException", "message": "Worker died."}
    assert (response.status, response.json()) == (case.status, document)
    lost = response.header("x-request-id")
    assert lost is not None
    failure = wait_failure(morgue, fatal)
    (record,) = wait_for("the record", lambda: deaths(morgue, fatal)[before:])
    check_failure(failure, "handle", case.exit_code, case.number)
    check_record(record, "handle", case.exit_code, case.number)
    assert failure["lostRequests"] == [lost]
    assert f"\nrequests lost: {lost}" in record
    # What it wrote last, on both streams.
    for line in (f"asked to {case.action}", f"this is {lost}"):
        assert line in failure["output"]
        assert f"\n{line}" in record
    assert [each for each in log_records(morgue) if lost in each and "died" in each] == [record]
    ok = morgue.inference.request("POST", f"/predictions/{fatal}", {"x-action": "none"}, b"x")
    assert ok.status == 200


def test_all_requests_of_the_batch_are_named(morgue: Server, clients: Clients) -> None:
    url = add_model(morgue, "batched", FATAL, "batchPolicy: fixed\nmaxBatchDelay: 60000\n")
    with morgue.registered(url, "batched", initial_workers=1, batch_size=3):
        batch = [clients.connect(morgue.inference.address, predict("batched", {"x-action": "exit"})) for _ in range(3)]
        responses = [connection.read_response() for connection in batch]
        assert [response.status for response in responses] == [500] * 3
        ids = {response.header("x-request-id") for response in responses}
        failure = wait_failure(morgue, "batched")
        assert set(failure["lostRequests"]) == ids
        (record,) = wait_for("the record", lambda: deaths(morgue, "batched"))
        assert all(f"{each}" in record for each in ids)


def test_memory_error_is_an_answer_and_not_a_death(morgue: Server, fatal: str) -> None:
    (worker,) = morgue.wait_ready(fatal)
    before = len(deaths(morgue, fatal))
    response = morgue.inference.request("POST", f"/predictions/{fatal}", {"x-action": "memory"}, b"x")
    assert (response.status, response.json()["message"]) == (507, "Out of resources")
    response = morgue.inference.request("POST", f"/predictions/{fatal}", {"x-action": "none"}, b"x")
    assert (response.status, int(response.body)) == (200, worker["pid"])
    assert len(deaths(morgue, fatal)) == before


@pytest.fixture
def idle(morgue: Server, fatal: str) -> Iterator[str]:
    """A model whose worker has not died before, so that it is restarted at once."""
    with morgue.registered("fatal.mar", "idle", initial_workers=1) as name:
        yield name


def test_killed_while_idle(morgue: Server, idle: str) -> None:
    """The next request succeeds, and nothing is said to be lost."""
    (worker,) = morgue.wait_ready(idle)
    kill(worker["pid"])
    response = morgue.inference.request("POST", f"/predictions/{idle}", {"x-action": "none"}, b"x")
    assert response.status == 200
    assert int(response.body) != worker["pid"]
    (record,) = wait_for("the record", lambda: deaths(morgue, idle))
    check_record(record, "idle", None, signal.SIGKILL)
    assert "requests lost: none" in record
    failure = wait_failure(morgue, idle)
    check_failure(failure, "idle", None, signal.SIGKILL)
    (after,) = morgue.wait_ready(idle)
    assert after["id"] == worker["id"]
    assert after["restarts"] == 1
    assert f"Retry worker: {worker['id']} in 0 seconds." in record_after(morgue, record)


def record_after(server: Server, record: str) -> str:
    """What the log says after a record."""
    records = log_records(server)
    return "\n".join(records[records.index(record) :])


def test_back_off_of_a_worker_that_cannot_start(morgue: Server) -> None:
    """Each try is told of, with the seconds until the next; after `maxRetryTimeoutInSec` ping says so."""
    url = add_model(morgue, "hopeless", IMPORT_ERROR, "maxRetryTimeoutInSec: 3\n")
    assert morgue.register(url, initial_workers=1, synchronous="false").status == 202
    try:
        assert morgue.inference.get("/ping").status == 200
        wait_for("the end of the tries", lambda: morgue.inference.get("/ping").status == 500)
        (worker,) = morgue.describe("hopeless")["workers"]
        retries = re.findall(rf"Retry worker: {worker['id']} in (\d+) seconds\.", morgue.log)
        assert retries == ["1", "1"]
        records = deaths(morgue, "hopeless")
        assert len(records) == 3
        assert all("No module named 'a_module_that_nobody_has'" in record for record in records)
        assert worker["lastFailure"]["phase"] == "import"
        assert worker["restarts"] == 2
        response = morgue.inference.request("POST", "/predictions/hopeless", (), b"x")
        assert (response.status, response.json()["type"]) == (503, "ServiceUnavailableException")
    finally:
        morgue.unregister("hopeless")
    assert morgue.inference.get("/ping").status == 200


def test_worker_that_is_mended_recovers(morgue: Server) -> None:
    """A retry reads the handler's surroundings anew."""
    marker = morgue.gates / "mended"
    source = f"""
import os

if not os.path.exists({str(marker)!r}):
    raise RuntimeError("not yet")
{HANDLE}"""
    with morgue.registered(add_model(morgue, "patient", source), "patient", initial_workers=1, synchronous="false"):
        wait_failure(morgue, "patient")
        marker.touch()
        # Queued while nobody can take it, answered when somebody can.
        response = morgue.inference.request("POST", "/predictions/patient", (), b"x")
        assert (response.status, response.body) == (200, b"ok")
        assert morgue.ready_workers("patient")


def test_output_of_a_talkative_worker_is_cut(morgue: Server) -> None:
    action = "[print(f'line {number}') for number in range(1000)] and sys.stdout.flush() or os._exit(3)"
    url = add_model(morgue, "talkative", INIT.format(action=action), "maxRetryTimeoutInSec: 0\n")
    with morgue.registered(url, "talkative", initial_workers=1, synchronous="false"):
        failure = wait_failure(morgue, "talkative")
    assert failure["output"][-1] == "line 999"
    assert 10 <= len(failure["output"]) <= 100


@pytest.mark.parametrize("end", ["fork-server", "worker"])
def test_next_request_after_a_kill(morgue: Server, fatal: str, end: str) -> None:
    """Whichever process is killed, the next request is served."""
    (worker,) = morgue.wait_ready(fatal)
    process = psutil.Process(worker["pid"])
    kill(process.pid if end == "worker" else process.ppid())
    wait_for("the end of the worker, which goes with its fork server", lambda: not process.is_running())
    for _ in range(5):
        response = morgue.inference.request("POST", f"/predictions/{fatal}", {"x-action": "none"}, b"x")
        assert response.status == 200
