"""Unpack an archive (archives_and_handlers.md §1.4) as if an enemy had packed it.

Nothing is written outside the target: entries are checked by name; links are made last, when no file can be written
through them any more, and each is resolved afterwards. Sizes are counted as bytes come out, whatever the headers claim.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from relight.errors import InternalServerError, InvalidModelError

if TYPE_CHECKING:
    import threading

_CHUNK = 256 * 1024
_MAX_HEADER = 1024 * 1024
_GIB = 1024**3
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_GZIP_MAGIC = b"\x1f\x8b"
# What zipfile, tarfile, gzip and zlib raise on hostile input, besides their own errors.
_BROKEN = (OSError, EOFError, RuntimeError, ValueError, ArithmeticError, LookupError, zlib.error)

_log = logging.getLogger("relight.archive")


@dataclass(frozen=True)
class UnpackLimits:
    """How much an archive may unpack to.

    Attributes:
        max_bytes: Total size of the unpacked files, in bytes.
        max_entries: Number of entries, directories and links included.
        max_ratio: Unpacked bytes for one byte of the archive; counts only above `ratio_from`.
        ratio_from: Unpacked bytes below which any ratio is fine (zeros compress well).
    """

    max_bytes: int = 64 * _GIB
    max_entries: int = 1_000_000
    max_ratio: float = 1000.0
    ratio_from: int = _GIB


class _RefusedError(Exception):
    """The archive wants what no archive may."""


def unpack(
    archive: Path, target: Path, *, url: str, limits: UnpackLimits | None = None, stop: threading.Event | None = None
) -> None:
    """Unpack a zip or a gzip-compressed tar (whose entries lose their first path component) into a new directory.

    The first bytes decide which it is; where they say neither, a name ending in `.mar` makes it a broken zip, and any
    other a broken tar. File modes and owners are not restored.

    Args:
        archive: The archive.
        target: The directory to make; removed again after an error.
        url: What the client called the archive, for the message.
        limits: Past these the archive is refused.
        stop: When set, unpacking ends with an error.

    Raises:
        InvalidModelError: A `.mar` file that is no zip: `Model name is not defined.`
        InternalServerError: Anything else that is wrong: `Failed to save model: <url>`. The log says what.
    """
    try:
        target.mkdir(mode=0o700)
        try:
            _unpack(archive, target, limits or UnpackLimits(), stop)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    except (_RefusedError, zipfile.BadZipFile, tarfile.TarError, *_BROKEN) as error:
        _log.error("Cannot unpack %s: %s", archive, str(error) or type(error).__name__)
        raise InternalServerError(f"Failed to save model: {url}") from error


def _unpack(archive: Path, target: Path, limits: UnpackLimits, stop: threading.Event | None) -> None:
    with archive.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        sink = _Sink(target, limits, os.fstat(file.fileno()).st_size, stop)
        if magic in _ZIP_MAGIC:
            _unpack_zip(file, sink)
        elif magic.startswith(_GZIP_MAGIC):
            _unpack_tar(file, sink)
        elif archive.name.endswith(".mar"):
            _log.error("%s is neither a zip nor a gzip-compressed tar.", archive)
            raise InvalidModelError("Model name is not defined.")
        else:
            raise _RefusedError("it is neither a zip nor a gzip-compressed tar")
    sink.finish()


def _unpack_zip(file: IO[bytes], sink: _Sink) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) > sink.limits.max_entries:
            raise _RefusedError(f"it has more than {sink.limits.max_entries} entries")
        for entry in entries:
            mode = entry.external_attr >> 16
            if entry.is_dir():
                sink.directory(entry.filename)
            elif stat.S_ISLNK(mode):
                with archive.open(entry) as stream:
                    sink.symlink(entry.filename, os.fsdecode(stream.read(4096)))
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with archive.open(entry) as stream:
                    sink.file(entry.filename, stream)
            else:
                raise _RefusedError(f"{_shown(entry.filename)} is a device or another special file")


def _unpack_tar(file: IO[bytes], sink: _Sink) -> None:
    with gzip.GzipFile(fileobj=file) as unzipped:
        stream = _TarStream(unzipped)
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as archive:
            while True:
                stream.header_budget = _MAX_HEADER
                member = archive.next()
                # tarfile remembers every member, and a million of them is a gigabyte.
                cast("Any", archive).members.clear()
                if member is None:
                    break
                stream.header_budget = None
                _unpack_member(archive, member, sink)


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, sink: _Sink) -> None:
    # Checked before the strip: a name that is absolute or goes upwards is hostile even where stripping would tame it.
    sink.check(member.name)
    name = _stripped(member.name)
    if member.isdir():
        sink.directory(name if "/" in member.name else "")
    elif member.issym():
        sink.symlink(name, member.linkname)
    elif member.islnk():
        sink.check(member.linkname)
        sink.hardlink(name, _stripped(member.linkname))
    elif member.isreg():
        content = archive.extractfile(member)
        if content is None:
            raise _RefusedError(f"{_shown(member.name)} has no content")
        with content:
            sink.file(name, content)
    else:
        raise _RefusedError(f"{_shown(member.name)} is a device or another special file")


def _stripped(name: str) -> str:
    return name.partition("/")[2] if "/" in name else name


def _shown(name: str) -> str:
    return name.encode("unicode_escape").decode()


class _TarStream:
    """What tarfile reads from: forward only, and frugal with headers, which tarfile reads into memory whole.

    Attributes:
        header_budget: Bytes that may still be read for one header; None while content is read.
    """

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._position = 0
        self.header_budget: int | None = _MAX_HEADER

    def read(self, size: int = -1) -> bytes:
        if self.header_budget is not None:
            if not 0 <= size <= self.header_budget:
                raise _RefusedError("a tar header is too large")
            self.header_budget -= size
        data = self._source.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if position < self._position:
            raise _RefusedError("the tar refers backwards")
        while self._position < position:
            data = self._source.read(min(_CHUNK, position - self._position))
            if not data:
                break
            self._position += len(data)
        return self._position

    def close(self) -> None:
        """The source closes itself."""


class _Sink:
    """Writes entries below a directory, and counts."""

    def __init__(self, root: Path, limits: UnpackLimits, archive_size: int, stop: threading.Event | None) -> None:
        self.limits = limits
        self._root = Path(os.path.realpath(root))
        self._max_bytes = min(limits.max_bytes, max(limits.ratio_from, int(limits.max_ratio * archive_size)))
        self._stop = stop
        self._bytes = 0
        self._entries = 0
        self._hardlinks: list[tuple[str, str]] = []
        self._symlinks: list[tuple[str, str]] = []

    def check(self, name: str) -> list[str]:
        """The components of `name`, or an error if it leaves the root."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            _log.error("Detected Zip Slip vulnerability: %s", _shown(name))
            raise _RefusedError(f"{_shown(name)} would be written elsewhere")
        return parts

    def directory(self, name: str) -> None:
        self._count()
        self._root.joinpath(*self.check(name)).mkdir(parents=True, exist_ok=True)

    def file(self, name: str, content: IO[bytes]) -> None:
        self._count()
        path = self._path(name)
        with path.open("wb") as file:
            while chunk := content.read(_CHUNK):
                self._bytes += len(chunk)
                if self._bytes > self._max_bytes:
                    raise _RefusedError(f"it unpacks to more than {self._max_bytes} bytes")
                if self._stop is not None and self._stop.is_set():
                    raise _RefusedError("the server is stopping")
                file.write(chunk)

    def hardlink(self, name: str, original: str) -> None:
        self._count()
        self._hardlinks.append((name, original))

    def symlink(self, name: str, destination: str) -> None:
        self._count()
        self._symlinks.append((name, destination))

    def finish(self) -> None:
        """Make the links: hard ones while there are no others, then symbolic ones, which must all stay inside."""
        for name, original in self._hardlinks:
            self._path(name).hardlink_to(self._path(original))
        links = [self._make_symlink(name, destination) for name, destination in self._symlinks]
        for link in links:
            if not Path(os.path.realpath(link, strict=True)).is_relative_to(self._root):
                raise _RefusedError(f"the link {_shown(link.name)} leads out of the archive")

    def _make_symlink(self, name: str, destination: str) -> Path:
        path = self._root.joinpath(*self.check(name))
        if Path(os.path.realpath(path.parent)) != path.parent:
            raise _RefusedError(f"{_shown(name)} would be written through a link")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(destination)
        return path

    def _path(self, name: str) -> Path:
        parts = self.check(name)
        if not parts:
            raise _RefusedError("an entry has no name")
        path = self._root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self.limits.max_entries:
            raise _RefusedError(f"it has more than {self.limits.max_entries} entries")
