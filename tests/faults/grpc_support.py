"""What the fault tests of gRPC share: a server with small models, and a client that must not notice anything."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc
from tests.faults.support import accepted, frontend, holdings, log_records, queue_status, wait_back
from tests.support.grpc_api import Api, predictions, read_all
from tests.support.grpc_archives import build
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

PARTS = [b"part-0-0", b"part-0-1"]
FINAL = b"final-0 batch=1"
QUEUE = 2000
MODELS = {"noop": "noop.mar", "m": "probe.mar", "streamer": "streamer.mar", "patient": "streamer.mar"}


def start_target(make_server: ServerFactory, config: dict[str, str] | None = None) -> Server:
    """Start a server with a worker for `noop`, for `m` (the probe), and for `streamer` and `patient`, which stream."""
    made = make_server({"job_queue_size": str(QUEUE), **(config or {})})
    for name, handler in (("probe", "grpc_probe"), ("streamer", "grpc_streamer")):
        build(made.store, name, handler)
    for name, url in MODELS.items():
        assert made.register(url, model_name=name, initial_workers=1, synchronous="false").status == 202
    for name in MODELS:
        made.wait_ready(name)
    return made


def stop_target(server: Server) -> None:
    """Stop the server, and see that nothing of it has failed inside."""
    server.stop()
    ours = [record for record in log_records(server) if "Traceback" in record and " MODEL_LOG - " not in record]
    assert not ours, ours[0]


class Bystander:
    """A client with a stream under way, on connections of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._api = Api(server)
        self._gate = server.gate()
        inputs = {"n": "2", "at": "1", "gate": self._gate.name}
        self._call = self._api.stream("patient", inputs, timeout=600)
        assert next(self._call).prediction == PARTS[0]

    def check(self) -> None:
        """Make calls over the same connections, and over HTTP."""
        assert self._api.predict("noop", {"data": "x"}) == b"ok"
        assert self._server.inference.request("POST", "/predictions/noop", (), b"x").body == b"ok"
        assert self._server.management.get("/models/noop").status == 200

    def finish(self) -> None:
        """See that the stream comes to its end."""
        self._gate.open()
        outcome = read_all(self._call)
        assert (predictions(outcome), outcome.code) == ([PARTS[1], FINAL], grpc.StatusCode.OK)
        self.check()
        self._api.close()


@contextlib.contextmanager
def busy(server: Server, api: Api) -> Iterator[dict[str, str]]:
    """Have the only worker of `m` in the middle of a call; yields inputs of calls that no handler may ever see."""
    gate, unseen = server.gate(), server.gate()
    for _ in range(50):  # short turns have the server send requests ahead
        api.predict("m", {"mode": "pid"})
    blocking = api.start("m", {"mode": "pid", "gate": gate.name})
    gate.wait_arrived()
    try:
        yield {"mode": "pid", "gate": unseen.name}
    finally:
        unseen.open()
        gate.open()
    assert blocking.result().prediction.isdigit()
    assert api.predict("m", {"mode": "pid"}).isdigit()
    assert unseen.arrivals() == 0, "a handler was given a call that nobody waits for"


class Measured:
    """What the frontend holds, to be compared when all clients are gone that come after.

    Args:
        server: The server.
        rss: Bytes that its allocators may keep.
    """

    def __init__(self, server: Server, rss: int) -> None:
        self._server = server
        self._rss = rss
        self._process = frontend(server)
        self._connections = accepted(self._process)
        self._before = holdings(self._process)
        self._peak = self._before.rss

    @property
    def grown(self) -> int:
        """By how many bytes the resident memory has grown, at the most of all times when this was asked."""
        self._peak = max(self._peak, self._process.memory_info().rss)
        return self._peak - self._before.rss

    def assert_back(self) -> None:
        """Wait until nothing is under way, and nothing more is held than before."""
        for model in ("noop", "m", "streamer"):
            self._wait_idle(model)
        wait_for("the end of the connections", lambda: accepted(self._process) <= self._connections)
        wait_back("what the frontend held before", self._process, self._before, self._rss)

    def _wait_idle(self, model: str) -> None:
        wait_for(f"an empty queue of {model}", lambda: queue_status(self._server, model)["pendingRequests"] == 0)
