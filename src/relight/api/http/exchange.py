"""One HTTP request and the writing of its response."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from relight.api.http.json_text import dump, error_body

if TYPE_CHECKING:
    from typing import Any

    from relight.api.http.protocol import HttpConnection
    from relight.errors import RelightError
    from relight.serving.job import Job
    from relight.wire.messages import Answer

NO_CACHE = (
    b"Pragma: no-cache\r\nCache-Control: no-cache; no-store, must-revalidate, private\r\n"
    b"Expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n"
)
"""Sent with every answer, whatever a handler says."""

_SERVERS_OWN = frozenset(
    {
        "x-request-id",
        "pragma",
        "cache-control",
        "expires",
        "content-length",
        "connection",
        "transfer-encoding",
        "ts_stream_next",
        "keep-alive",
        "upgrade",
    }
)
"""Headers that the server sets; a handler's are dropped."""
_STREAMED = b"ts_stream_next: true\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n\r\n"
_CLOSE = b"connection: close\r\n\r\n"
_JSON = b"content-type: application/json\r\n"
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {
    # As TorchServe calls them; newer names differ.
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}
_CLASSES = {1: "Informational", 2: "Success", 3: "Redirection", 4: "Client Error", 5: "Server Error"}
_NO_BODY = frozenset({204, 304})
_JOIN = 64 * 1024


def phrase_of(status: int) -> str:
    """The reason phrase of a status that nobody gave one."""
    return _PHRASES.get(status) or f"{_CLASSES.get(status // 100, 'Unknown Status')} ({status})"


