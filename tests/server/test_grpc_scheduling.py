"""Time limits, batches, and workers that come and go, over gRPC (grpc_api.md §4.2; §11, rows 61 to 69)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode
from tests.support.grpc_api import INTERNAL, ISE, expect_error, no_worker, results, status
from tests.support.raw import encode
from tests.support.server import is_reference
from tests.support.waiting import wait_for

from relight.protos import management_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Gate, Server

PLACE = {"mode": "place", "data": "x"}


@pytest.fixture
def gate(grpc_server: Server) -> Iterator[Gate]:
    gate = grpc_server.gate()
    yield gate
    gate.open()


@pytest.fixture
def other(grpc_server: Server) -> Gate:
    """An open gate, which counts who comes."""
    gate = grpc_server.gate()
    gate.open()
    return gate


@pytest.fixture
def single(grpc_server: Server) -> Iterator[str]:
    """A model with one worker, for one request at a time."""
    with grpc_server.registered("probe.mar", "single", initial_workers=1) as name:
        yield name


@pytest.fixture
def batched(grpc_server: Server) -> Iterator[str]:
    """A model that takes four requests at a time."""
    params = {"initial_workers": 1, "batch_size": 4, "max_batch_delay": 100}
    with grpc_server.registered("probe.mar", "batched", **params) as name:
        yield name


# Time limits


@pytest.mark.fix
def test_row_061_client_timeout_of_the_model(grpc_server: Server, api: Api, gate: Gate) -> None:
    with grpc_server.registered("probe_impatient.mar", "impatient", initial_workers=1) as name:
        assert api.predict(name, PLACE) == b"x 0 of 1"
        held = api.start(name, {**PLACE, "gate": gate.name}, timeout=20)
        gate.wait_arrived()
        queued = api.start(name, PLACE, timeout=20)
        for call in (held, queued):
            code, details = status(call)
            assert code == StatusCode.DEADLINE_EXCEEDED
            assert "Deadline Exceeded" not in details  # the server's word, not the client's own clock
        gate.open()
        assert api.predict(name, PLACE) == b"x 0 of 1"


def test_row_062_deadline_while_running(grpc_server: Server, single: str, api: Api, gate: Gate) -> None:
    held = api.start(single, {**PLACE, "gate": gate.name}, timeout=1)
    gate.wait_arrived()
    assert held.code() == StatusCode.DEADLINE_EXCEEDED
    following = api.start(single, PLACE)
    grpc_server.wait_pending(single, 1)
    assert not following.done()
    gate.open()
    assert following.result().prediction == b"x 0 of 1"


@pytest.mark.fix
def test_row_063_deadline_while_queued(grpc_server: Server, single: str, api: Api, gate: Gate, other: Gate) -> None:
    held = api.start(single, {**PLACE, "gate": gate.name})
    gate.wait_arrived()
    queued = api.start(single, {**PLACE, "gate": other.name}, timeout=1)
    assert queued.code() == StatusCode.DEADLINE_EXCEEDED
    gate.open()
    assert held.result().prediction == b"x 0 of 1"
    assert api.predict(single, PLACE) == b"x 0 of 1"
    assert other.arrivals() == 0


@pytest.mark.fix
def test_deadline_while_queued_frees_the_place_at_once(
    grpc_server: Server, single: str, api: Api, gate: Gate, other: Gate
) -> None:
    held = api.start(single, {**PLACE, "gate": gate.name})
    gate.wait_arrived()
    queued = api.start(single, {**PLACE, "gate": other.name}, timeout=2)
    grpc_server.wait_pending(single, 1)
    grpc_server.wait_pending(single, 0)
    assert queued.code() == StatusCode.DEADLINE_EXCEEDED
    assert not held.done()


@pytest.mark.fix
@pytest.mark.parametrize("kind", ["Predictions", "StreamPredictions", "connection"])
def test_cancel_while_queued_frees_the_place_at_once(
    grpc_server: Server, api: Api, connect: Connect, gate: Gate, other: Gate, kind: str
) -> None:
    with grpc_server.registered("probe_narrow.mar", "narrow", initial_workers=1) as name:
        held = api.start(name, {**PLACE, "gate": gate.name})
        gate.wait_arrived()
        client, inputs = connect(grpc_server), {**PLACE, "gate": other.name}
        call = client.stream(name, inputs) if kind == "StreamPredictions" else client.start(name, inputs)
        grpc_server.wait_pending(name, 1)
        if kind == "connection":
            client.close()
        else:
            call.cancel()
        grpc_server.wait_pending(name, 0)
        following = api.start(name, PLACE)
        grpc_server.wait_pending(name, 1)
        assert grpc_server.describe(name)["jobQueueStatus"]["remainingCapacity"] == 0
        gate.open()
        assert results([held, following]) == [b"x 0 of 1"] * 2
        assert other.arrivals() == 0


@pytest.mark.fix
@pytest.mark.parametrize("kind", ["cancel", "deadline", "connection", "stream"])
def test_handler_learns_that_its_client_has_gone(
    grpc_server: Server, single: str, api: Api, connect: Connect, other: Gate, kind: str
) -> None:
    gone = grpc_server.gate()
    gone.open()
    client, inputs = connect(grpc_server), {"mode": "cancelled", "gate": other.name, "gone": gone.name}
    timeout = 1 if kind == "deadline" else 60
    call = client.stream(single, inputs) if kind == "stream" else client.start(single, inputs, timeout=timeout)
    other.wait_arrived()
    assert gone.arrivals() == 0 or kind == "deadline"
    if kind == "connection":
        client.close()
    elif kind != "deadline":
        call.cancel()
    gone.wait_arrived()
    assert api.predict(single, PLACE) == b"x 0 of 1"


# Batches


def test_row_064_batch(grpc_server: Server, batched: str, api: Api, gate: Gate) -> None:
    held = api.start(batched, {**PLACE, "gate": gate.name})
    gate.wait_arrived()
    calls = []
    for count, name in enumerate("abcd", 1):
        calls.append(api.start(batched, {"mode": "place", "data": name}))
        grpc_server.wait_pending(batched, count)
    gate.open()
    assert held.result().prediction == b"x 0 of 1"
    assert results(calls) == [b"a 0 of 4", b"b 1 of 4", b"c 2 of 4", b"d 3 of 4"]


def test_row_065_one_of_a_batch_raises(grpc_server: Server, batched: str, api: Api, gate: Gate) -> None:
    held = api.start(batched, {**PLACE, "gate": gate.name})
    gate.wait_arrived()
    calls = []
    for count in range(1, 5):
        calls.append(api.start(batched, {"mode": "raise"} if count == 3 else PLACE))
        grpc_server.wait_pending(batched, count)
    gate.open()
    assert held.result().prediction == b"x 0 of 1"
    assert [status(call) for call in calls] == [(StatusCode.UNAVAILABLE, f"Prediction failed\n{ISE}")] * 4
    assert api.predict(batched, PLACE) == b"x 0 of 1"


def test_calls_and_http_requests_share_a_batch(grpc_server: Server, batched: str, api: Api, gate: Gate) -> None:
    held = api.start(batched, {**PLACE, "gate": gate.name})
    gate.wait_arrived()
    call = api.start(batched, {"mode": "place", "data": "a"})
    grpc_server.wait_pending(batched, 1)
    with grpc_server.inference.connect() as connection:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.send(encode("POST", f"/predictions/{batched}", form, b"mode=place&data=b"))
        grpc_server.wait_pending(batched, 2)
        gate.open()
        assert connection.read_response().body == b"b 1 of 2"
    assert results([held, call]) == [b"x 0 of 1", b"a 0 of 2"]


# Workers that come and go


def test_row_066_call_while_the_worker_loads(grpc_server: Server, api: Api) -> None:
    name = "late"
    with grpc_server.registered("loader.mar", name, initial_workers=1, synchronous="false"):
        gate = grpc_server.gate(name)
        try:
            gate.wait_arrived()
            call = api.start(name, PLACE)
            grpc_server.wait_pending(name, 1)
            gate.open()
            assert call.result().prediction == b"loaded"
        finally:
            gate.open()


@pytest.mark.fix
@pytest.mark.skipif(is_reference(), reason="the call would wait for ever")
def test_row_067_call_to_a_model_that_cannot_load(grpc_server: Server, api: Api) -> None:
    name = "hopeless"
    (grpc_server.gates / f"{name}.broken").touch()
    with grpc_server.registered("loader_retry.mar", name, initial_workers=1, synchronous="false"):
        gate = grpc_server.gate(name)
        gate.wait_arrived()
        call = api.start(name, PLACE)
        grpc_server.wait_pending(name, 1)
        gate.open()
        code, details = status(call)
        assert code == StatusCode.INTERNAL
        assert details.endswith(f"\n{INTERNAL}")
        with expect_error(StatusCode.INTERNAL, no_worker(name)):
            api.predict(name, PLACE)


def is_listed(api: Api, name: str) -> bool:
    return f'"{name}"' in api.management.ListModels(management_pb2.ListModelsRequest(), timeout=20).msg


@pytest.mark.fix
def test_row_068_unregister_during_a_call(grpc_server: Server, api: Api, gate: Gate) -> None:
    name = "leaving"
    with grpc_server.registered("probe.mar", name, initial_workers=1):
        held = api.start(name, {**PLACE, "gate": gate.name}, timeout=30)
        gate.wait_arrived()
        # The documentation promises that pending requests are finished (documented_promises.md): it wins over the row.
        unregistering = api.management.UnregisterModel.future(
            management_pb2.UnregisterModelRequest(model_name=name), timeout=20
        )
        wait_for("the model is gone", lambda: not is_listed(api, name))
        gate.open()
        assert status(held)[0] == StatusCode.OK
        assert unregistering.result().msg == f'Model "{name}" unregistered'


@pytest.mark.fix
def test_row_068_unregister_at_once(grpc_server: Server, api: Api, gate: Gate) -> None:
    name = "leaving_now"
    with grpc_server.registered("probe.mar", name, initial_workers=1):
        held = api.start(name, {**PLACE, "gate": gate.name}, timeout=30)
        gate.wait_arrived()
        assert grpc_server.management.request("DELETE", f"/models/{name}?timeout=0").status == 200
        assert status(held) == (StatusCode.INTERNAL, f"Worker scaled down.\n{ISE}")


@pytest.mark.fix
def test_row_069_scale_down_while_both_workers_work(grpc_server: Server, api: Api, gate: Gate) -> None:
    name = "shrinking"
    with grpc_server.registered("probe.mar", name, initial_workers=2):
        calls = [api.start(name, {"mode": "pid", "gate": gate.name}) for _ in range(2)]
        gate.wait_arrived(2)
        scale = management_pb2.ScaleWorkerRequest(model_name=name, min_worker=1, max_worker=1)
        assert api.management.ScaleWorker(scale, timeout=20).msg == "Processing worker updates..."
        gate.open()
        assert len(set(results(calls))) == 2
        assert gate.arrivals() == 2
        wait_for("one worker", lambda: len(grpc_server.describe(name)["workers"]) == 1)
