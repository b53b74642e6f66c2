"""How unary predictions over gRPC fail (grpc_api.md §7; §11, rows 30 to 60)."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode
from tests.support.grpc_api import HEALTHY, ISE, expect_error, no_worker, status
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.grpc_api import Api
    from tests.support.server import Gate, Server

PLACE = {"mode": "place", "data": "x"}


@pytest.fixture
def gate(grpc_server: Server) -> Iterator[Gate]:
    gate = grpc_server.gate()
    yield gate
    gate.open()


@pytest.fixture
def mortal(grpc_server: Server) -> Iterator[str]:
    """A model whose worker may die."""
    with grpc_server.registered("probe.mar", "mortal", initial_workers=1) as name:
        yield name


# What handlers raise and return


def test_row_030_raise(api: Api) -> None:
    with expect_error(StatusCode.UNAVAILABLE, f"Prediction failed\n{ISE}"):
        api.predict("m", {"mode": "raise"})


def test_row_031_memory_error(api: Api) -> None:
    with expect_error(StatusCode.INTERNAL, f"Out of resources\n{ISE}"):
        api.predict("m", {"mode": "memory"})


def test_row_032_cuda_in_the_text(api: Api) -> None:
    with expect_error(StatusCode.INTERNAL, f"Out of resources\n{ISE}"):
        api.predict("m", {"mode": "cuda"})


def test_row_033_no_list(api: Api) -> None:
    with expect_error(StatusCode.UNAVAILABLE, f"Invalid model predict output\n{ISE}"):
        api.predict("m", {"mode": "nolist"})


@pytest.mark.parametrize("mode", ["short", "long"])
def test_row_034_wrong_length(api: Api, mode: str) -> None:
    with expect_error(StatusCode.UNAVAILABLE, f"number of batch response mismatched\n{ISE}"):
        api.predict("m", {"mode": mode})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(400, StatusCode.INVALID_ARGUMENT, id="35-400"),
        pytest.param(401, StatusCode.UNAUTHENTICATED, id="36-401"),
        pytest.param(403, StatusCode.PERMISSION_DENIED, id="37-403"),
        pytest.param(404, StatusCode.NOT_FOUND, id="38-404"),
        pytest.param(409, StatusCode.ABORTED, id="39-409"),
        pytest.param(413, StatusCode.RESOURCE_EXHAUSTED, id="40-413"),
        pytest.param(416, StatusCode.OUT_OF_RANGE, id="41-416"),
        pytest.param(418, StatusCode.FAILED_PRECONDITION, id="42-418"),
        pytest.param(429, StatusCode.RESOURCE_EXHAUSTED, id="43-429"),
        pytest.param(499, StatusCode.CANCELLED, id="44-499"),
        pytest.param(500, StatusCode.INTERNAL, id="45-500"),
        pytest.param(501, StatusCode.UNIMPLEMENTED, id="46-501"),
        pytest.param(503, StatusCode.UNAVAILABLE, id="47-503"),
        pytest.param(504, StatusCode.DEADLINE_EXCEEDED, id="48-504"),
        pytest.param(507, StatusCode.INTERNAL, id="49-507"),
        pytest.param(599, StatusCode.INTERNAL, id="50-599"),
        pytest.param(-1, StatusCode.UNKNOWN, id="51--1"),
        pytest.param(0, StatusCode.UNKNOWN, id="51-0"),
        pytest.param(100, StatusCode.UNKNOWN, id="51-100"),
        pytest.param(302, StatusCode.UNKNOWN, id="51-302"),
        pytest.param(600, StatusCode.UNKNOWN, id="51-600"),
    ],
)
def test_row_035_to_051_prediction_exception(api: Api, code: int, expected: StatusCode) -> None:
    with expect_error(expected, f"custom\n{ISE}"):
        api.predict("m", {"mode": "predict", "code": str(code)})


def test_row_052_prediction_exception_with_200(api: Api) -> None:
    assert api.predict("m", {"mode": "predict", "code": "200"}) == b"error"


@pytest.mark.fix
@pytest.mark.parametrize("code", ["201", "204", "299"])
def test_row_053_prediction_exception_with_2xx(api: Api, code: str) -> None:
    with expect_error(StatusCode.INTERNAL, f"custom\n{ISE}"):
        api.predict("m", {"mode": "predict", "code": code})


def test_calls_go_on_after_failures(api: Api) -> None:
    with expect_error(StatusCode.UNAVAILABLE, f"Prediction failed\n{ISE}"):
        api.predict("m", {"mode": "raise"})
    assert api.predict("m", PLACE) == b"x 0 of 1"


# No worker


def test_row_054_no_worker(grpc_server: Server, api: Api) -> None:
    with grpc_server.registered("probe.mar", "idle"), expect_error(StatusCode.INTERNAL, no_worker("idle")):
        api.predict("idle", PLACE)


def test_row_055_no_worker_version_given(grpc_server: Server, api: Api) -> None:
    with grpc_server.registered("probe.mar", "idle"), expect_error(StatusCode.INTERNAL, no_worker("idle", "1.0")):
        api.predict("idle", PLACE, "1.0")


def test_row_056_queue_full(grpc_server: Server, api: Api, gate: Gate) -> None:
    with grpc_server.registered("probe_narrow.mar", "narrow", initial_workers=1):
        running = api.start("narrow", {**PLACE, "gate": gate.name})
        gate.wait_arrived()
        queued = api.start("narrow", PLACE)
        grpc_server.wait_pending("narrow", 1)
        with expect_error(StatusCode.INTERNAL, no_worker("narrow")):
            api.predict("narrow", PLACE)
        gate.open()
        assert [call.result().prediction for call in (running, queued)] == [b"x 0 of 1"] * 2


def test_row_057_no_job_ticket(grpc_server: Server, api: Api, gate: Gate) -> None:
    with grpc_server.registered("probe_ticket.mar", "ticket", initial_workers=1):
        assert api.predict("ticket", PLACE) == b"x 0 of 1"
        held = api.start("ticket", {**PLACE, "gate": gate.name})
        gate.wait_arrived()
        with expect_error(StatusCode.INTERNAL, no_worker("ticket")):
            api.predict("ticket", PLACE)
        gate.open()
        assert held.result().prediction == b"x 0 of 1"


# Workers that die


def test_row_058_exit(mortal: str, api: Api) -> None:
    first = api.predict(mortal, {"mode": "pid"})
    with expect_error(StatusCode.INTERNAL, f"Worker died.\n{ISE}"):
        api.predict(mortal, {"mode": "exit"})
    assert api.predict(mortal, {"mode": "pid"}) != first
    assert api.ping() == HEALTHY


def test_row_059_sigkill(grpc_server: Server, mortal: str, api: Api, gate: Gate) -> None:
    held = api.start(mortal, {**PLACE, "gate": gate.name})
    gate.wait_arrived()
    (worker,) = grpc_server.wait_ready(mortal)
    os.kill(worker["pid"], signal.SIGKILL)
    assert status(held) == (StatusCode.RESOURCE_EXHAUSTED, f"Worker died.\n{ISE}")
    assert api.predict(mortal, PLACE) == b"x 0 of 1"


def test_row_060_response_timeout(grpc_server: Server, api: Api, gate: Gate) -> None:
    with grpc_server.registered("probe.mar", "hurried", initial_workers=1, response_timeout=2):
        first = api.predict("hurried", {"mode": "pid"})
        with expect_error(StatusCode.INTERNAL, f"Worker died.\n{ISE}"):
            api.predict("hurried", {**PLACE, "gate": gate.name})
        assert gate.arrivals() == 1
        second = wait_for("another worker", lambda: api.predict("hurried", {"mode": "pid"}))
        assert second != first
