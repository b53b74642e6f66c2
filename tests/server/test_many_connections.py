"""More connections than the usual limit of open files."""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.support.archives import contents, write_mar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.raw import RawConnection
    from tests.support.server import Server

USUAL = 1024
CONNECTIONS = 1300
HANDLER = b"""import resource

def handle(data, context):
    return data and [str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])] * len(data)
"""


@pytest.fixture
def limit() -> Iterator[None]:
    """Servers that are started meanwhile inherit the usual limit; the test itself has room for both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CONNECTIONS:
        pytest.skip(f"this system allows {hard} open files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_connections_than_the_usual_limit(limit: None, make_server: Callable[..., Server]) -> None:
    server = make_server()
    files = contents("limit", "noop") | {"noop.py": HANDLER}
    write_mar(server.store / "limit.mar", files)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * CONNECTIONS, hard))

    with ExitStack() as stack:
        connections: list[RawConnection] = [stack.enter_context(server.inference.connect()) for _ in range(CONNECTIONS)]
        assert [connection.request("GET", "/ping").status for connection in connections[-5:]] == [200] * 5
        assert connections[0].request("GET", "/ping").status == 200

    with server.registered("limit.mar", "limit", initial_workers=1):
        assert server.inference.request("POST", "/predictions/limit").body == str(USUAL).encode()


def test_the_limit_is_the_usual_one(limit: None) -> None:
    """What the test above relies on: a child inherits it."""
    command = [sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"]
    assert int(subprocess.check_output(command)) == USUAL
