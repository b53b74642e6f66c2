"""Fixtures of the tests of the gRPC APIs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support import grpc_archives as archive_files
from tests.support.grpc_api import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import ServerFactory
    from tests.support.server import Server

    Connect = Callable[..., Api]


@pytest.fixture(scope="session")
def grpc_archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every archive of the gRPC conformance data."""
    return archive_files.build_all(tmp_path_factory.mktemp("grpc_archives"))


@pytest.fixture(scope="session")
def make_grpc_server(make_server: ServerFactory, grpc_archives: list[Path]) -> ServerFactory:
    """Start servers with the gRPC archives in their model stores."""

    def start(
        config: dict[str, str] | None = None,
        args: list[str] | None = None,
        env: dict[str, str | None] | None = None,
    ) -> Server:
        made = make_server(config, args, env)
        for archive in grpc_archives:
            shutil.copy(archive, made.store / archive.name)
        return made

    return start


@pytest.fixture(scope="session")
def grpc_server(make_grpc_server: ServerFactory) -> Server:
    """The common server: token authorization off, model API on; `noop`, and `probe` as `m`, with a worker each."""
    made = make_grpc_server()
    assert made.register("noop.mar", initial_workers=1, synchronous="false").status == 202
    assert made.register("probe.mar", model_name="m", initial_workers=1, synchronous="false").status == 202
    for name in ("noop", "m"):
        made.wait_ready(name)
    return made


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect clients to a server; `connect(server, ...)` takes the arguments of `Api`."""
    made: list[Api] = []

    def start(server: Server, **kwargs: object) -> Api:
        made.append(Api(server, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for api in made:
        api.close()


@pytest.fixture
def api(grpc_server: Server, connect: Connect) -> Api:
    """Clients of the common server."""
    return connect(grpc_server)
