"""Download an archive into the model store: http, https and file urls."""

from __future__ import annotations

import logging
import os
import stat
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from relight.archive.files import appearing
from relight.archive.s3 import AwsCredentials, canonical_url, find_credentials, signed_headers
from relight.archive.urls import AllowedUrls, local_name, redacted
from relight.errors import DownloadArchiveError, InternalServerError
from relight.version import __version__

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

_CHUNK = 256 * 1024
_MAX_REDIRECTS = 20
_REDIRECTS = (301, 302, 303, 307, 308)
_log = logging.getLogger("relight.archive")


@dataclass(frozen=True)
class FetchLimits:
    """How much, and for how long, a download may go on.

    Attributes:
        max_archive_size: Bytes of one archive; 0 for no limit.
        connect_timeout: Seconds to reach the host.
        read_timeout: Seconds without a single byte.
        total_timeout: Seconds for the whole download.
    """

    max_archive_size: int = 0
    connect_timeout: float = 30.0
    read_timeout: float = 60.0
    total_timeout: float = 6 * 3600.0


class _FetchError(Exception):
    """Why a download failed, for the log."""


def fetch(
    url: str,
    store: Path,
    allowed: AllowedUrls,
    *,
    s3_sse_kms: bool = False,
    limits: FetchLimits | None = None,
    stop: threading.Event | None = None,
) -> Path:
    """Download an archive into the model store, under the last component of the url's path.

    The file appears whole or not at all, and never replaces another one. Redirects are followed while `allowed` allows
    each target; credentials go to the first host alone.

    Args:
        url: An http, https or file url that `allowed` allows.
        store: The model store.
        allowed: The urls that may be fetched.
        s3_sse_kms: Sign the request with AWS credentials, for objects that S3 holds encrypted.
        limits: Size and time limits.
        stop: When set, the download ends with an error.

    Returns:
        The downloaded file.

    Raises:
        InternalServerError: `Model file already exists <file>`.
        DownloadArchiveError: Anything else, with status 400; the log says what went wrong.
    """
    failure = DownloadArchiveError(f"Failed to download archive from: {url}")
    name = local_name(url)
    if name is None:
        raise failure
    target = store / name
    exists = InternalServerError(f"Model file already exists {name}")
    copy = _Copy(redacted(url), limits or FetchLimits(), stop)
    try:
        if os.path.lexists(target):
            raise exists
        credentials = find_credentials(url) if s3_sse_kms else None
        with appearing(target) as part, part.open("wb") as file:
            if url.lower().startswith("file:"):
                _fetch_file(url, file, copy, signed=s3_sse_kms)
            else:
                _fetch_http(url, file, copy, allowed, credentials)
    except FileExistsError as error:
        raise exists from error
    except (_FetchError, OSError, ValueError) as error:
        _log.error("Cannot download %s: %s", redacted(url), str(error) or type(error).__name__)
        raise failure from error
    return target


def _fetch_file(url: str, file: IO[bytes], copy: _Copy, *, signed: bool) -> None:
    parts = urlsplit(url)
    if signed or parts.netloc.lower() not in ("", "localhost"):
        raise _FetchError("a file url names a file of this host, and is not signed")
    # Not blocking: opening a named pipe would otherwise wait for a writer, before it can be seen that it is none.
    descriptor = os.open(unquote(parts.path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _FetchError("it is not a regular file")
        copy.run(iter(lambda: source.read(_CHUNK), b""), file, status.st_size)


def _fetch_http(
    url: str, file: IO[bytes], copy: _Copy, allowed: AllowedUrls, credentials: AwsCredentials | None
) -> None:
    # Imported here: it costs a tenth of a second, and most servers never download anything.
    import httpx

    timeout = httpx.Timeout(copy.limits.read_timeout, connect=copy.limits.connect_timeout)
    # Stored as it is sent: a server that marks a .tar.gz as gzip-encoded must not have it decoded on the way.
    headers = {"User-Agent": f"relight/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
    try:
        with httpx.Client(timeout=timeout, headers=headers, follow_redirects=False) as client:
            first = here = httpx.URL(url)
            for _ in range(_MAX_REDIRECTS):
                signature: dict[str, str] = {}
                if credentials is not None and _origin(here) == _origin(first):
                    here = httpx.URL(canonical_url(str(here)))
                    signature = signed_headers(str(here), credentials, datetime.now(timezone.utc))
                with client.stream("GET", here, headers=signature) as response:
                    if response.status_code not in _REDIRECTS or "location" not in response.headers:
                        _receive(response, file, copy)
                        return
                    here = _redirected(here, response.headers["location"], allowed)
            raise _FetchError(f"more than {_MAX_REDIRECTS} redirects")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _FetchError(str(error) or type(error).__name__) from error


def _receive(response: httpx.Response, file: IO[bytes], copy: _Copy) -> None:
    if response.status_code != 200:
        raise _FetchError(f"the server answered {response.status_code} {response.reason_phrase}")
    length = response.headers.get("content-length", "")
    copy.run(response.iter_raw(_CHUNK), file, int(length) if length.isdecimal() else None)


def _redirected(here: httpx.URL, location: str, allowed: AllowedUrls) -> httpx.URL:
    there = here.join(location)
    shown = redacted(str(there))
    # The scheme by itself too: allowed_urls may well allow file urls, but not on a stranger's word.
    if there.scheme not in ("http", "https") or (here.scheme, there.scheme) == ("https", "http"):
        raise _FetchError(f"redirected to {shown}, which is not as safe")
    if ".." in str(there) or not allowed.allows(str(there)):
        raise _FetchError(f"redirected to {shown}, which does not match any allowed URL(s)")
    _log.info("Redirected to %s", shown)
    return there


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _Copy:
    """One download's bytes on their way to disk: counted, timed, and reported once a second."""

    def __init__(self, shown_url: str, limits: FetchLimits, stop: threading.Event | None) -> None:
        self.limits = limits
        self._url = shown_url
        self._stop = stop
        self._deadline = time.monotonic() + limits.total_timeout

    def run(self, chunks: Iterator[bytes], file: IO[bytes], size: int | None) -> None:
        """Write `chunks` to `file`; `size` is the announced total, None if unknown."""
        self._check(size or 0)
        done, reported = 0, time.monotonic()
        _log.info("Downloading %s (%s)", self._url, "unknown size" if size is None else f"{size} bytes")
        for chunk in chunks:
            done += len(chunk)
            self._check(done)
            file.write(chunk)
            if time.monotonic() - reported >= 1.0:
                reported = time.monotonic()
                _log.info("Downloading %s: %d bytes%s", self._url, done, f" ({100 * done // size} %)" if size else "")
        if size is not None and done != size:
            raise _FetchError(f"{done} of {size} bytes came")
        _log.info("Downloaded %s: %d bytes (100 %%)", self._url, done)

    def _check(self, size: int) -> None:
        if self.limits.max_archive_size and size > self.limits.max_archive_size:
            raise _FetchError(f"it is larger than {self.limits.max_archive_size} bytes")
        if time.monotonic() > self._deadline:
            raise _FetchError(f"it takes longer than {self.limits.total_timeout:g} s")
        if self._stop is not None and self._stop.is_set():
            raise _FetchError("the server is stopping")
