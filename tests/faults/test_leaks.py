"""Nothing is left of a model that is gone, however often that happens."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.faults.support import LONG, MIB, Holdings, accepted, fork_servers, frontend, holdings, predict
from tests.support.raw import encode
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import ServerFactory
    from tests.support.raw import RawConnection
    from tests.support.server import Server

logger = logging.getLogger(__name__)

CYCLES = 10_000 if LONG else 2_000
WARM_UP = 100
"""Cycles until caches and allocators have their size."""
WITH_WORKER = 200 if LONG else 20
MOST_PER_CYCLE = 300
"""Bytes; a leaked version object with its settings is 10 KiB. What is kept for good must not grow at all."""
SLACK = 2 * MIB


@pytest.fixture(scope="module")
def target(make_server: ServerFactory) -> Iterator[Server]:
    server = make_server()
    assert server.register("swiss_v1.mar", model_name="stays", initial_workers=1).status == 200
    yield server
    server.stop()


class State(NamedTuple):
    """What a server holds on to, in all its processes and on disk."""

    frontend: Holdings
    fork_servers: tuple[Holdings, ...]
    directories: int
    processes: int


def unpacked(server: Server) -> list[Path]:
    """What lies in the folder of unpacked models, and what else is in the temporary folder."""
    return [*server.temp.rglob("*")]


def measure(server: Server) -> State:
    """Measure a server; one connection is open while that happens."""
    return State(
        holdings(frontend(server)),
        tuple(map(holdings, fork_servers(server))),
        len(unpacked(server)),
        len(server.processes()),
    )


def assert_back(server: Server, before: State, cycles: int) -> State:
    """See that a server is back where it was; memory may have grown by what an allocator keeps.

    Raises:
        AssertionError: It keeps more.
    """
    allowed = SLACK + MOST_PER_CYCLE * cycles

    def leaks() -> list[str]:
        now = measure(server)
        found = []
        pairs = [(before.frontend, now.frontend), *zip(before.fork_servers, now.fork_servers, strict=True)]
        for then, after in pairs:
            found += [name for name in ("fds", "threads") if getattr(after, name) > getattr(then, name)] + ["rss"] * (
                after.rss > then.rss + allowed
            )
        found += [name for name in ("directories", "processes") if getattr(now, name) > getattr(before, name)]
        return found

    try:
        wait_for("nothing more than before", lambda: not leaks(), 20)
    except TimeoutError:
        raise AssertionError(f"{leaks()} after {cycles} cycles: before {before}, now {measure(server)}") from None
    return measure(server)


def cycle(connection: RawConnection, name: str, url: str, workers: int = 0) -> None:
    """Register a model and remove it."""
    target = f"/models?url={url}&model_name={name}&initial_workers={workers}"
    response = connection.request("POST", target)
    assert response.status == 200, response.body
    response = connection.request("DELETE", f"/models/{name}")
    assert response.status == 200, response.body


@pytest.mark.timeout(3600 if LONG else 180)
def test_register_and_unregister(target: Server) -> None:
    """A fresh name each time: whatever is kept by name shows."""
    with target.management.connect() as connection:
        for number in range(WARM_UP):
            cycle(connection, f"warm{number}", "noop.mar")
        before = measure(target)
        began = time.monotonic()
        for number in range(CYCLES):
            cycle(connection, f"leak{number}", "noop.mar")
        seconds = time.monotonic() - began
        after = assert_back(target, before, CYCLES)
    rss = before.frontend.rss / MIB, after.frontend.rss / MIB
    logger.info("%d cycles in %.1f s; resident memory %.1f MiB before, %.1f MiB after", CYCLES, seconds, *rss)
    assert target.inference.request("POST", "/predictions/stays", {"x-op": "pid"}, b"x").status == 200


@pytest.mark.timeout(900)
def test_register_use_and_unregister_with_a_worker(target: Server) -> None:
    with target.management.connect() as connection:
        for number in range(5):
            cycle(connection, f"warm{number}", "noop.mar", 1)
        before = measure(target)
        for number in range(WITH_WORKER):
            name = f"used{number}"
            assert target.register("noop.mar", model_name=name, initial_workers=1).status == 200
            assert target.inference.request("POST", f"/predictions/{name}", (), b"x").status == 200
            target.unregister(name)
        # A worker's buffers come and go with it: a quarter of a megabyte each, if they stayed.
        assert_back(target, before, WITH_WORKER)


def test_registrations_that_fail(target: Server) -> None:
    """No worker, broken archives, a conflict: nothing is left of the attempt."""
    targets = [
        *(f"/models?url={url}&initial_workers=0" for url in ("garb.mar", "half.tar.gz", "noman.mar", "slip.mar", "no")),
        "/models?url=badrt.mar&initial_workers=1",
        "/models?url=swiss_v1.mar&model_name=stays",
    ]

    def attempt() -> None:
        for each in targets:
            response = target.management.request("POST", each)
            assert response.status >= 400, (each, response.body)

    for _ in range(2):
        attempt()
    before = measure(target)
    for _ in range(10):
        attempt()
    assert_back(target, before, 10 * len(targets))


def test_scaling_up_and_down(target: Server) -> None:
    def scale(count: int) -> None:
        url = f"/models/stays?min_worker={count}&max_worker={count}&synchronous=true"
        assert target.management.request("PUT", url).status == 200
        wait_for("the workers", lambda: len(target.describe("stays")["workers"]) == count)

    for count in (3, 1):
        scale(count)
    before = measure(target)
    for _ in range(10):
        for count in (3, 1):
            scale(count)
    assert_back(target, before, 20)


def test_requests_of_many_connections(target: Server) -> None:
    """Answered, refused and broken off: a connection leaves nothing."""
    requests = [
        predict("stays", {"x-op": "pid"}),
        predict("stays", {"x-op": "raise"}),
        predict("stays", {"x-op": "stream"}),
        predict("nobody"),
        encode("GET", "/ping"),
        b"no http\r\n\r\n",
        b"POST /predictions/stays HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf",
    ]

    def attempt(count: int) -> None:
        for number in range(count):
            with target.inference.connect() as connection:
                connection.send(requests[number % len(requests)])
                if number % len(requests) < len(requests) - 1:
                    connection.read_response()

    attempt(200)
    wait_for("the end of all connections", lambda: not accepted(frontend(target)))
    before = measure(target)
    attempt(700)
    assert_back(target, before, 700)


def test_registrations_in_parallel(target: Server) -> None:
    """Many operators at once, with the same names: one of them wins, and nothing is left when it is over."""
    before = measure(target)
    unexpected: list[bytes] = []
    # A registration whose model is removed while its worker loads.
    cut_short = b"Failed to start workers for model shared"

    def operate(number: int) -> None:
        name = f"shared{number % 3}"
        for _ in range(5):
            register = f"/models?url=noop.mar&model_name={name}&initial_workers=1"
            for method, path in (("POST", register), ("DELETE", f"/models/{name}")):
                response = target.management.request(method, path)
                if response.status not in {200, 404, 409} and cut_short not in response.body:
                    unexpected.append(response.body)

    threads = [threading.Thread(target=operate, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not unexpected
    for number in range(3):
        target.unregister(f"shared{number}")
    # Threads that unpack archives are kept for the next ones, as many as ever ran at a time.
    more = before.frontend._replace(threads=before.frontend.threads + (os.cpu_count() or 1) + 4)
    assert_back(target, before._replace(frontend=more), 45)
