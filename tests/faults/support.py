"""What the fault tests share: small models, clients that never stop, and what a server holds on to."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil
from tests.support.archives import manifest, write_mar
from tests.support.raw import RawConnection, encode
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from types import TracebackType

    from tests.support.raw import Address
    from tests.support.server import Server
    from typing_extensions import Self

LONG = os.environ.get("RELIGHT_LONG_TESTS") == "1"
"""Whether there is time for the numbers of the specification where the normal suite makes do with fewer."""

MIB = 1024 * 1024
_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3} \[", re.MULTILINE)


def add_model(server: Server, name: str, source: str, config: str | None = None) -> str:
    """Put a model into the server's store; its handler is `source`, a module.

    Returns:
        The archive's name, for `register`.
    """
    extra = {} if config is None else {"configFile": "model-config.yaml"}
    files = {"handler_of_test.py": textwrap.dedent(source).encode()}
    if config is not None:
        files["model-config.yaml"] = config.encode()
    files["MAR-INF/MANIFEST.json"] = json.dumps(manifest(name, "handler_of_test", **extra)).encode()
    return write_mar(server.store / f"{name}.mar", files).name


class Client(RawConnection):
    """A connection that leaves no open socket behind when nobody listens."""

    def __init__(self, address: Address, timeout: float = 60.0) -> None:
        try:
            super().__init__(address, timeout)
        except OSError:
            self.close()
            raise


def is_refused(address: Address) -> bool:
    """Whether nobody listens there."""
    try:
        Client(address).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    return False


class Outcome(NamedTuple):
    """What became of a request; `status` is 0 where there was no response at all, and `text` says why."""

    sent: float
    status: int
    request_id: str
    text: str


class Load:
    """Clients that send one request after the other until told to stop.

    Args:
        address: Where to send.
        request: The bytes of each request.
        clients: How many, each with a thread and a connection of its own.
    """

    def __init__(self, address: Address, request: bytes, clients: int = 32) -> None:
        self._address = address
        self._request = request
        self._stopping = threading.Event()
        self._lists: list[list[Outcome]] = [[] for _ in range(clients)]
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in self._lists]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(90)
        assert not self.hanging, f"{self.hanging} clients hang"

    @property
    def hanging(self) -> int:
        """How many clients have not come to their end."""
        return sum(thread.is_alive() for thread in self._threads)

    @property
    def outcomes(self) -> list[Outcome]:
        """All requests so far."""
        return [outcome for each in self._lists for outcome in each]

    @property
    def statuses(self) -> Counter[int]:
        """How often each status was answered so far."""
        return Counter(outcome.status for outcome in self.outcomes)

    def wait_progress(self, count: int = 1) -> None:
        """Wait until each client has had that many more answers."""
        wanted = [len(each) + count for each in self._lists]

        def done() -> bool:
            return all(len(each) >= want for each, want in zip(self._lists, wanted, strict=True))

        wait_for("progress of every client", done)

    def join(self) -> None:
        """Wait until every client has given up, because nobody listens any more."""
        for thread in self._threads:
            thread.join(90)
        assert not self.hanging

    def _run(self, outcomes: list[Outcome]) -> None:
        connection: Client | None = None
        while not self._stopping.is_set():
            sent = 0.0
            try:
                connection = connection or Client(self._address)
                connection.send(self._request)
                sent = time.monotonic()
                response = connection.read_response()
            except OSError as error:
                outcomes.append(Outcome(sent, 0, "", repr(error)))
                if connection is None:
                    return
                connection.close()
                connection = None
                continue
            outcomes.append(
                Outcome(sent, response.status, response.header("x-request-id") or "", response.body.decode())
            )
            if response.header("connection") == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()


class Holdings(NamedTuple):
    """What a process holds on to."""

    rss: int
    fds: int
    threads: int


def holdings(process: psutil.Process) -> Holdings:
    """Measure a process."""
    with process.oneshot():
        return Holdings(process.memory_info().rss, process.num_fds(), process.num_threads())


def frontend(server: Server) -> psutil.Process:
    """The server process itself."""
    return psutil.Process(server.pid)


def accepted(process: psutil.Process) -> int:
    """How many connections of clients a process holds open, those included whose clients are gone."""
    return sum(bool(each.raddr) for each in process.net_connections("tcp"))


def fork_servers(server: Server) -> list[psutil.Process]:
    """The processes that fork its workers."""
    return frontend(server).children()


def wait_back(what: str, process: psutil.Process, before: Holdings, rss: int) -> Holdings:
    """Wait until a process holds no more than before, but for `rss` bytes.

    Raises:
        TimeoutError: It keeps more.
    """

    def back() -> Holdings | None:
        now = holdings(process)
        return now if now.fds <= before.fds and now.threads <= before.threads and now.rss <= before.rss + rss else None

    with suppress(TimeoutError):
        return wait_for(what, back, 20)
    raise TimeoutError(f"{what}: before {before}, now {holdings(process)}")


def kill(pid: int) -> None:
    """End a process by SIGKILL; nothing happens when it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def log_records(server: Server) -> list[str]:
    """The records of ts_log, each with all of its lines."""
    text = (server.logs / "ts_log.log").read_text(errors="replace")
    starts = [match.start() for match in _RECORD.finditer(text)]
    return [text[start:end].rstrip("\n") for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def deaths(server: Server, model: str) -> list[str]:
    """The records that tell of the ends of a model's workers."""
    return [record for record in log_records(server) if re.search(rf"W-\d+-{re.escape(model)}_\S+ died\. ", record)]


def predict(model: str, headers: dict[str, str] | None = None, body: bytes = b"x") -> bytes:
    """The bytes of a prediction request."""
    return encode("POST", f"/predictions/{model}", headers or {}, body)


def queue_status(server: Server, model: str) -> dict[str, int]:
    """The member `jobQueueStatus` of describe."""
    status: dict[str, int] = server.describe(model)["jobQueueStatus"]
    return status


class Clients:
    """Connections that are closed at the end of the test, however it ends."""

    def __init__(self) -> None:
        self.all: list[Client] = []

    def connect(self, address: Address, data: bytes = b"") -> Client:
        """Open a connection and send something, without waiting for an answer."""
        connection = Client(address)
        self.all.append(connection)
        if data:
            connection.send(data)
        return connection

    def close(self) -> None:
        """Close all of them."""
        for connection in self.all:
            connection.close()
