"""`SetDefault`, `UnregisterModel` and `ScaleWorker` over gRPC (grpc_api.md §6 and §11, rows 128 to 140)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from tests.support.grpc_api import BRE, ISE, MNF, MVNF, expect_error
from tests.support.grpc_manage import PROCESSING, describe, scale, set_default, unregister
from tests.support.server import is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.grpc_api import Api
    from tests.support.server import Server

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
NO_DEFAULT_REMOVAL = "org.pytorch.serve.http.InvalidModelVersionException"


@pytest.fixture
def two(grpc_server: Server) -> Iterator[str]:
    """A model with two versions, the first of them the default."""
    with grpc_server.registered("probe.mar", "two"):
        assert grpc_server.register("probe_v2.mar", model_name="two").status == 200
        yield "two"


@pytest.fixture
def idle(grpc_server: Server) -> Iterator[str]:
    """A model without workers."""
    with grpc_server.registered("noop.mar", "idle"):
        yield "idle"


def workers(api: Api, model: str) -> tuple[int, int, int]:
    """Return the least and the greatest number of workers, and how many there are."""
    (document,) = describe(api, model)
    return document["minWorkers"], document["maxWorkers"], len(document["workers"])


# SetDefault and UnregisterModel


def test_row_128_set_default(api: Api, two: str) -> None:
    assert set_default(api, two, "2.0") == f'Default version successfully updated for model "{two}" to "2.0"'
    assert [model["modelVersion"] for model in describe(api, two)] == ["2.0"]
    assert sorted(model["modelVersion"] for model in describe(api, two, "all")) == ["1.0", "2.0"]


@pytest.mark.parametrize("version", ["9.9", ""])
def test_row_129_set_default_of_unknown_version(api: Api, two: str, version: str) -> None:
    with expect_error(NOT_FOUND, f"Model version {version} does not exist for model {two}\n{MVNF}"):
        set_default(api, two, version)


@pytest.mark.parametrize("model", ["nope", ""])
def test_row_129_set_default_of_unknown_model(api: Api, model: str) -> None:
    with expect_error(NOT_FOUND, f"Model not found: {model}\n{MNF}"):
        set_default(api, model, "1.0" if model else "")


@pytest.mark.fix
@pytest.mark.parametrize("version", ["", "1.0"])
def test_row_130_unregister_default_of_several(api: Api, two: str, version: str) -> None:
    details = f"Cannot remove default version for model {two}\n{NO_DEFAULT_REMOVAL}"
    with expect_error(grpc.StatusCode.PERMISSION_DENIED, details):
        unregister(api, two, version)
    assert len(describe(api, two, "all")) == 2


def test_row_131_unregister(api: Api, two: str) -> None:
    assert unregister(api, two, "2.0") == f'Model "{two}" unregistered'
    assert [model["modelVersion"] for model in describe(api, two, "all")] == ["1.0"]
    assert unregister(api, two) == f'Model "{two}" unregistered'
    with expect_error(NOT_FOUND, f"Model not found: {two}\n{MNF}"):
        describe(api, two)


def test_row_132_unregister_unknown(api: Api, idle: str) -> None:
    with expect_error(NOT_FOUND, f"Model not found: nope\n{MNF}"):
        unregister(api, "nope")
    with expect_error(NOT_FOUND, f"Model version: 9.9 does not exist for model: {idle}\n{MVNF}"):
        unregister(api, idle, "9.9")


def test_row_132_unregister_nothing(api: Api) -> None:
    with expect_error(INVALID, f"Parameter url is required.\n{BRE}"):
        unregister(api)


# ScaleWorker


def test_row_133_scale_name_only(api: Api, grpc_server: Server, idle: str) -> None:
    assert scale(api, idle) == PROCESSING
    grpc_server.wait_ready(idle)
    assert workers(api, idle) == (1, 1, 1)


def test_row_134_to_136_scale(api: Api, grpc_server: Server, idle: str) -> None:
    """One model through its life: the rows build on each other."""
    assert scale(api, idle, min_worker=2, synchronous=True) == f"Workers scaled to 2 for model: {idle}"
    assert workers(api, idle) == (2, 2, 2)
    before = [worker["pid"] for worker in grpc_server.ready_workers(idle)]
    assert len(before) == 2

    assert scale(api, idle, max_worker=3, synchronous=True) == f"Workers scaled to 1 for model: {idle}"
    assert workers(api, idle) == (1, 3, 2)
    assert [worker["pid"] for worker in grpc_server.ready_workers(idle)] == before

    text = scale(api, idle, model_version="1.0", min_worker=1, synchronous=True)
    assert text == f"Workers scaled to 1 for model: {idle}, version: 1.0"
    wait_for("one worker", lambda: workers(api, idle) == (1, 1, 1))


def test_row_137_scale_max_below_min(api: Api, idle: str) -> None:
    with expect_error(INVALID, f"max_worker cannot be less than min_worker.\n{BRE}"):
        scale(api, idle, min_worker=3, max_worker=2)
    assert workers(api, idle) == (0, 0, 0)


def test_row_138_scale_numbers_that_are_none(api: Api, idle: str) -> None:
    text = scale(api, idle, min_worker=-1, max_worker=-1, timeout=-1, number_gpu=-1, synchronous=True)
    assert text == f"Workers scaled to 1 for model: {idle}"
    assert workers(api, idle) == (1, 1, 1)


@pytest.mark.fix
@pytest.mark.skipif(is_reference(), reason="the field is ignored there")
def test_row_138_scale_to_more_gpus_than_there_are(api: Api, idle: str) -> None:
    """`number_gpu` is honoured (documented_promises.md)."""
    with pytest.raises(grpc.RpcError) as caught:
        scale(api, idle, min_worker=64, number_gpu=64, synchronous=True)
    assert (caught.value.code(), (caught.value.details() or "").partition("\n")[2]) == (INVALID, BRE)
    assert workers(api, idle) == (0, 0, 0)


@pytest.mark.fix
def test_scale_waits_for_a_busy_worker(api: Api, grpc_server: Server) -> None:
    """`timeout` is honoured (documented_promises.md): unset, a worker has all the time that it needs."""
    with grpc_server.registered("probe.mar", "ending", initial_workers=2):
        grpc_server.wait_ready("ending", 2)
        gate = grpc_server.gate()
        calls = [api.start("ending", {"mode": "pid", "gate": gate.name}) for _ in range(2)]
        gate.wait_arrived(2)
        assert scale(api, "ending", min_worker=1) == PROCESSING
        gate.open()
        assert len({call.result().prediction for call in calls}) == 2
        wait_for("one worker", lambda: workers(api, "ending") == (1, 1, 1))


def test_scale_unknown(api: Api, idle: str) -> None:
    with expect_error(NOT_FOUND, f"Model not found: nope\n{MNF}"):
        scale(api, "nope", min_worker=1)
    with expect_error(NOT_FOUND, f"Model version: 9.9 does not exist for model: {idle}\n{MVNF}"):
        scale(api, idle, model_version="9.9", min_worker=1)


@pytest.mark.fix
def test_row_139_scale_nothing(api: Api) -> None:
    with expect_error(NOT_FOUND, f"Model not found: \n{MNF}"):
        scale(api)


@pytest.mark.parametrize("url", ["badrt.mar", "badve.mar"])
def test_row_140_scale_of_a_model_that_cannot_load(api: Api, grpc_server: Server, url: str) -> None:
    with grpc_server.registered(url, "loader_scaled"):
        details = f"Failed to start workers for model loader_scaled version: null\n{ISE}"
        with expect_error(grpc.StatusCode.INTERNAL, details):
            scale(api, "loader_scaled", min_worker=1, synchronous=True)
