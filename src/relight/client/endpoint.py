"""Where a server is, and how to talk to it safely."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import os

__all__ = ["TLS", "Endpoint", "parse"]

_PORTS: Final = {"http": 80, "https": 443, "grpc": 7070, "grpcs": 7070}


@dataclass(frozen=True)
class TLS:
    """What a client trusts, and what it shows of itself. All files are PEM.

    Attributes:
        ca: The certificates of the authorities to trust; None for the system's. A self-signed certificate is its own.
        certificate: The client's certificate, where the server asks for one.
        key: Its private key; None if it is in the same file.
        server_name: The name that the server's certificate must carry; None for the host of the address.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """An address.

    Attributes:
        protocol: What is spoken there.
        secure: Whether over TLS.
        host: The host; empty for a unix socket.
        port: The port; 0 for a unix socket.
        prefix: What all paths begin with, as behind a proxy; HTTP only.
        socket: The path of a unix socket; HTTP only.
    """

    protocol: Literal["http", "grpc"]
    secure: bool
    host: str
    port: int
    prefix: str = ""
    socket: str | None = None

    @property
    def authority(self) -> str:
        """Host and port, as they stand in an address."""
        return f"[{self.host}]:{self.port}" if _is_ipv6(self.host) else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """What HTTP paths are appended to."""
        if self.socket is not None:
            return "http://localhost"
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.prefix}"


def parse(address: str) -> Endpoint:
    """Read an address: `http://`, `https://`, `grpc://` or `grpcs://` and host and port, or `unix:` and a path.

    Raises:
        ValueError: It is none of these.
    """
    if address.startswith("unix:"):
        # "unix:/run/x" as in config.properties, "unix:///run/x" as an address is usually written.
        path = address.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"{address!r}: a unix socket is an absolute path, as in unix:/run/relight.sock")
        return Endpoint("http", secure=False, host="", port=0, socket=path)
    parts = urlsplit(address)
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(
            f"{address!r}: expected http://, https://, grpc:// or grpcs:// with host and port, or unix:/path"
        )
    is_grpc = parts.scheme.startswith("grpc")
    prefix = parts.path.rstrip("/")
    if is_grpc and prefix:
        raise ValueError(f"{address!r}: a gRPC address has no path")
    return Endpoint(
        "grpc" if is_grpc else "http",
        secure=parts.scheme.endswith("s"),
        host=parts.hostname,
        port=parts.port or _PORTS[parts.scheme],
        prefix=prefix,
    )


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
