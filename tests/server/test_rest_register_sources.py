"""Where a registered archive comes from, and what is left when it fails (rest_api.md §4.2, rows 12 to 27)."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.archives import contents, write_folder
from tests.support.expect import assert_error, assert_status
from tests.support.server import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import ServerFactory
    from tests.support.server import Server

NO_WORKERS = (
    'Model "{}" Version: {} registered with 0 initial workers. Use scale workers API to add workers for the model.'
)
NAMELESS = "Model name is not defined."


class FileServer:
    """Serves archives over HTTP: `/files/<name>`, and `/moved/<name>?<url>` leads to the url.

    Args:
        folder: Where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                path, _, query = self.path.partition("?")
                file = folder / path.rpartition("/")[2]
                if path.startswith("/moved/"):
                    self.send_response(302)
                    self.send_header("Location", query)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif path.startswith("/files/") and file.is_file():
                    self._send(200, file.read_bytes())
                else:
                    self._send(404, b"")

            def _send(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, archives: list[Path]) -> Iterator[FileServer]:
    """Serves `webnoop.mar` and copies of the common archives, under names that are not in the model store."""
    folder = tmp_path_factory.mktemp("web")
    by_name = {archive.name: archive for archive in archives}
    for name, source in (("webnoop", "noop"), ("webgarb", "garb"), ("webslip", "slip"), ("webbadve", "badve")):
        (folder / f"{name}.mar").write_bytes(by_name[f"{source}.mar"].read_bytes())
    server = FileServer(folder)
    yield server
    server.close()


@pytest.fixture(scope="module")
def picky(make_server: ServerFactory, files: FileServer) -> Server:
    """A server that loads from `/files/` of that file server only, and from its `/moved/`."""
    pattern = files.url.replace(".", "[.]")
    return make_server({"allowed_urls": f"{pattern}/files/.*,{pattern}/moved/.*"})


def unpacked(server: Server) -> set[Path]:
    """Return everything that lies in the temporary folder, and in the server's own, where an archive might lead."""
    return {*server.temp.rglob("*"), *server.root.glob("*")}


def store(server: Server) -> set[str]:
    return {path.name for path in server.store.iterdir()}


@contextlib.contextmanager
def nothing_left(server: Server) -> Iterator[None]:
    """Check that the block leaves the model store as it was, and nothing unpacked."""
    names, files = store(server), unpacked(server)
    yield
    assert store(server) == names
    assert unpacked(server) - files == set()


# Names


def test_row_012_empty_url(server: Server) -> None:
    assert_error(server.register(""), 404, "ModelNotFoundException", "empty url", 80)


def test_row_013_not_in_the_store(server: Server) -> None:
    response = server.register("nothere.mar")
    assert_error(response, 404, "ModelNotFoundException", "Model not found at: nothere.mar", 102)


@pytest.mark.parametrize(
    "url", ["../x.mar", "x..mar", "a/../noop.mar", "/etc/../x.mar", "file:///tmp/../x.mar", "http://127.0.0.1:1/../x"]
)
def test_row_014_relative_path(server: Server, url: str) -> None:
    length = 116 - len("../x.mar") + len(url)
    message = f"Relative path is not allowed in url: {url}"
    assert_error(server.register(url), 404, "ModelNotFoundException", message, length)


def test_row_018_other_scheme(server: Server) -> None:
    url = "ftp://127.0.0.1:1/none.mar"
    assert_error(server.register(url), 404, "ModelNotFoundException", f"Model not found at: {url}", 117)


def test_row_027_subfolders_of_the_store_are_not_searched(server: Server) -> None:
    response = server.register("sub/subnoop.mar")
    assert_error(response, 404, "ModelNotFoundException", "Model not found at: sub/subnoop.mar", 106)


def test_folders_before_the_name_are_dropped(server: Server) -> None:
    with server.registered("/any/folder/noop.mar", "anywhere"):
        assert server.describe("anywhere")["modelUrl"] == "/any/folder/noop.mar"


# Formats


def test_row_025_directory(server: Server) -> None:
    try:
        assert_status(server.register("dirm"), 200, NO_WORKERS.format("dirm", "1.5"), 133)
        assert server.describe("dirm")["modelUrl"] == "dirm"
    finally:
        server.unregister("dirm")
    assert (server.store / "dirm" / "noop.py").exists()


def test_directory_that_holds_one_directory(server: Server) -> None:
    write_folder(server.store / "outer" / "inner", contents("inner", "noop", "2"))
    try:
        assert_status(server.register("outer"), 200, NO_WORKERS.format("inner", "2"))
    finally:
        server.unregister("inner")


