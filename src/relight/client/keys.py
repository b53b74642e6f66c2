"""Tokens, and the file that the server writes them to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

__all__ = ["KeyFile", "Keys", "TokenSource", "from_key_file"]

TokenSource = str | Callable[[], str | None]
"""A token, or what returns the current one; asked for each call."""


@dataclass(frozen=True)
class Keys:
    """The keys of a server.

    Attributes:
        inference: Opens the inference API.
        management: Opens the management API.
        api: Renews the other two.
    """

    inference: str
    management: str
    api: str


class KeyFile:
    """The server's key file (`key_file.json` in its working directory), read again whenever it has changed.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int] | None = None
        self._keys = Keys("", "", "")

    def keys(self) -> Keys:
        """Return what the file holds now.

        Raises:
            OSError: It cannot be read.
            ValueError: It is no key file.
        """
        found = self.path.stat()
        # The server replaces the file as a whole, so a new content has a new inode.
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._keys = _read(self.path)
            self._seen = seen
        return self._keys

    def inference(self) -> str:
        """Return the current inference key."""
        return self.keys().inference

    def management(self) -> str:
        """Return the current management key."""
        return self.keys().management


def from_key_file(path: str | os.PathLike[str]) -> Keys:
    """Return the keys in a server's key file, as they are now.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no key file.
    """
    return KeyFile(path).keys()


def current(source: TokenSource | None) -> str | None:
    """Return the token to send."""
    return source() if callable(source) else source


def _read(path: Path) -> Keys:
    try:
        document = json.loads(path.read_bytes())
        return Keys(*(document[member]["key"] for member in ("inference", "management", "API")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a key file: {error!r}") from error
