"""Unpacking, of honest archives and of hostile ones."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import threading
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.archive.unpack import UnpackLimits, unpack
from relight.errors import InternalServerError, InvalidModelError, RelightError

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


def make_zip(path: Path, entries: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refused(archive: Path, limits: UnpackLimits | None = None) -> None:
    """The archive is refused, and nothing of it is left, inside of the target or outside."""
    folder = archive.parent
    before = sorted(folder.rglob("*"))
    with pytest.raises(InternalServerError, match=r"^Failed to save model: the\.url$"):
        unpack(archive, folder / "target", url="the.url", limits=limits)
    assert sorted(folder.rglob("*")) == before


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    entries = {"h.py": b"1", "sub/deep/x": b"2", "MAR-INF/MANIFEST.json": b"{}", "empty": b""}
    unpack(make_zip(tmp_path / "a.mar", entries), tmp_path / "t", url="a.mar")
    assert tree(tmp_path / "t") == entries
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o700


def test_directory_entries_are_made(tmp_path: Path) -> None:
    unpack(make_zip(tmp_path / "a.mar", {"d/": b"", "d/x": b"1", "e/": b""}), tmp_path / "t", url="a.mar")
    assert (tmp_path / "t/e").is_dir()


def test_a_tar_loses_its_first_component(tmp_path: Path) -> None:
    archive = make_tar(
        tmp_path / "a.tar.gz",
        member("n", kind=tarfile.DIRTYPE),
        member("n/h.py", b"1"),
        member("n/sub", kind=tarfile.DIRTYPE),
        member("n/sub/x", b"2"),
        member("plain", b"3"),
        member("./dotted", b"4"),
    )
    unpack(archive, tmp_path / "t", url="a")
    assert tree(tmp_path / "t") == {"h.py": b"1", "sub/x": b"2", "plain": b"3", "dotted": b"4"}


def test_modes_are_not_restored(tmp_path: Path) -> None:
    info, content = member("n/x", b"1")
    info.mode = 0o4777
    unpack(make_tar(tmp_path / "a.tar.gz", (info, content)), tmp_path / "t", url="a")
    assert stat.S_IMODE((tmp_path / "t/x").stat().st_mode) & 0o7111 == 0


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    unpack(make_zip(tmp_path / "a.tar.gz", {"x": b"1"}), tmp_path / "t1", url="a")
    unpack(make_tar(tmp_path / "a.mar", member("n/x", b"1")), tmp_path / "t2", url="a")
    assert tree(tmp_path / "t1") == tree(tmp_path / "t2") == {"x": b"1"}


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x89HDF\r\n"])
def test_a_mar_that_is_no_archive_is_an_invalid_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mar").write_bytes(content)
    with pytest.raises(InvalidModelError, match=r"^Model name is not defined\.$"):
        unpack(tmp_path / "a.mar", tmp_path / "t", url="a.mar")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", b"\x1f\x8bgarbage", b"PK\x03\x04garbage", gzip.compress(b"no tar" * 200)],
    ids=["empty", "garbage", "gzip garbage", "zip garbage", "gzip of no tar"],
)
def test_anything_else_that_is_no_archive_cannot_be_saved(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    refused(tmp_path / "a.tar.gz")


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_truncated_archives_are_refused(tmp_path: Path, kind: str, cut: float) -> None:
    noise = os.urandom(100_000)
    path = tmp_path / "a"
    archive = make_zip(path, {"x": noise}) if kind == "zip" else make_tar(path, member("n/x", noise))
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * cut)])
    refused(archive)


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.mar", {"x": os.urandom(1000)})
    data = bytearray(archive.read_bytes())
    data[100] ^= 255
    archive.write_bytes(data)
    refused(archive)


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a/..", "./../evil", "sub/../../target2/x"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_entries_that_leave_are_refused(tmp_path: Path, kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "box").mkdir()
    path = tmp_path / "box/a"
    refused(
        make_zip(path, {"ok": b"1", name: b"2"})
        if kind == "zip"
        else make_tar(path, member("n/ok", b"1"), member(name, b"2"))
    )
    assert f"Detected Zip Slip vulnerability: {name}" in caplog.text
    assert sorted(tmp_path.iterdir()) == [tmp_path / "box"]


def test_traversal_that_begins_behind_the_first_component_is_refused(tmp_path: Path) -> None:
    refused(make_tar(tmp_path / "a", member("n/../evil", b"2")))


def test_links_that_stay_inside_are_made(tmp_path: Path) -> None:
    archive = make_tar(
        tmp_path / "a.tar.gz",
        member("n/snap/w.bin", kind=tarfile.SYMTYPE, link="../blobs/1"),
        member("n/blobs/1", b"weights"),
        member("n/hard", kind=tarfile.LNKTYPE, link="n/blobs/1"),
        member("n/dir", kind=tarfile.SYMTYPE, link="blobs"),
    )
    unpack(archive, tmp_path / "t", url="a")
    assert (tmp_path / "t/snap/w.bin").read_bytes() == b"weights"
    assert (tmp_path / "t/dir/1").read_bytes() == b"weights"
    assert (tmp_path / "t/hard").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "link", ["/etc/passwd", "../../etc/passwd", "..", "../target2", "missing", "self", "sub/../../x"]
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_links_that_leave_or_dangle_are_refused(tmp_path: Path, kind: str, link: str) -> None:
    (tmp_path / "x").write_text("outside")
    path = tmp_path / "a"
    if kind == "zip":
        refused(make_zip(path, {"self": link.encode()}, stat.S_IFLNK | 0o777))
    else:
        refused(make_tar(path, member("n/self", kind=tarfile.SYMTYPE, link=link)))


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    refused(make_tar(tmp_path / "a", member("n/d", kind=tarfile.SYMTYPE, link=str(outside)), member("n/d/x", b"evil")))
    refused(make_tar(tmp_path / "a", member("n/d", kind=tarfile.SYMTYPE, link="../outside"), member("n/d/x", b"evil")))
    assert list(outside.iterdir()) == []


def test_no_link_is_made_through_a_link(tmp_path: Path) -> None:
    refused(
        make_tar(
            tmp_path / "a",
            member("n/real/x", b"1"),
            member("n/d", kind=tarfile.SYMTYPE, link="real"),
            member("n/d/y", kind=tarfile.SYMTYPE, link="x"),
        )
    )


def test_a_chain_of_links_cannot_climb_out(tmp_path: Path) -> None:
    # Lexically a/b/up/.. stays inside; through the link it does not.
    refused(
        make_tar(
            tmp_path / "a",
            member("n/a/b/file", b"1"),
            member("n/up", kind=tarfile.SYMTYPE, link="."),
            member("n/out", kind=tarfile.SYMTYPE, link="up/../a"),
        )
    )


@pytest.mark.parametrize("link", ["../../etc/passwd", "/etc/passwd", "n/missing", "n/soft", "../real"])
def test_bad_hard_links_are_refused(tmp_path: Path, link: str) -> None:
    refused(
        make_tar(
            tmp_path / "a",
            member("n/real", b"1"),
            member("n/soft", kind=tarfile.SYMTYPE, link="real"),
            member("n/x", kind=tarfile.LNKTYPE, link=link),
        )
    )


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    refused(make_tar(tmp_path / "a", member("n/dev", kind=kind)))


def test_devices_in_a_zip_are_refused(tmp_path: Path) -> None:
    refused(make_zip(tmp_path / "a.mar", {"dev": b""}, stat.S_IFCHR | 0o666))


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_bombs_are_stopped(tmp_path: Path, kind: str) -> None:
    zeros = bytes(8 * MIB)
    path = tmp_path / "a"
    archive = make_zip(path, {"x": zeros}) if kind == "zip" else make_tar(path, member("n/x", zeros))
    refused(archive, UnpackLimits(max_bytes=4 * MIB))
    refused(archive, UnpackLimits(max_ratio=10, ratio_from=MIB))
    unpack(archive, tmp_path / "t", url="a", limits=UnpackLimits(max_ratio=10, ratio_from=8 * MIB))


def test_the_sizes_of_all_files_count_together(tmp_path: Path) -> None:
    refused(make_zip(tmp_path / "a.mar", {f"f{i}": bytes(1000) for i in range(10)}), UnpackLimits(max_bytes=9999))


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_too_many_entries_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    archive = (
        make_zip(path, {f"f{i}": b"" for i in range(11)})
        if kind == "zip"
        else make_tar(path, *(member(f"n/f{i}") for i in range(11)))
    )
    refused(archive, UnpackLimits(max_entries=10))


def test_a_zip_that_lies_about_its_sizes_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.mar", {"x": bytes(2 * MIB)})
    data = archive.read_bytes().replace(struct.pack("<L", 2 * MIB), struct.pack("<L", 10))
    archive.write_bytes(data)
    refused(archive)


def test_a_tar_header_cannot_fill_the_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 200 * MIB
    (tmp_path / "a").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(MIB)))
    refused(tmp_path / "a")
    assert "a tar header is too large" in caplog.text


def test_an_endless_chain_of_tar_headers_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 512
    (tmp_path / "a").write_bytes(gzip.compress((info.tobuf(tarfile.GNU_FORMAT) + bytes(512)) * 5000))
    refused(tmp_path / "a")


def test_a_file_cannot_be_a_directory_too(tmp_path: Path) -> None:
    refused(make_zip(tmp_path / "a.mar", {"x": b"1", "x/y": b"2"}))


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.mar", {"x": b"1"})
    data = bytearray(archive.read_bytes())
    data[6] |= 1  # flag bit 0, in the local header and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    refused(archive)


def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/mine").write_text("x")
    refused(make_zip(tmp_path / "a.mar", {"x": b"1"}))


def test_a_stopping_server_stops_unpacking(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(InternalServerError):
        unpack(make_zip(tmp_path / "a.mar", {"x": b"1"}), tmp_path / "t", url="a", stop=stop)
    assert not (tmp_path / "t").exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_archives_unpack_or_fail_cleanly(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    archive = folder / "a"
    if data.draw(st.booleans()):
        make_zip(archive, {"h.py": b"1" * 50, "sub/x": b"2"})
        content = bytearray(archive.read_bytes())
    else:
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for info, text in (
                member("n/h.py", b"1" * 50),
                member("n/" + "long" * 40, b"2"),
                member("n/s", kind=tarfile.SYMTYPE, link="h.py"),
            ):
                tar.addfile(info, io.BytesIO(text))
        content = bytearray(plain.getvalue())
    for position, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=8)
    ):
        content[position] = value
    archive.write_bytes(content if content[:2] == b"PK" else gzip.compress(bytes(content)))
    try:
        unpack(archive, folder / "t", url="a")
    except RelightError:
        assert sorted(folder.iterdir()) == [archive]
    else:
        real = folder / "t"
        assert all(path.resolve().is_relative_to(real.resolve()) for path in real.rglob("*"))


PATHS = st.lists(st.sampled_from(["n", "a", "b", "..", ".", "", "target", "target2"]), min_size=1, max_size=5).map(
    "/".join
)
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(PATHS, KINDS, PATHS), max_size=6))
def test_no_mix_of_entries_writes_or_leads_outside(tmp_path: Path, entries: list[tuple[str, bytes, str]]) -> None:
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    archive = make_tar(
        folder / "archive",
        *(member(name, b"x" if kind == tarfile.REGTYPE else b"", kind, link) for name, kind, link in entries),
    )
    target = folder / "target"
    try:
        unpack(archive, target, url="a")
    except RelightError:
        assert list(folder.iterdir()) == [archive]
    else:
        assert sorted(folder.iterdir()) == [archive, target]
        assert all(path.resolve(strict=True).is_relative_to(target.resolve()) for path in target.rglob("*"))