def test_directory_serves(server: Server) -> None:
    with server.registered("dirm", "dirserve", initial_workers=1):
        assert server.inference.request("POST", "/predictions/dirserve", (), b"x").body == b"ok"
    assert (server.store / "dirm" / "noop.py").exists()


def test_row_026_tar(server: Server) -> None:
    try:
        assert_status(server.register("tgzm.tar.gz"), 200, NO_WORKERS.format("tgzm", "1.6"), 133)
        assert server.management.request("PUT", "/models/tgzm?synchronous=true").status == 200
        assert server.inference.request("POST", "/predictions/tgzm", (), b"x").body == b"ok"
    finally:
        server.unregister("tgzm")


@pytest.mark.parametrize("url", ["empty.mar", "noman.mar", "nameless.mar"])
def test_row_021_no_name(server: Server, url: str) -> None:
    assert_error(server.register(url), 400, "InvalidModelException", NAMELESS, 96)


def test_row_021_no_zip_file(server: Server) -> None:
    response = server.register("garb.mar")
    message = response.json()["message"]
    assert_error(response, 400, "InvalidModelException", message)
    assert message == NAMELESS or not is_reference()


@pytest.mark.fix
@pytest.mark.parametrize("url", ["garb.mar", "empty.mar"])
def test_no_zip_file_under_a_given_name(server: Server, url: str) -> None:
    with nothing_left(server):
        response = server.register(url, model_name="named", handler="noop.py")
        assert (response.status, response.json()["type"]) == (400, "InvalidModelException")
        assert server.management.get("/models/named").status == 404


def test_no_manifest_under_a_given_name(server: Server) -> None:
    with server.registered("noman.mar", "manless", handler="noop.py", initial_workers=1):
        assert server.describe("manless")["modelVersion"] == "1.0"
        assert server.inference.request("POST", "/predictions/manless", (), b"x").body == b"ok"


def test_manifest_without_name_or_version(server: Server) -> None:
    with server.registered("nameless.mar", "given"):
        assert server.describe("given")["modelName"] == "given"
    with server.registered("versionless.mar", "vless"):
        assert server.describe("vless")["modelVersion"] == "1.0"


def test_row_022_manifest_is_no_json(server: Server) -> None:
    assert_error(server.register("badman.mar"), 400, "InvalidModelException", "Failed to parse signature.json.", 101)


def test_row_023_unknown_runtime_in_the_manifest(server: Server) -> None:
    message = "Runtime is not defined or invalid."
    assert_error(server.register("weird.mar"), 400, "InvalidModelException", message, 104)


def test_row_024_no_gzip_file(server: Server) -> None:
    message = "Failed to save model: garb.tar.gz"
    assert_error(server.register("garb.tar.gz"), 500, "InternalServerException", message, 105)


def test_entry_that_leads_out(server: Server) -> None:
    response = server.register("slip.mar")
    assert_error(response, 500, "InternalServerException", "Failed to save model: slip.mar")
    assert not list(server.root.rglob("slipped.txt"))


@pytest.mark.fix
@pytest.mark.parametrize(
    "url", ["garb.mar", "empty.mar", "noman.mar", "badman.mar", "weird.mar", "garb.tar.gz", "half.tar.gz", "slip.mar"]
)
def test_a_bad_archive_leaves_nothing_behind(server: Server, url: str) -> None:
    with nothing_left(server):
        assert server.register(url).status in {400, 500}


@pytest.mark.fix
def test_a_conflict_leaves_nothing_behind(server: Server) -> None:
    with server.registered("noop.mar", "conflict"), nothing_left(server):
        assert server.register("noop.mar", model_name="conflict").status == 409


@pytest.mark.fix
def test_unregistering_leaves_nothing_behind(server: Server) -> None:
    with nothing_left(server), server.registered("noop.mar", "cleaned", initial_workers=1):
        assert unpacked(server)


@pytest.mark.fix
def test_directory_outside_of_the_store(server: Server, tmp_path: Path) -> None:
    write_folder(tmp_path / "outside", contents("outside", "noop"))
    url = str(tmp_path / "outside")
    assert_error(server.register(url), 404, "ModelNotFoundException", f"Model not found at: {url}")


# Downloads


def test_row_017_nobody_listens(server: Server) -> None:
    url = "http://127.0.0.1:1/none.mar"
    message = f"Failed to download archive from: {url}"
    assert_error(server.register(url), 400, "DownloadArchiveException", message, 133)


