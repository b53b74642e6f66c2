from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from relight.client import KeyFile, Keys, from_key_file
from relight.client.keys import current

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, **keys: str) -> Path:
    """Replace the file as a whole, as the server does."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({name: {"key": key, "expiration time": "2026"} for name, key in keys.items()}))
    return new.replace(path)


def test_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "key_file.json", management="m", inference="i", API="a")
    assert from_key_file(path) == from_key_file(str(path)) == Keys(inference="i", management="m", api="a")


def test_new_keys_are_seen(tmp_path: Path) -> None:
    file = KeyFile(write(tmp_path / "key_file.json", management="m", inference="i", API="a"))
    assert (file.inference(), file.management()) == ("i", "m")
    write(file.path, management="m2", inference="i2", API="a")
    assert (file.inference(), file.management()) == ("i2", "m2")


def test_the_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = KeyFile(write(tmp_path / "key_file.json", management="m", inference="i", API="a"))
    first = file.keys()
    monkeypatch.setattr("relight.client.keys._read", None)
    assert file.keys() is first


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"inference": {"key": "x"}}', '{"inference": "x"}'])
def test_what_is_no_key_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key_file.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="not a key file"):
        from_key_file(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        from_key_file(tmp_path / "key_file.json")


def test_sources() -> None:
    assert (current(None), current("a"), current(lambda: "b"), current(lambda: None)) == (None, "a", "b", None)