class Exchange:
    """One request, its response, and what has become of them.

    It is also the Reply of the Job that an inference request becomes.

    Attributes:
        method: As sent.
        target: As sent: path and query.
        headers: As sent, in order.
        body: In pieces.
        size: Bytes in `body`.
        content_type: Value of the content-type header, if there was one.
        authorization: Value of the first authorization header, if there was one.
        arrived: When it was complete, on the monotonic clock, in seconds.
        job: The job it has become, if any.
        closing: Whether the connection is closed after the response.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_started",
        "arrived",
        "authorization",
        "body",
        "closing",
        "connection",
        "content_type",
        "headers",
        "job",
        "method",
        "request_id",
        "size",
        "status",
        "target",
        "version",
    )

    def __init__(
        self,
        connection: HttpConnection,
        method: str,
        target: bytes,
        version: str,
        headers: list[tuple[bytes, bytes]],
        request_id: str,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.request_id = request_id
        self.body: list[bytes] = []
        self.size = 0
        self.content_type: bytes | None = None
        self.authorization: bytes | None = None
        self.arrived = 0.0
        self.job: Job | None = None
        self.closing = False
        self.status = 0
        self._started = False
        self._chunked = True
        self._bodiless = False

    # -- answers of the server -----------------------------------------------------------------------------------

    def respond(
        self, status: int, body: bytes, headers: bytes = _JSON, phrase: str | None = None, *, close: bool = False
    ) -> None:
        """Answer in one piece.

        Args:
            status: HTTP status.
            body: The body.
            headers: Header lines of this answer, each with its line end.
            phrase: Reason phrase; the standard one by default.
            close: Whether to close the connection even though the status would not.
        """
        if self._started:
            return
        self._started = True
        self.status = status
        if status >= 400 or close:
            self.closing = True
        length = b"" if status in _NO_BODY else b"content-length: %d\r\n" % len(body)
        head = self._head(status, phrase, headers, length)
        if self.method == "HEAD" or status in _NO_BODY:
            body = b""
        self._write(head, body)
        self.connection.finished(self)

    def json(self, document: Any, status: int = 200, phrase: str | None = None, headers: bytes = _JSON) -> None:
        """Answer with a JSON document."""
        self.respond(status, dump(document), headers, phrase)

    def fail(self, error: RelightError) -> None:
        """Answer with an error, or break off an answer that has begun: no end mark, so that the client can tell."""
        if self._started:
            self.connection.abort()
        else:
            self.respond(error.status, error_body(error))

    def bare(self, status: int, *, close: bool) -> None:
        """Answer without any of the usual headers (413 and 417)."""
        self._started = True
        self.status = status
        self.closing = self.closing or close
        connection = b"connection: close\r\n" if self.closing else b""
        line = f"HTTP/1.1 {status} {phrase_of(status)}\r\ncontent-length: 0\r\n".encode()
        self._write(line + connection + b"\r\n", b"")
        self.connection.finished(self)

    # -- the Reply of a Job --------------------------------------------------------------------------------------

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Write the result of a job, or the last chunk of a stream."""
        if self._started:
            self._end_stream(body)
            return
        status = answer.status
        if status == 200 and answer.headers is None and answer.phrase is None and self.method != "HEAD":
            # What nearly every answer is: no decisions left to make.
            self._started = True
            self.status = 200
            connection = self.connection
            self._write(
                b"HTTP/1.1 200 OK\r\nx-request-id: %b\r\n%bcontent-length: %d\r\n%b"
                % (
                    self.request_id.encode(),
                    connection.common_headers,
                    len(body),
                    _CLOSE if self.closing else _KEEP_ALIVE,
                ),
                body,
            )
            connection.finished(self)
            return
        self.respond(status, body, header_lines(answer.headers), answer.phrase)  # type: ignore[arg-type]

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:
        """Write an intermediate result: one chunk, the first one together with the head and at once."""
        head = b""
        if not self._started:
            head = self._begin_stream(answer)
        data = b""
        if body and not self._bodiless:
            data = b"".join((b"%x\r\n" % len(body), body, b"\r\n")) if self._chunked else bytes(body)
        if head:
            self.connection.write_now(head + data)
        else:
            if data:
                self.connection.write_soon(data)
        return not self.connection.paused

    def _begin_stream(self, answer: Answer) -> bytes:
        """The head of a streamed answer."""
        self._started = True
        self.status = answer.status
        self._chunked = self.version != "HTTP/1.0"
        self._bodiless = self.method == "HEAD" or answer.status in _NO_BODY
        if answer.status >= 400 or not self._chunked:
            self.closing = True
        encoding = b"transfer-encoding: chunked\r\n" if self._chunked and answer.status not in _NO_BODY else b""
        headers = _STREAMED + header_lines(answer.headers)
        return self._head(answer.status, answer.phrase, headers, encoding)

    def _end_stream(self, body: bytes | memoryview) -> None:
        if not self._bodiless:
            if not self._chunked:
                self._write(b"", body)
            elif body:
                self._write(b"".join((b"%x\r\n" % len(body), body, b"\r\n0\r\n\r\n")), b"")
            else:
                self._write(b"0\r\n\r\n", b"")
        self.connection.finished(self)

    # -- writing -------------------------------------------------------------------------------------------------

    def _head(self, status: int, phrase: str | None, headers: bytes, framing: bytes) -> bytes:
        connection = self.connection
        common = connection.common_headers
        if connection.cors and b"access-control-" in headers.lower():
            common = _without_repeats(connection.cors, headers) + NO_CACHE
        return b"".join(
            (
                f"HTTP/1.1 {status} {phrase or phrase_of(status)}\r\n".encode("latin-1", "replace"),
                headers,
                b"x-request-id: ",
                self.request_id.encode(),
                b"\r\n",
                common,
                framing,
                _CLOSE if self.closing else _KEEP_ALIVE,
            )
        )

    def _write(self, head: bytes, body: bytes | memoryview) -> None:
        if len(body) < _JOIN:
            self.connection.write(head + body if body else head)
        else:
            self.connection.write_all([head, body])


def header_lines(headers: dict[str, str] | None) -> bytes:
    """Header lines of what a handler set; those that are the server's are left out."""
    if not headers:
        return b""
    return b"".join(
        f"{name}: {value}\r\n".encode("latin-1", "replace")
        for name, value in headers.items()
        if name.lower() not in _SERVERS_OWN
    )


def _without_repeats(cors: bytes, headers: bytes) -> bytes:
    """The CORS lines whose names a handler has not set itself."""
    given = {line.partition(b":")[0].lower() for line in headers.split(b"\r\n")}
    return b"".join(
        line + b"\r\n" for line in cors.split(b"\r\n") if line and line.partition(b":")[0].lower() not in given
    )
