"""What a killed server left is deleted; nothing else is."""

from __future__ import annotations

import fcntl
import os
import uuid
from typing import TYPE_CHECKING

import pytest

from relight.archive.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path


def make(ledger: Ledger, folder: Path) -> Path:
    directory = folder / uuid.uuid4().hex
    ledger.record(directory)
    directory.mkdir()
    (directory / "file").write_text("x")
    return directory


def kill(ledger: Ledger) -> None:
    """What remains of a process that was killed: its files, without the lock."""
    assert ledger._file is not None
    ledger._file.close()


def test_the_directories_of_a_killed_server_are_deleted(tmp_path: Path) -> None:
    old = Ledger(tmp_path)
    left = [make(old, tmp_path), make(old, tmp_path)]
    assert Ledger(tmp_path).clean() == []
    kill(old)
    assert sorted(Ledger(tmp_path).clean()) == sorted(left)
    assert list(tmp_path.iterdir()) == []


def test_a_linked_model_survives(tmp_path: Path) -> None:
    model = tmp_path / "mine"
    model.mkdir()
    folder = tmp_path / "work"
    folder.mkdir()
    old = Ledger(folder)
    (make(old, folder) / "link").symlink_to(model)
    kill(old)
    Ledger(folder).clean()
    assert model.exists()
    assert list(folder.iterdir()) == []


def test_what_no_ledger_lists_is_never_touched(tmp_path: Path) -> None:
    other = tmp_path / uuid.uuid4().hex
    other.mkdir()
    old = Ledger(tmp_path)
    make(old, tmp_path)
    kill(old)
    assert len(Ledger(tmp_path).clean()) == 1
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("line", ["../mine", "/etc", ".", "mine", "a" * 31])
def test_a_ledger_names_nothing_but_directories_of_ours(tmp_path: Path, line: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine").mkdir()
    (tmp_path / "work/.owner-x").write_text(line)
    assert Ledger(tmp_path / "work").clean() == []
    assert (tmp_path / "mine").exists()
    assert (tmp_path / "work/mine").exists()


def test_a_link_is_no_ledger(tmp_path: Path) -> None:
    directory = tmp_path / uuid.uuid4().hex
    directory.mkdir()
    (tmp_path / "list").write_text(directory.name)
    (tmp_path / ".owner-x").symlink_to(tmp_path / "list")
    assert Ledger(tmp_path).clean() == []
    assert directory.exists()


def test_a_missing_folder_is_clean(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "no").clean() == []


def test_an_orderly_end_leaves_no_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    directory = make(ledger, tmp_path)
    (directory / "file").unlink()
    directory.rmdir()
    ledger.close()
    ledger.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_at_an_orderly_end_is_left_to_the_next(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    directory = make(ledger, tmp_path)
    ledger.close()
    assert Ledger(tmp_path).clean() == [directory]


def test_a_long_life_does_not_make_a_long_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    kept = make(ledger, tmp_path)
    for _ in range(5000):
        ledger.record(tmp_path / uuid.uuid4().hex)
    assert next(tmp_path.glob(".owner-*")).stat().st_size < 1001 * 33
    kill(ledger)
    assert Ledger(tmp_path).clean() == [kept]


def test_the_lock_is_held_while_the_process_lives(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    make(ledger, tmp_path)
    descriptor = os.open(next(tmp_path.glob(".owner-*")), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    ledger.close()
