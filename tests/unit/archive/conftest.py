"""A web server whose answers the tests choose."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[[BaseHTTPRequestHandler], None]


class Web:
    """A server on loopback: path to answer, and the requests that came."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
                answer = web.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                else:
                    with contextlib.suppress(ConnectionError):
                        answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes, length: int | None = None, **headers: str) -> str:
        """Answer `path` with `body`, announcing `length` bytes (a negative one announces none)."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            if length is None or length >= 0:
                request.send_header("Content-Length", str(len(body) if length is None else length))
            for name, value in headers.items():
                request.send_header(name.replace("_", "-"), value)
            request.end_headers()
            request.wfile.write(body)

        self.answers[path] = answer
        return self.url(path)

    def redirect(self, path: str, location: str, status: int = 302) -> str:
        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(status)
            request.send_header("Location", location)
            request.send_header("Content-Length", "0")
            request.end_headers()

        self.answers[path] = answer
        return self.url(path)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    server = Web()
    yield server
    server.close()
