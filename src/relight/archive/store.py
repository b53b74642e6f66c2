"""The model store: from what a registration calls `url` to an archive on disk (archives_and_handlers.md §1.4)."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from relight.archive.fetch import FetchLimits, fetch
from relight.archive.ledger import Ledger
from relight.archive.manifest import Manifest, read_manifest
from relight.archive.unpack import UnpackLimits, unpack
from relight.archive.urls import AllowedUrls, check_location, is_url, local_name
from relight.errors import InternalServerError, InvalidModelError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

_ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz")
_log = logging.getLogger("relight.archive")


@dataclass(frozen=True)
class Archive:
    """A model on disk, ready to be loaded.

    Attributes:
        url: What the registration called it.
        model_dir: The directory that handlers see; for linked directories the link.
        real_dir: The same directory without links: working directory and import path of the workers.
        root: The private temporary directory that ends with the registration. For linked directories it is the parent
            of the link, and takes the model's own pip packages.
        linked: The model is used in place, in a directory that belongs to somebody else.
        manifest: MAR-INF/MANIFEST.json, None if there is none.
        downloaded: The file in the model store that this registration downloaded.
        extra_path: Import path entries of the workers, in order, after the server's own PYTHONPATH.
    """

    url: str
    model_dir: Path
    real_dir: Path
    root: Path
    linked: bool
    manifest: Manifest | None
    downloaded: Path | None
    extra_path: tuple[Path, ...]

    def path_of(self, name: str) -> Path:
        """The path of a file that the manifest names, e.g. `configFile`; it need not exist.

        Raises:
            InvalidModelError: The name leads out of the archive.
        """
        if name.startswith("/") or ".." in PurePosixPath(name).parts or "\0" in name:
            raise InvalidModelError(f"The manifest names a file outside of the archive: {name}")
        return self.real_dir / name

    def discard(self, *, delete_download: bool) -> None:
        """Delete the temporary directory (never a linked model itself) and, if asked, the downloaded archive.

        May be called again; what cannot be deleted is logged.
        """
        _remove(self.root)
        if delete_download and self.downloaded is not None:
            try:
                self.downloaded.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("Cannot delete %s: %s", self.downloaded, error)


class ModelStore:
    """Finds, fetches and unpacks archives.

    Args:
        root: The model store, None if none is configured.
        work_dir: Archives are unpacked to `<work_dir>/models/<32 hex>`.
        allowed_urls: Urls that may be downloaded.
        unpack_limits: Past these an archive is refused.
        fetch_limits: Limits of downloads.
    """

    def __init__(
        self,
        root: Path | None,
        work_dir: Path,
        allowed_urls: AllowedUrls | None = None,
        *,
        unpack_limits: UnpackLimits | None = None,
        fetch_limits: FetchLimits | None = None,
    ) -> None:
        self._root = None if root is None else Path(os.path.abspath(root))  # noqa: PTH100 links stay
        self._models = Path(os.path.abspath(work_dir)) / "models"  # noqa: PTH100
        self._allowed = allowed_urls or AllowedUrls()
        self._unpack_limits = unpack_limits or UnpackLimits()
        self._fetch_limits = fetch_limits or FetchLimits()
        self._stop = threading.Event()
        self._ledger = Ledger(self._models)
        self._ledger_lock = threading.Lock()

    def open(self, url: str, *, s3_sse_kms: bool = False, trusted: bool = False) -> Archive:
        """Bring the archive that `url` means to disk. Blocks; several threads may call it at once.

        Args:
            url: An allowed url, or the name of a file or directory in the model store (of a path only the last
                component counts), or the path of a directory.
            s3_sse_kms: Sign the download with AWS credentials.
            trusted: The operator asks, not a client: any directory on disk will do, not only one in the model store.

        Raises:
            ModelNotFoundError: No such archive, or the url is not allowed.
            DownloadArchiveError: The download failed.
            InvalidModelError: The archive is no archive, or its manifest is wrong.
            InternalServerError: The archive cannot be unpacked, or the downloaded file exists already.
        """
        if self._root is None:
            raise ModelNotFoundError("Model store has not been configured.")
        check_location(url)
        if self._stop.is_set():
            raise InternalServerError(f"Failed to save model: {url}")
        if not is_url(url):
            return self._open_local(url, self._root, trusted=trusted)
        if not self._allowed.allows(url):
            raise ModelNotFoundError(f"Given URL {url} does not match any allowed URL(s)")
        file = fetch(url, self._root, self._allowed, s3_sse_kms=s3_sse_kms, limits=self._fetch_limits, stop=self._stop)
        try:
            return self._unpacked(file, url, downloaded=file)
        except BaseException:
            # Or the next attempt would be told that the file exists already.
            file.unlink(missing_ok=True)
            raise

    def list_all(self) -> list[str]:
        """The names that `load_models=all` means, sorted: archives and directories that are not hidden."""
        if self._root is None:
            return []
        return sorted(
            entry.name
            for entry in self._root.iterdir()
            if not entry.name.startswith(".") and (entry.is_dir() or entry.name.endswith(_ARCHIVE_SUFFIXES))
        )

    def clean_stale(self) -> None:
        """Delete what servers left in the work directory that were killed; nothing of one that still runs."""
        for directory in self._ledger.clean():
            _log.info("Deleted %s, left by a server that was killed.", directory)

    def close(self) -> None:
        """End running downloads and unpackings with an error, and all later ones: the server is stopping.

        Archives that are still open stay on disk until they are discarded, or until the next `clean_stale`.
        """
        self._stop.set()
        with self._ledger_lock:
            self._ledger.close()

    def _open_local(self, url: str, root: Path, *, trusted: bool) -> Archive:
        name = local_name(url)
        if name is not None and _is_file(root / name):
            return self._unpacked(root / name, url, downloaded=None)
        directory = _absolute(url)
        if directory is not None and _is_dir(directory) and (trusted or _is_inside(directory, root)):
            return self._linked(directory, url)
        if name is not None and _is_dir(root / name):
            return self._linked(root / name, url)
        raise ModelNotFoundError(f"Model not found at: {url}")

    def _unpacked(self, file: Path, url: str, *, downloaded: Path | None) -> Archive:
        root = self._models / uuid.uuid4().hex

        def build() -> Archive:
            unpack(file, root, url=url, limits=self._unpack_limits, stop=self._stop)
            real = root.resolve()
            return Archive(url, root, real, root, False, read_manifest(real), downloaded, (real,))

        return self._or_removed(root, url, build)

    def _linked(self, directory: Path, url: str) -> Archive:
        root = self._models / uuid.uuid4().hex

        def build() -> Archive:
            model = _descended(directory)
            real = model.resolve()
            root.mkdir(mode=0o700)
            link = root / (model.name or "model")
            link.symlink_to(real, target_is_directory=True)
            return Archive(url, link, real, root, True, read_manifest(real), None, (real, root))

        return self._or_removed(root, url, build)

    def _or_removed(self, root: Path, url: str, build: Callable[[], Archive]) -> Archive:
        try:
            self._models.mkdir(parents=True, exist_ok=True)
            with self._ledger_lock:
                self._ledger.record(root)
            return build()
        except OSError as error:
            _remove(root)
            _log.error("Cannot open %s: %s", url, error)
            raise InternalServerError(f"Failed to save model: {url}") from error
        except BaseException:
            _remove(root)
            raise


def _remove(root: Path) -> None:
    # onerror would be called for the directory itself too; a missing one is what we want.
    shutil.rmtree(root, ignore_errors=True)
    if os.path.lexists(root):
        _log.warning("Cannot delete all of %s", root)


def _descended(directory: Path) -> Path:
    """SageMaker's layout: a directory that holds nothing but one directory stands for that one."""
    entries = list(directory.iterdir())
    if len(entries) == 1 and entries[0].is_dir() and entries[0].name != "MAR-INF":
        return entries[0]
    return directory


def _absolute(url: str) -> Path | None:
    path = Path(os.path.abspath(url))  # noqa: PTH100 links stay: they may be what puts the directory into the store
    return None if "\0" in url else path


def _is_inside(directory: Path, root: Path) -> bool:
    """Whether `directory` lies below `root`, as it is named or as it really is."""
    pairs = ((directory, root), (Path(os.path.realpath(directory)), Path(os.path.realpath(root))))
    return any(inner != outer and inner.is_relative_to(outer) for inner, outer in pairs)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
