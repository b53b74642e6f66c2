"""Fixtures of all tests: real servers, and the archives that they serve."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # the import mode adds no paths, and the helpers are a package of the repository
    sys.path.insert(0, str(ROOT))

pytest.register_assert_rewrite("tests.support")

from tests.support import archives as archive_files  # noqa: E402
from tests.support.server import Server  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ServerFactory = Callable[..., Server]


def pytest_configure(config: pytest.Config) -> None:
    # Under nohup it is ignored, and the servers that the tests start would ignore it too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.addinivalue_line("markers", "fix: a deliberate difference from TorchServe 0.12.0, which fails this test")


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every archive of the conformance data."""
    return archive_files.build_all(tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="session")
def make_server(tmp_path_factory: pytest.TempPathFactory, archives: list[Path]) -> Iterator[ServerFactory]:
    """Start servers; those still running are stopped at the end of the session."""
    made: list[Server] = []

    def start(
        config: dict[str, str] | None = None,
        args: list[str] | None = None,
        env: dict[str, str | None] | None = None,
    ) -> Server:
        server = Server(tmp_path_factory.mktemp("s"), archives, config, args or [], env)
        made.append(server)
        return server.start()

    yield start
    failures = [failure for server in made if (failure := _stop(server))]
    assert not failures


def _stop(server: Server) -> str | None:
    try:
        server.stop()
    except AssertionError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def server(make_server: ServerFactory) -> Server:
    """The common server: token authorization off, model API on; models `swiss` 1.0 and `noop` with a worker each."""
    made = make_server()
    for url in ("swiss_v1.mar", "noop.mar"):
        assert made.register(url, initial_workers=1, synchronous="false").status == 202
    for name in ("swiss", "noop"):
        made.wait_ready(name)
    return made


@pytest.fixture(scope="session")
def closed_server(make_server: ServerFactory) -> Server:
    """A server as a careful operator sets it up.

    Model API off, small requests, CORS headers, JSON and text not decoded, a time zone of its own; one model `only`
    (the archive `swiss`) loaded at the start.
    """
    made = make_server(
        {
            "enable_model_api": "false",
            "default_workers_per_model": "1",
            "max_request_size": "1000",
            "decode_input_request": "false",
            "cors_allowed_origin": "https://example.org",
            "cors_allowed_methods": "GET, POST, PUT, OPTIONS",
            "cors_allowed_headers": "X-Custom-Header",
        },
        ["--models", "only=swiss_v1.mar"],
        {"TZ": "America/New_York"},
    )
    made.wait_ready("only")
    return made
