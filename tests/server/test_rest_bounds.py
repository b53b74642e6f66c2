"""What would take the server down is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.archives import contents, write_mar
from tests.support.expect import assert_error

if TYPE_CHECKING:
    from tests.support.server import Server

pytestmark = pytest.mark.fix


def write_model(server: Server, name: str, config: str) -> str:
    return write_mar(server.store / f"{name}.mar", contents(name, "noop", config=config)).name


@pytest.mark.parametrize("workers", [4097, 2147483647])
def test_more_workers_than_a_host_can_have(server: Server, workers: int) -> None:
    expected = f"{workers} workers are asked for; a model may have 4096 at most."
    response = server.register("noop.mar", model_name="many", initial_workers=workers)
    assert_error(response, 400, "BadRequestException", expected)
    assert server.management.get("/models/many").status == 404

    archive = write_model(server, "manyyaml", f"minWorkers: {workers}\nmaxWorkers: {workers}\n")
    assert_error(server.register(archive), 400, "BadRequestException", expected)

    response = server.management.request("PUT", f"/models/noop?min_worker={workers}")
    message = f"min_worker is {workers}; a model may have 4096 workers at most."
    assert_error(response, 400, "BadRequestException", message)
    assert server.describe("noop")["minWorkers"] == 1


@pytest.mark.parametrize(
    "config",
    [
        pytest.param("big: 999999999999999999999999\n", id="a number of more than 64 bits"),
        pytest.param("self: &self [*self]\n", id="a list in itself"),
    ],
)
def test_a_configuration_that_no_worker_can_be_told(server: Server, config: str) -> None:
    response = server.register(write_model(server, "untold", config), initial_workers=1)
    assert response.status == 400
    document = response.json()
    assert document["type"] == "InvalidModelException"
    assert document["message"].startswith("Failed to parse model config yaml file.")
    assert server.management.get("/models/untold").status == 404
