"""What the parser refuses and the contract accepts: unknown methods, and offers to speak another protocol."""

from __future__ import annotations

import re

_METHODS = frozenset({b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"CONNECT", b"TRACE"})
_COMMON = frozenset({b"POST", b"GET ", b"PUT ", b"DELE"})
_LONGEST_METHOD = 32
_MOST_HEAD = 8192
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
MASKED_UPGRADE = b"x-relight-declined"
"""Name under which the parser sees an upgrade header, which it would act upon."""


def accepted_by_parser(data: bytes) -> tuple[bytes, bytes | None]:
    """The beginning of a request in a form that the parser accepts, and the method where it was replaced.

    Args:
        data: What was received; the first byte begins a request.
    """
    method = None
    if data[:4] not in _COMMON:
        name, space, rest = data.partition(b" ")
        unknown = space and name not in _METHODS and name.isalpha() and len(name) <= _LONGEST_METHOD
        if unknown and rest.startswith((b"/", b"h")):
            # Routes that do not look at the method serve it.
            method, data = name, b"POST " + rest
    if b"pgrade" in data[:_MOST_HEAD]:
        data = _without_upgrade(data)
    return data, method


def _without_upgrade(data: bytes) -> bytes:
    """The data with the header that asks for another protocol under another name: such requests are served as any.

    Java's HttpClient sends one with its first request, and curl with `--http2`.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\n" + MASKED_UPGRADE + b":", head) + end + rest


def has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request announces a body."""
    return any(
        name.lower() == b"transfer-encoding" or (name.lower() == b"content-length" and value != b"0")
        for name, value in headers
    )
