"""Drives operations by hand, and servers that do what a test says."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from relight.client.requests import HttpRequest, HttpResponse, Pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relight.client.requests import Flow


class Drive:
    """Runs an operation with answers that are given beforehand.

    Args:
        answers: What the requests are answered with, in turn; exceptions are raised; the last one stays.
    """

    def __init__(self, *answers: Any) -> None:
        self.requests: list[Any] = []
        self.pauses: list[float] = []
        self._answers = deque(answers)

    def run(self, flow: Flow[Any]) -> Any:
        """Return the operation's result."""
        try:
            step = next(flow)
            while True:
                step = self._answer(flow, step)
        except StopIteration as stop:
            return stop.value

    @property
    def request(self) -> Any:
        """The only request."""
        (request,) = self.requests
        return request

    def _answer(self, flow: Flow[Any], step: Any) -> Any:
        if isinstance(step, Pause):
            self.pauses.append(step.seconds)
            return next(flow)
        self.requests.append(step)
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        return flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)


def ok(content: bytes, **headers: str) -> HttpResponse:
    return HttpResponse(200, headers, content)


def sent(request: HttpRequest) -> tuple[str, str, dict[str, str]]:
    """Return what of a request depends on the operation's arguments alone."""
    return request.method, request.path, dict(request.params)


@contextlib.contextmanager
def http_server(handle: Callable[[BaseHTTPRequestHandler], None], context: Any = None, port: int = 0) -> Iterator[int]:
    """Serve HTTP, or with an ssl context HTTPS, on that port, or a free one; every request goes to the function."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            handle(self)

        do_POST = do_GET  # noqa: N815 - as above

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of clients that hang up."""

    server = Quiet(("127.0.0.1", port), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Pair(NamedTuple):
    """A certificate that is its own authority, and its key."""

    certificate: Path
    key: Path


def make_pair(folder: Path, name: str) -> Pair:
    """Make a certificate for that host name."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    command += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return pair
