"""From the url of a registration to an archive on disk, and away again."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relight.archive.fetch import FetchLimits
from relight.archive.store import ModelStore
from relight.archive.unpack import UnpackLimits
from relight.archive.urls import AllowedUrls
from relight.errors import (
    DownloadArchiveError,
    InternalServerError,
    InvalidModelError,
    ModelNotFoundError,
    RelightError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.archive.conftest import Web

MANIFEST = json.dumps({"model": {"modelName": "m", "handler": "h", "modelVersion": "1.5"}}).encode()


def mar(manifest: bytes | None = MANIFEST) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("h.py", "pass")
        if manifest is not None:
            archive.writestr("MAR-INF/MANIFEST.json", manifest)
    return buffer.getvalue()


class Place:
    """A model store and a work directory."""

    def __init__(self, base: Path) -> None:
        self.root = base / "store"
        self.work = base / "work"
        self.stores: list[ModelStore] = []
        self.root.mkdir()

    def store(self, **options: Any) -> ModelStore:
        self.stores.append(ModelStore(self.root, self.work, **options))
        return self.stores[-1]

    def add(self, name: str, content: bytes | None = None) -> None:
        (self.root / name).write_bytes(mar() if content is None else content)

    def add_directory(self, name: str, manifest: bytes = MANIFEST) -> Path:
        path = self.root / name
        (path / "MAR-INF").mkdir(parents=True)
        (path / "h.py").write_text("pass")
        (path / "MAR-INF/MANIFEST.json").write_bytes(manifest)
        return path

    def unpacked(self) -> list[Path]:
        return sorted((self.work / "models").glob("[!.]*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for store in found.stores:
        store.close()


def refused(place: Place, url: str, error: type[RelightError], message: str, **options: Any) -> None:
    """`url` is refused with this answer, and neither store nor work directory changes."""
    before = sorted(place.root.rglob("*"))
    with pytest.raises(error) as caught:
        place.store(**options).open(url)
    assert caught.value.message == message
    assert sorted(place.root.rglob("*")) == before
    assert place.unpacked() == []


def test_an_archive_is_unpacked_into_a_directory_of_its_own(place: Place) -> None:
    place.add("a.mar")
    store = place.store()
    first, second = store.open("a.mar"), store.open("a.mar")
    assert first.model_dir != second.model_dir
    assert first.model_dir.parent == place.work / "models"
    assert len(first.model_dir.name) == 32
    assert int(first.model_dir.name, 16)
    assert (first.model_dir / "h.py").read_text() == "pass"
    assert first.manifest is not None
    assert (first.manifest.model_name, first.manifest.model_version) == ("m", "1.5")
    assert (first.root, first.real_dir, first.linked) == (first.model_dir, first.model_dir.resolve(), False)
    assert (first.downloaded, first.extra_path, first.url) == (None, (first.real_dir,), "a.mar")


def test_a_discarded_archive_is_gone_and_the_file_stays(place: Place) -> None:
    place.add("a.mar")
    archive = place.store().open("a.mar")
    archive.discard(delete_download=True)
    archive.discard(delete_download=True)
    assert place.unpacked() == []
    assert (place.root / "a.mar").exists()


def test_a_tar_is_unpacked(place: Place) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("m/MAR-INF/MANIFEST.json")
        info.size = len(MANIFEST)
        tar.addfile(info, io.BytesIO(MANIFEST))
    place.add("a.tar.gz", buffer.getvalue())
    manifest = place.store().open("a.tar.gz").manifest
    assert manifest is not None
    assert manifest.model_version == "1.5"


def test_no_manifest_is_legal(place: Place) -> None:
    place.add("a.mar", mar(None))
    assert place.store().open("a.mar").manifest is None


@pytest.mark.parametrize("url", ["sub/a.mar", "/any/where/a.mar", "ftp://h/a.mar"])
def test_only_the_last_component_counts(place: Place, url: str) -> None:
    place.add("a.mar")
    assert place.store(allowed_urls=AllowedUrls(".*")).open(url).url == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty url"),
        ("../x.mar", "Relative path is not allowed in url: ../x.mar"),
        ("nothere.mar", "Model not found at: nothere.mar"),
        ("sub/no.mar", "Model not found at: sub/no.mar"),
        ("ftp://127.0.0.1:1/none.mar", "Model not found at: ftp://127.0.0.1:1/none.mar"),
        ("file:/x", "Model not found at: file:/x"),
        ("/", "Model not found at: /"),
        (".", "Model not found at: ."),
        ("a\0b", "Model not found at: a\0b"),
        ("\ud800", "Model not found at: \ud800"),
        ("x" * 5000, "Model not found at: " + "x" * 5000),
        ("/etc", "Model not found at: /etc"),
    ],
)
def test_what_is_not_there_is_not_found(place: Place, url: str, message: str) -> None:
    refused(place, url, ModelNotFoundError, message)


def test_without_a_store_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"^Model store has not been configured\.$"):
        ModelStore(None, tmp_path).open("")
    assert ModelStore(None, tmp_path).list_all() == []


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("garb.mar", b"garbage", InvalidModelError, "Model name is not defined."),
        ("empty.mar", b"", InvalidModelError, "Model name is not defined."),
        ("badman.mar", mar(b"no json"), InvalidModelError, "Failed to parse signature.json."),
        ("rt.mar", mar(b'{"runtime": "weird"}'), InvalidModelError, "Runtime is not defined or invalid."),
        ("garb.tar.gz", b"garbage", InternalServerError, "Failed to save model: garb.tar.gz"),
    ],
)
def test_bad_archives_leave_nothing(
    place: Place, name: str, content: bytes, error: type[RelightError], message: str
) -> None:
    place.add(name, content)
    refused(place, name, error, message)


def test_limits_reach_the_unpacking(place: Place) -> None:
    place.add("a.mar")
    limits = UnpackLimits(max_entries=1)
    refused(place, "a.mar", InternalServerError, "Failed to save model: a.mar", unpack_limits=limits)


def test_a_directory_of_the_store_is_used_in_place(place: Place) -> None:
    real = place.add_directory("dirm")
    for url in ("dirm", "dirm/", str(real)):
        archive = place.store().open(url)
        assert archive.linked
        assert archive.model_dir == archive.root / "dirm"
        assert archive.model_dir.is_symlink()
        assert archive.real_dir == real.resolve()
        assert archive.extra_path == (archive.real_dir, archive.root)
        assert archive.manifest is not None
        archive.discard(delete_download=True)
    assert place.unpacked() == []
    assert (real / "h.py").exists()


def test_a_lone_directory_inside_stands_for_the_model(place: Place) -> None:
    inner = place.add_directory("outer/inner")
    archive = place.store().open("outer")
    assert archive.real_dir == inner.resolve()
    assert archive.model_dir.name == "inner"


def test_a_directory_with_nothing_but_a_manifest_is_a_model(place: Place) -> None:
    (place.add_directory("m") / "h.py").unlink()
    assert place.store().open("m").manifest is not None


def test_a_bad_directory_leaves_no_link(place: Place) -> None:
    place.add_directory("m", b"no json")
    refused(place, "m", InvalidModelError, "Failed to parse signature.json.")


def test_clients_reach_no_directory_outside_of_the_store(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "opt/model"
    (outside / "sub").mkdir(parents=True)
    (outside / "h.py").write_text("pass")
    refused(place, str(outside), ModelNotFoundError, f"Model not found at: {outside}")
    refused(place, str(place.root), ModelNotFoundError, f"Model not found at: {place.root}")
    archive = place.store().open(str(outside), trusted=True)
    assert (archive.real_dir, archive.linked, archive.manifest) == (outside.resolve(), True, None)


def test_relative_directories_are_the_operators(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rel/deep").mkdir(parents=True)
    (tmp_path / "rel/h.py").write_text("pass")
    monkeypatch.chdir(tmp_path)
    refused(place, "rel", ModelNotFoundError, "Model not found at: rel")
    assert place.store().open("rel", trusted=True).real_dir == (tmp_path / "rel").resolve()


def test_a_relative_store_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path)
    place.add("a.mar")
    store = ModelStore(Path("store"), Path("work"))
    monkeypatch.chdir("/")
    assert store.open("a.mar").model_dir.is_relative_to(tmp_path)
    store.close()


def test_the_operators_own_links_are_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/h.py").write_text("pass")
    (place.root / "m").symlink_to(tmp_path / "data")
    for url in ("m", str(place.root / "m")):
        assert place.store().open(url).real_dir == (tmp_path / "data").resolve()


def test_urls_are_downloaded_unpacked_and_discarded(place: Place, web: Web) -> None:
    url = web.serve("/sub/a.mar?x=1", mar())
    store = place.store()
    archive = store.open(url)
    assert archive.downloaded == place.root / "a.mar"
    with pytest.raises(InternalServerError, match=r"^Model file already exists a\.mar$"):
        store.open(url)
    assert archive.model_dir.exists()
    archive.discard(delete_download=False)
    assert (place.root / "a.mar").exists()
    archive.discard(delete_download=True)
    assert list(place.root.iterdir()) == []
    assert store.open(url).manifest is not None


def test_a_downloaded_archive_that_is_bad_is_removed(place: Place, web: Web) -> None:
    refused(place, web.serve("/a.mar", b"garbage"), InvalidModelError, "Model name is not defined.")
    url = web.serve("/a.tar.gz", b"garbage")
    refused(place, url, InternalServerError, f"Failed to save model: {url}")
    refused(place, web.serve("/b.mar", mar(b"no")), InvalidModelError, "Failed to parse signature.json.")


def test_failed_downloads_leave_nothing(place: Place, web: Web) -> None:
    url = web.url("/none.mar")
    refused(place, url, DownloadArchiveError, f"Failed to download archive from: {url}")
    url = web.serve("/big.mar", mar())
    message = f"Failed to download archive from: {url}"
    refused(place, url, DownloadArchiveError, message, fetch_limits=FetchLimits(max_archive_size=1))


def test_disallowed_urls_are_not_fetched(place: Place, web: Web) -> None:
    url = web.serve("/a.mar", mar())
    message = f"Given URL {url} does not match any allowed URL(s)"
    refused(place, url, ModelNotFoundError, message, allowed_urls=AllowedUrls("https://.*"))
    assert web.seen == []


def test_allowing_everything_leaves_names_alone(place: Place) -> None:
    place.add("a.mar")
    assert place.store(allowed_urls=AllowedUrls(".*")).open("a.mar").downloaded is None


def test_a_closed_store_opens_no_archive(place: Place, web: Web) -> None:
    place.add("a.mar")
    store = place.store()
    store.close()
    for url in ("a.mar", web.serve("/b.mar", mar())):
        with pytest.raises(InternalServerError, match=r"^Failed to save model: "):
            store.open(url)
    assert web.seen == []
    assert not place.work.exists()


def test_a_new_server_deletes_what_a_killed_one_left(place: Place) -> None:
    place.add("a.mar")
    running, killed = place.store(), place.store()
    kept, left = running.open("a.mar"), killed.open("a.mar")
    killed.close()
    place.store().clean_stale()
    assert kept.root.exists()
    assert not left.root.exists()
    kept.discard(delete_download=False)
    running.close()
    assert list((place.work / "models").iterdir()) == []


def test_an_unusable_work_directory_is_an_error(place: Place) -> None:
    place.add("a.mar")
    place.work.write_text("a file")
    with pytest.raises(InternalServerError, match=r"^Failed to save model: a\.mar$"):
        place.store().open("a.mar")


def test_all_means_archives_and_directories_sorted(place: Place) -> None:
    for name in ("b.mar", "a.tar.gz", "c.model", "d.zip", ".hidden.mar", "readme.txt"):
        place.add(name)
    place.add_directory("dirm")
    place.add_directory(".git")
    assert place.store().list_all() == ["a.tar.gz", "b.mar", "c.model", "dirm"]


def test_files_named_by_the_manifest_stay_inside(place: Place) -> None:
    place.add("a.mar")
    archive = place.store().open("a.mar")
    assert archive.path_of("conf/c.yaml") == archive.real_dir / "conf/c.yaml"
    for name in ("/etc/passwd", "../x", "a/../../x", "\0"):
        with pytest.raises(InvalidModelError):
            archive.path_of(name)


def test_nobody_else_may_read_the_unpacked_model(place: Place) -> None:
    place.add("a.mar")
    place.add_directory("dirm")
    for url in ("a.mar", "dirm"):
        assert place.store().open(url).root.stat().st_mode & 0o077 == 0
