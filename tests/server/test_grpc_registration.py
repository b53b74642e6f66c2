"""`ListModels` and `RegisterModel` over gRPC (grpc_api.md §6 and §11, rows 109 to 127)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from tests.support.grpc_api import BRE, ISE, MNF, expect_error
from tests.support.grpc_manage import (
    NO_WORKERS,
    PROCESSING,
    cleared,
    describe,
    list_models,
    pretty,
    register,
    scale,
    unregister,
)
from tests.support.server import is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api
    from tests.support.server import Server

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
INTERNAL = grpc.StatusCode.INTERNAL
INVALID_MODEL = "org.pytorch.serve.archive.model.InvalidModelException"
DOWNLOAD = "org.pytorch.serve.archive.DownloadArchiveException"
CONFLICT = "org.pytorch.serve.http.ConflictStatusException"
ONE_MODEL = [{"modelName": "probe", "modelUrl": "probe.mar"}]


@pytest.fixture(scope="module")
def small(make_grpc_server: ServerFactory) -> Server:
    """A server with one model, `probe`, without workers."""
    made = make_grpc_server()
    assert made.register("probe.mar").status == 200
    return made


@pytest.fixture
def lister(small: Server, connect: Connect) -> Api:
    return connect(small)


# ListModels


@pytest.mark.fix
def test_row_109_no_limit_means_a_hundred(lister: Api) -> None:
    assert list_models(lister) == pretty({"models": ONE_MODEL})
    assert list_models(lister, limit=0, next_page_token=0) == pretty({"models": ONE_MODEL})


def test_row_110_page_that_ends_exactly(lister: Api) -> None:
    assert list_models(lister, limit=1) == pretty({"nextPageToken": "1", "models": ONE_MODEL})
    assert list_models(lister, limit=1, next_page_token=1) == pretty({"models": []})


@pytest.mark.parametrize("limit", [-1, 101, 2, 100, 2147483647, -2147483648])
def test_row_110_limits(lister: Api, limit: int) -> None:
    assert list_models(lister, limit=limit) == pretty({"models": ONE_MODEL})


def test_row_111_tokens(lister: Api) -> None:
    assert list_models(lister, limit=100, next_page_token=-3) == pretty({"models": ONE_MODEL})
    assert list_models(lister, limit=100, next_page_token=999) == pretty({"models": []})


@pytest.mark.fix
def test_token_does_not_overflow(lister: Api) -> None:
    assert list_models(lister, limit=100, next_page_token=2147483647) == pretty({"models": []})


def test_pages_are_sorted_and_complete(small: Server, lister: Api) -> None:
    with small.registered("noop.mar", "b"), small.registered("noop.mar", "ü"), small.registered("noop.mar", "a"):
        names = ["a", "b", "probe", "ü"]
        models = [{"modelName": name, "modelUrl": f"{name if name == 'probe' else 'noop'}.mar"} for name in names]
        assert list_models(lister, limit=3) == pretty({"nextPageToken": "3", "models": models[:3]})
        assert list_models(lister, limit=3, next_page_token=3) == pretty({"models": models[3:]})
        assert list_models(lister, limit=2, next_page_token=1) == pretty({"nextPageToken": "3", "models": models[1:3]})


# RegisterModel


def test_row_112_url_only(lister: Api, small: Server) -> None:
    with cleared(small, "noop"):
        assert register(lister, "noop.mar") == NO_WORKERS.format("noop", "1.0")
        (model,) = describe(lister, "noop")
        assert (model["minWorkers"], model["workers"], model["loadedAtStartup"]) == (0, [], False)


@pytest.mark.fix
def test_row_113_again(api: Api) -> None:
    details = f"Model version 1.0 is already registered for model noop\n{CONFLICT}"
    with expect_error(grpc.StatusCode.ABORTED, details):
        register(api, "noop.mar")


def test_row_114_asynchronous(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "reg_a"):
        assert register(api, "noop.mar", model_name="reg_a", initial_workers=1) == PROCESSING
        grpc_server.wait_ready("reg_a")
        assert api.predict("reg_a", {"data": "x"}) == b"ok"


def test_row_115_synchronous(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "reg_b"):
        text = register(api, "noop.mar", model_name="reg_b", initial_workers=2, synchronous=True)
        assert text == 'Model "reg_b" Version: 1.0 registered with 2 initial workers'
        (model,) = describe(api, "reg_b")
        assert [worker["status"] for worker in model["workers"]] == ["READY", "READY"]


def test_row_116_nothing_given(api: Api) -> None:
    with expect_error(INVALID, f"Parameter url is required.\n{BRE}"):
        register(api)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("missing.mar", "Model not found at: missing.mar"),
        ("../noop.mar", "Relative path is not allowed in url: ../noop.mar"),
        ("file:///tmp/../x.mar", "Relative path is not allowed in url: file:///tmp/../x.mar"),
    ],
)
def test_row_117_not_in_the_store(api: Api, url: str, message: str) -> None:
    with expect_error(NOT_FOUND, f"{message}\n{MNF}"):
        register(api, url)


def test_row_118_archive_without_a_name(api: Api) -> None:
    with expect_error(INVALID, f"Model name is not defined.\n{INVALID_MODEL}"):
        register(api, "nameless.mar")


def test_row_118_no_zip_file(api: Api) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        register(api, "garb.mar")
    message, _, label = (caught.value.details() or "").partition("\n")
    assert (caught.value.code(), label) == (INVALID, INVALID_MODEL)
    # Elsewhere the text may say more than that there is no name.
    assert message == "Model name is not defined." or not is_reference()


@pytest.mark.fix
def test_row_119_no_zip_file_under_a_given_name(api: Api, grpc_server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        register(api, "garb.mar", model_name="garbage", handler="noop.py")
    assert (caught.value.code(), (caught.value.details() or "").partition("\n")[2]) == (INVALID, INVALID_MODEL)
    assert grpc_server.management.get("/models/garbage").status == 404


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x.mar", "file:///nonexistent/x.mar"])
def test_row_120_download_that_fails(api: Api, url: str) -> None:
    with expect_error(INVALID, f"Failed to download archive from: {url}\n{DOWNLOAD}"):
        register(api, url)


@pytest.mark.fix
def test_encrypted_archive_elsewhere_than_s3(api: Api) -> None:
    url = "http://127.0.0.1:9/x.mar"
    with pytest.raises(grpc.RpcError) as caught:
        register(api, url, s3_sse_kms=True)
    message, _, label = (caught.value.details() or "").partition("\n")
    assert (caught.value.code(), label) == (INVALID, DOWNLOAD)
    assert message.startswith(f"Failed to download archive from: {url}")


def test_row_121_other_scheme(api: Api) -> None:
    with expect_error(NOT_FOUND, f"Model not found at: ftp://127.0.0.1/x.mar\n{MNF}"):
        register(api, "ftp://127.0.0.1/x.mar")


def test_row_122_unknown_runtime(api: Api) -> None:
    with expect_error(INVALID, f"Invalid RuntimeType value: cobol\n{BRE}"):
        register(api, "noop.mar", model_name="cobol", runtime="cobol")


@pytest.mark.parametrize("number", [-1, 0, -2147483648])
def test_row_123_numbers_that_are_none(api: Api, grpc_server: Server, number: int) -> None:
    names = ("batch_size", "initial_workers", "max_batch_delay", "response_timeout", "startup_timeout")
    with cleared(grpc_server, "none"):
        text = register(api, "noop.mar", model_name="none", **dict.fromkeys(names, number))
        assert text == NO_WORKERS.format("none", "1.0")
        (model,) = describe(api, "none")
        assert (model["batchSize"], model["maxBatchDelay"]) == (1, 100)
        assert (model["responseTimeout"], model["startupTimeout"]) == (120, 120)


def test_row_124_numbers(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "numbers"):
        fields = {"batch_size": 3, "max_batch_delay": 7, "response_timeout": 11, "startup_timeout": 13}
        assert register(api, "noop.mar", model_name="numbers", **fields) == NO_WORKERS.format("numbers", "1.0")
        (model,) = describe(api, "numbers")
        assert (model["batchSize"], model["maxBatchDelay"]) == (3, 7)
        assert (model["responseTimeout"], model["startupTimeout"]) == (11, 13)


def test_name_and_handler_of_the_request(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "given"):
        text = register(api, "nameless.mar", model_name="given", handler="noop:handle", initial_workers=1)
        assert text == PROCESSING
        grpc_server.wait_ready("given")
        assert api.predict("given") == b"ok"


def load_fails(api: Api, server: Server, url: str, name: str, **fields: int) -> None:
    """Register synchronously a model whose load fails."""
    with cleared(server, name):
        details = f"Failed to start workers for model {name} version: 1.0\n{ISE}"
        with expect_error(INTERNAL, details):
            register(api, url, model_name=name, initial_workers=1, synchronous=True, **fields)


@pytest.mark.parametrize("url", ["badrt.mar", "badve.mar", "badmem.mar", "quitter.mar"])
def test_row_125_load_raises_or_dies(api: Api, grpc_server: Server, url: str) -> None:
    load_fails(api, grpc_server, url, f"loader_{url.removesuffix('.mar')}")


def test_row_125_load_exceeds_its_time(api: Api, grpc_server: Server) -> None:
    name = "loader_late"
    try:
        load_fails(api, grpc_server, "slowinit.mar", name, startup_timeout=2)
    finally:
        grpc_server.gate(name).open()


@pytest.mark.fix
@pytest.mark.parametrize("url", ["badrt.mar", "badve.mar", "badmem.mar", "quitter.mar"])
def test_row_125_failed_registration_is_rolled_back(api: Api, grpc_server: Server, url: str) -> None:
    details = f"Failed to start workers for model loader_back version: 1.0\n{ISE}"
    for _ in range(2):  # the second time it is no conflict
        with expect_error(INTERNAL, details):
            register(api, url, model_name="loader_back", initial_workers=1, synchronous=True)
        with expect_error(NOT_FOUND, f"Model not found: loader_back\n{MNF}"):
            describe(api, "loader_back")


def test_row_126_client_deadline_during_the_load(api: Api, grpc_server: Server) -> None:
    name = "patience"
    with cleared(grpc_server, name):
        gate = grpc_server.gate(name)
        with pytest.raises(grpc.RpcError) as caught:
            register(api, "slowinit.mar", model_name=name, initial_workers=1, synchronous=True, timeout=0.5)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        gate.wait_arrived()
        gate.open()
        grpc_server.wait_ready(name)
        assert api.predict(name) == b"at last"


def test_row_127_two_versions(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "two"):
        assert register(api, "probe.mar", model_name="two") == NO_WORKERS.format("two", "1.0")
        assert register(api, "probe_v2.mar", model_name="two") == NO_WORKERS.format("two", "2.0")
        assert [model["modelVersion"] for model in describe(api, "two")] == ["1.0"]
        assert sorted(model["modelVersion"] for model in describe(api, "two", "all")) == ["1.0", "2.0"]
        assert [model["modelUrl"] for model in describe(api, "two", "2.0")] == ["probe_v2.mar"]


def test_a_failed_asynchronous_registration_stays(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "stays"):
        assert register(api, "badve.mar", model_name="stays", initial_workers=1) == PROCESSING
        wait_for("an attempt", lambda: describe(api, "stays")[0]["workers"])
        assert {worker["status"] for worker in describe(api, "stays")[0]["workers"]} == {"UNLOADING"}


def test_whole_life(api: Api, grpc_server: Server) -> None:
    with cleared(grpc_server, "life"):
        assert register(api, "noop.mar", model_name="life") == NO_WORKERS.format("life", "1.0")
        assert scale(api, "life", min_worker=1, synchronous=True) == "Workers scaled to 1 for model: life"
        assert api.predict("life") == b"ok"
        assert unregister(api, "life") == 'Model "life" unregistered'
        with expect_error(NOT_FOUND, f"Model not found: life\n{MNF}"):
            describe(api, "life")
