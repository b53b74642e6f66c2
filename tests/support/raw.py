"""HTTP/1.1 over a bare socket: exact bytes out, exact bytes in, and how the connection ends."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    Address: TypeAlias = tuple[str, int] | str
    Ending: TypeAlias = Literal["fin", "rst"]

TIMEOUT_S = 60.0
_BODILESS = frozenset({204, 304})


@dataclass(frozen=True)
class RawResponse:
    """One response as it stood on the wire."""

    status_line: bytes
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes] | None = field(default=None)

    @property
    def status(self) -> int:
        return int(self.status_line.split(b" ", 2)[1])

    @property
    def phrase(self) -> str:
        return self.status_line.split(b" ", 2)[2].decode("latin-1")

    @property
    def names(self) -> list[str]:
        """The header names in their order and case."""
        return [name for name, _ in self.headers]

    def header(self, name: str) -> str | None:
        """Return the value of the first header with that name, ignoring case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def all(self, name: str) -> list[str]:
        """Return every value of that header, ignoring case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """A client connection that sends what it is told and reads what is there."""

    def __init__(self, address: Address, timeout: float = TIMEOUT_S) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(address)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        *,
        read: bool = True,
    ) -> RawResponse:
        """Send one request and, unless told otherwise, read its response (without `read` the response is empty)."""
        self.send(encode(method, target, headers, body))
        return self.read_response(head=method == "HEAD") if read else RawResponse(b"", [], b"")

    def read_response(self, *, head: bool = False) -> RawResponse:
        """Read one response; an interim 100 counts as one."""
        status_line, headers = self.read_head()
        response = RawResponse(status_line, headers, b"")
        if head or response.status in _BODILESS or response.status < 200:
            return response
        if (response.header("transfer-encoding") or "").lower() == "chunked":
            chunks: list[bytes] = []
            while chunk := self.read_chunk():
                chunks.append(chunk)
            return RawResponse(status_line, headers, b"".join(chunks), chunks)
        return RawResponse(status_line, headers, self._exactly(int(response.header("content-length") or 0)))

    def read_head(self) -> tuple[bytes, list[tuple[str, str]]]:
        """Read the status line and the headers."""
        status_line = self._line()
        headers = []
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        return status_line, headers

    def read_chunk(self) -> bytes:
        """Read one chunk of a chunked body; the last one is empty."""
        size = int(self._line().split(b";")[0], 16)
        data = self._exactly(size)
        assert self._line() == b"", "chunk without its line end (or a trailer)"
        return data

    def ending(self) -> Ending:
        """Wait until the server closes: orderly (`fin`) or not (`rst`).

        Raises:
            TimeoutError: It stays open.
        """
        try:
            rest = self._buffer + self.socket.recv(65536)
        except ConnectionResetError:
            return "rst"
        assert rest == b"", f"unexpected bytes after the response: {rest!r}"
        return "fin"

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        parts = [self._buffer]
        missing = size - len(self._buffer)
        while missing > 0:
            data = self.socket.recv(min(missing, 1 << 20))
            if not data:
                raise ConnectionError(f"closed {missing} bytes before the end of the body")
            parts.append(data)
            missing -= len(data)
        whole = b"".join(parts)
        self._buffer = whole[size:]
        return whole[:size]

    def _fill(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError(f"closed after {self._buffer!r}")
        self._buffer += data


def encode(
    method: str,
    target: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
) -> bytes:
    """Return the bytes of a request. `Host` and, with a body, `Content-Length` are added unless given."""
    pairs = list(headers.items() if hasattr(headers, "items") else headers)
    given = {name.lower() for name, _ in pairs}
    if "host" not in given:
        pairs.insert(0, ("Host", "test"))
    if body is not None and not given & {"content-length", "transfer-encoding"}:
        pairs.append(("Content-Length", str(len(body))))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs), "", ""]
    return "\r\n".join(lines).encode("utf-8") + (body or b"")


def chunked(*parts: bytes) -> bytes:
    """Return the parts as a chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def multipart(parts: Iterable[tuple[str, bytes]], boundary: str = "frontier") -> bytes:
    """Return a multipart body of (head lines of the part, content) pairs."""
    body = b"".join(f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts)
    return body + f"--{boundary}--\r\n".encode()
