"""Downloads: whole or not at all, within limits, and never where allowed_urls does not lead."""

from __future__ import annotations

import gzip
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from relight.archive import fetch as fetch_module
from relight.archive.fetch import FetchLimits, fetch
from relight.archive.urls import AllowedUrls
from relight.errors import DownloadArchiveError, InternalServerError

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    from tests.unit.archive.conftest import Web

BODY = os.urandom(300_000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def fails(url: str, store: Path, allowed: str = ".*", limits: FetchLimits | None = None) -> None:
    before = sorted(store.iterdir())
    with pytest.raises(DownloadArchiveError) as caught:
        fetch(url, store, AllowedUrls(allowed), limits=limits)
    assert caught.value.message == f"Failed to download archive from: {url}"
    assert caught.value.status == 400
    assert sorted(store.iterdir()) == before


def test_a_file_is_downloaded_under_its_name(web: Web, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "relight.archive")
    url = web.serve("/sub/a.mar?sig=secret", BODY)
    assert fetch(url, store, AllowedUrls()) == store / "a.mar"
    assert (store / "a.mar").read_bytes() == BODY
    assert list(store.iterdir()) == [store / "a.mar"]
    assert f"Downloaded {web.url('/sub/a.mar')}: {len(BODY)} bytes (100 %)" in caplog.text
    assert "secret" not in "".join(r.getMessage() for r in caplog.records if r.name == "relight.archive")


def test_a_file_without_announced_length_is_downloaded(web: Web, store: Path) -> None:
    assert fetch(web.serve("/a.mar", BODY, length=-1), store, AllowedUrls()).read_bytes() == BODY


def test_progress_is_logged_once_a_second_with_percent(
    web: Web, store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "relight.archive")
    monkeypatch.setattr(fetch_module, "_CHUNK", 100_000)
    clock = iter(x * 0.6 for x in range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    fetch(web.serve("/a.mar", BODY), store, AllowedUrls())
    assert f"Downloading {web.url('/a.mar')}: 100000 bytes (33 %)" in caplog.text


def test_compressed_transfer_is_stored_as_sent(web: Web, store: Path) -> None:
    data = gzip.compress(b"tar")
    url = web.serve("/a.tar.gz", data, Content_Encoding="gzip")
    assert fetch(url, store, AllowedUrls()).read_bytes() == data


def test_an_existing_file_stays(web: Web, store: Path) -> None:
    (store / "a.mar").write_text("mine")
    with pytest.raises(InternalServerError, match=r"^Model file already exists a\.mar$"):
        fetch(web.serve("/a.mar", BODY), store, AllowedUrls())
    assert (store / "a.mar").read_text() == "mine"
    assert web.seen == []


def test_a_file_that_appears_meanwhile_stays(web: Web, store: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        (store / "a.mar").write_text("mine")
        request.send_response(200)
        request.send_header("Content-Length", "1")
        request.end_headers()
        request.wfile.write(b"x")

    web.answers["/a.mar"] = answer
    with pytest.raises(InternalServerError, match="already exists"):
        fetch(web.url("/a.mar"), store, AllowedUrls())
    assert [path.read_text() for path in store.iterdir()] == ["mine"]


def test_without_hard_links_nothing_is_replaced_either(web: Web, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    url = web.serve("/a.mar", BODY)
    assert fetch(url, store, AllowedUrls()).read_bytes() == BODY
    with pytest.raises(InternalServerError, match="already exists"):
        fetch(url, store, AllowedUrls())
    assert list(store.iterdir()) == [store / "a.mar"]


def test_errors_of_the_server_fail(web: Web, store: Path) -> None:
    fails(web.url("/missing.mar"), store)
    fails(web.url("/"), store)


def test_an_unreachable_server_fails(store: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        fails(f"http://127.0.0.1:{unused.getsockname()[1]}/a.mar", store)


@pytest.mark.parametrize("url", ["http:///a.mar", "http://h:99999/a.mar", "http://[::1/a.mar", "http://\x7f/a.mar"])
def test_malformed_urls_fail(store: Path, url: str) -> None:
    fails(url, store)


def test_a_transfer_that_breaks_off_fails(web: Web, store: Path) -> None:
    fails(web.serve("/a.mar", BODY, length=len(BODY) + 1), store)


def test_what_is_too_large_fails_by_announcement_and_by_count(web: Web, store: Path) -> None:
    limits = FetchLimits(max_archive_size=len(BODY) - 1)
    fails(web.serve("/a.mar", BODY), store, limits=limits)
    fails(web.serve("/b.mar", BODY, length=-1), store, limits=limits)
    fetch(web.serve("/c.mar", BODY), store, AllowedUrls(), limits=FetchLimits(max_archive_size=len(BODY)))


def test_a_silent_server_fails_in_time(web: Web, store: Path) -> None:
    done = threading.Event()
    web.answers["/a.mar"] = lambda _: (done.wait(60), None)[1]
    try:
        fails(web.url("/a.mar"), store, limits=FetchLimits(read_timeout=0.05))
    finally:
        done.set()


def test_a_drip_feeding_server_fails_in_time(web: Web, store: Path) -> None:
    fails(web.serve("/a.mar", BODY), store, limits=FetchLimits(total_timeout=-1))


def test_a_stopping_server_stops_the_download(web: Web, store: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(DownloadArchiveError):
        fetch(web.serve("/a.mar", BODY), store, AllowedUrls(), stop=stop)
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_and_keep_the_name(web: Web, store: Path, status: int) -> None:
    web.serve("/real/b.mar", BODY)
    assert fetch(web.redirect("/a.mar", "/real/b.mar", status), store, AllowedUrls()) == store / "a.mar"


def test_redirects_to_disallowed_hosts_fail(web: Web, store: Path, caplog: pytest.LogCaptureFixture) -> None:
    web.serve("/b.mar", BODY)
    url = web.redirect("/a.mar", web.url("/b.mar?token=secret", "localhost"))
    fails(url, store, allowed="http://127\\.0\\.0\\.1.*")
    assert "which does not match any allowed URL(s)" in caplog.text
    assert "secret" not in caplog.text
    assert [path for path, _ in web.seen] == ["/a.mar"]


def test_every_hop_is_checked(web: Web, store: Path) -> None:
    web.serve("/c.mar", BODY)
    web.redirect("/ok/b.mar", "/c.mar")
    fails(web.redirect("/ok/a.mar", "/ok/b.mar"), store, allowed=web.url("/ok/.*"))


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://h/x", "gopher://h/x", "//", "http://[bad", ""])
def test_redirects_to_other_schemes_fail(web: Web, store: Path, location: str) -> None:
    fails(web.redirect("/a.mar", location), store)


@pytest.mark.parametrize("location", ["http://h/b.mar", "file:///h/b.mar"])
def test_redirects_never_become_less_safe(location: str) -> None:
    with pytest.raises(fetch_module._FetchError, match="not as safe"):
        fetch_module._redirected(httpx.URL("https://h/a.mar"), location, AllowedUrls())
    assert fetch_module._redirected(httpx.URL("http://h/a"), "https://h/b", AllowedUrls()) == "https://h/b"


def test_circles_end(web: Web, store: Path) -> None:
    fails(web.redirect("/a.mar", "/a.mar"), store)
    assert len(web.seen) == 20


def test_passwords_of_the_url_do_not_travel_to_other_hosts(web: Web, store: Path) -> None:
    web.serve("/b.mar", BODY)
    web.redirect("/a.mar", web.url("/b.mar", "localhost"))
    fetch(web.url("/a.mar", "user:pw@127.0.0.1"), store, AllowedUrls())
    assert "authorization" in web.seen[0][1]
    assert "authorization" not in web.seen[1][1]


def test_file_urls_are_copied(tmp_path: Path, store: Path) -> None:
    source = tmp_path / "my model.mar"
    source.write_bytes(BODY)
    assert fetch(f"file://{tmp_path}/my%20model.mar", store, AllowedUrls()).read_bytes() == BODY
    assert source.exists()


def test_file_urls_of_nothing_fail(tmp_path: Path, store: Path) -> None:
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for url in (f"file://{tmp_path}/missing.mar", f"file://{tmp_path}/dir", f"file://{tmp_path}/pipe"):
        fails(url, store)
    fails("file:///dev/zero", store)
    fails("file://other.host/a.mar", store)


def test_file_urls_are_limited_too(tmp_path: Path, store: Path) -> None:
    (tmp_path / "a.mar").write_bytes(BODY)
    fails(f"file://{tmp_path}/a.mar", store, limits=FetchLimits(max_archive_size=10))


def test_a_store_that_cannot_be_written_fails(web: Web, tmp_path: Path) -> None:
    url = web.serve("/a.mar", BODY)
    with pytest.raises(DownloadArchiveError):
        fetch(url, tmp_path / "missing", AllowedUrls())
