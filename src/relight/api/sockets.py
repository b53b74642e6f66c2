"""Sockets that listeners accept connections on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relight.settings import Address


def bind(address: Address) -> socket.socket:
    """A socket that is bound to an address, and does not listen yet.

    A file in the place of a unix socket is removed: an earlier server may have left it there.

    Raises:
        OSError: the name is unknown, the port is taken, or the path cannot be used.
    """
    if address.scheme == "unix":
        Path(address.path).unlink(missing_ok=True)
        return _bound(socket.AF_UNIX, address.path)
    return _bound_host(address.host, address.port)


def bind_grpc(host: str, port: int) -> socket.socket:
    """A socket for gRPC, that is bound and does not listen yet; `0.0.0.0` takes IPv6 clients too (grpc_api.md §9).

    Raises:
        OSError: the name is unknown, or the port is taken.
    """
    if host == "0.0.0.0" and socket.has_dualstack_ipv6():
        return _bound(socket.AF_INET6, ("::", port))
    return _bound_host(host, port)


def release(bound: socket.socket, address: Address) -> None:
    """Close a socket, and remove the file of a unix socket."""
    bound.close()
    if address.scheme == "unix":
        Path(address.path).unlink(missing_ok=True)


def _bound_host(host: str, port: int) -> socket.socket:
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _bound(family, place)


def _bound(family: int, place: object) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX and os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and isinstance(place, tuple) and place[0] == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(place)  # type: ignore[arg-type]
    except BaseException:
        bound.close()
        raise
    return bound
