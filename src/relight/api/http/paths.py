"""Request targets: path segments and query parameters (rest_api.md §1.3)."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_plus, unquote_to_bytes

from relight.errors import BadRequestError

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_MOST_PARAMETERS = 1024


@lru_cache(maxsize=1024)
def segments_of(path: bytes) -> tuple[str, ...]:
    """The decoded segments of a path, without trailing empty ones.

    The path is decoded as a whole and split then, so an escaped slash separates too. A target that is no path, such as
    `*`, gives one segment that no route has.

    Raises:
        BadRequestError: an escape is malformed, or the path is not UTF-8.
    """
    if not path.startswith(b"/"):
        absolute = _ABSOLUTE.match(path)
        if absolute is None:
            return ("*",)
        path = path[absolute.end() :] or b"/"
    if b"%" in path:
        bad = _BAD_ESCAPE.search(path)
        if bad is not None:
            raise BadRequestError(
                f"Malformed percent-encoding at index {bad.start()} of {path.decode('latin-1')!r}: "
                "write % and two hexadecimal digits."
            )
        path = unquote_to_bytes(path)
    try:
        segments = path.decode().split("/")
    except UnicodeDecodeError as error:
        raise BadRequestError("The path is not UTF-8.") from error
    while segments and not segments[-1]:
        segments.pop()
    return tuple(segments[1:])


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target; a fragment is dropped."""
    target = target.partition(b"#")[0]
    path, _, query = target.partition(b"?")
    return path, query


def parse_query(query: bytes) -> list[tuple[str, str]]:
    """Names and values of a query, in order; pairs are separated by `&` or `;`, at most 1,024 are read."""
    pairs = []
    for pair in query.decode("latin-1").replace(";", "&").split("&", _MOST_PARAMETERS)[:_MOST_PARAMETERS]:
        if pair:
            name, _, value = pair.partition("=")
            pairs.append((unquote_plus(name, "utf-8", "replace"), unquote_plus(value, "utf-8", "replace")))
    return pairs


class Parameters:
    """Parameters of a management call: of equal names the first counts.

    Args:
        pairs: Names and values.
    """

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name, value)

    def text(self, name: str) -> str | None:
        """The value, None if the parameter is absent."""
        return self._values.get(name)

    def nonempty(self, name: str) -> str | None:
        """The value, None if the parameter is absent or empty."""
        return self._values.get(name) or None

    def integer(self, name: str) -> int | None:
        """The value; None if it is absent or not an integer of 32 bits, which count the same (KEEP)."""
        value = self._values.get(name)
        if value is None or not _INTEGER.fullmatch(value):
            return None
        number = int(value)
        return number if -(2**31) <= number < 2**31 else None

    def boolean(self, name: str, default: bool) -> bool:
        """Whether the value is `true` in any letter case; `default` if the parameter is absent."""
        value = self._values.get(name)
        return default if value is None else value.lower() == "true"
