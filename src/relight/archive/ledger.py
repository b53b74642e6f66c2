"""Who made which temporary directory, so that those of a server that was killed can be removed by the next one.

Every server holds a lock on a file of its own that lists its directories. The lock ends with the process, however that
ends: a file that can be locked belongs to nobody any more. What no file lists is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import uuid
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PREFIX = ".owner-"
_NAME = re.compile(r"[0-9a-f]{32}")
_COMPACT_AT = 1000


class Ledger:
    """The directories that this process made below `folder`.

    Args:
        folder: Where the directories and the ledgers of all servers lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / (_PREFIX + uuid.uuid4().hex)
        self._file: IO[str] | None = None
        self._names: list[str] = []

    def record(self, directory: Path) -> None:
        """Note a directory of this process, before it is made; `folder` has to exist.

        Raises:
            OSError: The ledger cannot be written.
        """
        if self._file is None:
            descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(descriptor, "w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._names.append(directory.name)
        if len(self._names) >= _COMPACT_AT:
            self._names = [name for name in self._names if (self._folder / name).exists()] + [directory.name]
            self._file.seek(0)
            self._file.truncate()
            self._file.writelines(f"{name}\n" for name in self._names)
        else:
            self._file.write(f"{directory.name}\n")
        self._file.flush()

    def clean(self) -> list[Path]:
        """Delete the directories of processes that ended without deleting them; returns what was deleted."""
        removed: list[Path] = []
        for path in self._folder.glob(_PREFIX + "*"):
            with contextlib.suppress(OSError):
                removed += self._clean_one(path)
        return removed

    def close(self) -> None:
        """Give up the ledger; it stays for the next server if directories are left."""
        if self._file is not None:
            if not any((self._folder / name).exists() for name in self._names):
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _clean_one(self, path: Path) -> list[Path]:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            status = os.fstat(file.fileno())
            # In a shared temporary directory anybody may write what looks like a ledger.
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return []
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            names = [name for name in file.read().split() if _NAME.fullmatch(name)]
            directories = [self._folder / name for name in names if (self._folder / name).exists()]
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)
            path.unlink(missing_ok=True)
        return directories