def test_download_of_what_is_not_there(server: Server, files: FileServer, tmp_path: Path) -> None:
    for url in (f"{files.url}/files/none.mar", f"file://{tmp_path}/none.mar"):
        message = f"Failed to download archive from: {url}"
        assert_error(server.register(url), 400, "DownloadArchiveException", message)
        assert "none.mar" not in store(server)


@pytest.mark.parametrize("suffix", ["", "?x=1"])
def test_download(server: Server, files: FileServer, suffix: str) -> None:
    url = f"{files.url}/files/webnoop.mar{suffix}"
    with server.registered(url, "web", initial_workers=1):
        assert server.describe("web")["modelUrl"] == url
        assert "webnoop.mar" in store(server)
        assert server.inference.request("POST", "/predictions/web", (), b"x").body == b"ok"
    assert "webnoop.mar" not in store(server)


def test_file_url(server: Server, tmp_path: Path, archives: list[Path]) -> None:
    (noop,) = (archive for archive in archives if archive.name == "noop.mar")
    (tmp_path / "filenoop.mar").write_bytes(noop.read_bytes())
    with server.registered(f"file://{tmp_path}/filenoop.mar", "fromfile"):
        assert "filenoop.mar" in store(server)
    assert "filenoop.mar" not in store(server)
    assert (tmp_path / "filenoop.mar").exists()


def test_local_archives_are_kept(server: Server) -> None:
    with server.registered("noop.mar", "local"):
        pass
    assert "noop.mar" in store(server)


def test_redirects_are_followed(server: Server, files: FileServer) -> None:
    url = f"{files.url}/moved/webnoop.mar?{files.url}/files/webnoop.mar"
    with server.registered(url, "moved"):
        assert server.describe("moved")["modelUrl"] == url
    assert "webnoop.mar" not in store(server)


def test_row_019_url_not_allowed(picky: Server) -> None:
    url = "http://localhost:18090/webnoop.mar"
    message = f"Given URL {url} does not match any allowed URL(s)"
    assert_error(picky.register(url), 404, "ModelNotFoundException", message, 149)


@pytest.mark.parametrize("url", ["file:///tmp/webnoop.mar", "HTTP://127.0.0.1/webnoop.mar", "https://127.0.0.1/x.mar"])
def test_other_urls_not_allowed(picky: Server, url: str) -> None:
    message = f"Given URL {url} does not match any allowed URL(s)"
    assert_error(picky.register(url), 404, "ModelNotFoundException", message)


def test_row_020_file_exists(picky: Server, files: FileServer) -> None:
    url = f"{files.url}/files/webnoop.mar"
    with picky.registered(url, "first"):
        response = picky.register(url, model_name="second")
        message = "Model file already exists webnoop.mar"
        assert_error(response, 500, "InternalServerException", message, 109)
        assert "webnoop.mar" in store(picky)


@pytest.mark.fix
def test_each_redirect_is_checked(picky: Server, files: FileServer) -> None:
    target = f"{files.url}/elsewhere/webnoop.mar"
    with nothing_left(picky):
        response = picky.register(f"{files.url}/moved/webnoop.mar?{target}")
        assert response.status in {400, 404}
        assert response.json()["type"] in {"ModelNotFoundException", "DownloadArchiveException"}
    assert "/elsewhere/webnoop.mar" not in files.requests


@pytest.mark.fix
def test_redirect_without_end(picky: Server, files: FileServer) -> None:
    loop = f"{files.url}/moved/loop.mar?/moved/loop.mar"
    with nothing_left(picky):
        response = picky.register(loop)
        assert (response.status, response.json()["type"]) == (400, "DownloadArchiveException")


@pytest.mark.fix
@pytest.mark.parametrize(("name", "status"), [("webgarb.mar", 400), ("webslip.mar", 500), ("webbadve.mar", 500)])
def test_a_failed_registration_removes_the_download(picky: Server, files: FileServer, name: str, status: int) -> None:
    url = f"{files.url}/files/{name}"
    with nothing_left(picky):
        answers = [picky.register(url, initial_workers=1) for _ in range(2)]
    assert [answer.status for answer in answers] == [status] * 2
    assert answers[0].body == answers[1].body


@pytest.mark.fix
def test_a_conflict_removes_the_download(picky: Server, files: FileServer) -> None:
    with picky.registered("noop.mar", "taken"), nothing_left(picky):
        for _ in range(2):
            assert picky.register(f"{files.url}/files/webnoop.mar", model_name="taken").status == 409
