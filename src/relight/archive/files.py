"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def appearing(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A hidden temporary path beside `target` to write to, which becomes `target` when the block ends without an error.

    Args:
        target: The file to make.
        overwrite: Replace an existing one. Otherwise nothing is ever replaced, even if it appears meanwhile.

    Yields:
        The path to write to. Nothing of it stays behind after an error.

    Raises:
        FileExistsError: `target` exists and `overwrite` is off.
        OSError: The file system refused.
    """
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        yield part
        if overwrite:
            part.replace(target)
        else:
            _link(part, target)
    finally:
        part.unlink(missing_ok=True)


def _link(part: Path, target: Path) -> None:
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except OSError:
        # No hard links here (FAT, some network mounts): reserve the name, then replace our own empty file.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        try:
            part.replace(target)
        except OSError:
            target.unlink(missing_ok=True)
            raise
