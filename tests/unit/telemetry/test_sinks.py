"""Writers of logs: in order, bounded, and never in anybody's way."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from relight.telemetry import sinks
from relight.telemetry.sinks import Sink

if TYPE_CHECKING:
    from pathlib import Path


def finish(sink: Sink) -> None:
    sink.close(timeout=20)
    assert not sink._thread.is_alive()


def test_lines_in_order(tmp_path: Path) -> None:
    sink = Sink.file(tmp_path / "deep" / "er" / "x.log")
    for number in range(1000):
        sink.write(f"{number} é\n")
    finish(sink)

    text = (tmp_path / "deep" / "er" / "x.log").read_text(encoding="utf-8")
    assert text == "".join(f"{number} é\n" for number in range(1000))


def test_a_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("before\n")
    sink = Sink.file(path)
    sink.write("after\n")
    finish(sink)

    assert path.read_text() == "before\nafter\n"


def test_text_that_is_no_unicode(tmp_path: Path) -> None:
    sink = Sink.file(tmp_path / "x.log")
    sink.write("\udcff\n")
    finish(sink)

    assert (tmp_path / "x.log").read_bytes() == b"\\udcff\n"


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Sink.file(tmp_path)


def test_descriptors(tmp_path: Path) -> None:
    own = Sink.file(tmp_path / "x.log")
    fd = own._fd
    assert not os.get_inheritable(fd)
    finish(own)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)

    reading, writing = os.pipe()
    borrowed = Sink(writing, "console", owned=False)
    borrowed.write("x\n")
    finish(borrowed)
    assert os.read(reading, 10) == b"x\n"
    os.fstat(writing)
    os.close(reading)
    os.close(writing)


def test_a_reader_that_stops_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_MAX_PENDING", 200_000)
    reading, writing = os.pipe()
    sink = Sink(writing, "console", owned=True)
    line = "x" * 99 + "\n"

    for _ in range(10_000):
        sink.write(line)  # a tenth fits into the pipe and the bound; a writer that waits would never come back
    assert sink._pending <= 200_000
    sink.close(timeout=0.01)
    assert sink._thread.is_alive()

    got = bytearray()
    with os.fdopen(reading, "rb") as reader:
        while data := reader.read(65536):
            got += data
    sink._thread.join(20)
    lines = got.decode().splitlines()
    kept = [each for each in lines if each == line[:-1]]
    notes = [each for each in lines if each != line[:-1]]
    assert 2000 <= len(kept) < 10_000
    assert sum(int(note.split()[0]) for note in notes) == 10_000 - len(kept)
    assert all(note.endswith(" log lines were left out: nobody read them in time") for note in notes)


def test_a_reader_that_is_gone_hurts_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = Sink(writing, "console", owned=True)
    for _ in range(100):
        sink.write("x\n")
    finish(sink)

    assert sink._pending == 0


def test_many_writers(tmp_path: Path) -> None:
    sink = Sink.file(tmp_path / "x.log")

    def write(name: str) -> None:
        for number in range(500):
            sink.write(f"{name} {number}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(sink)

    lines = (tmp_path / "x.log").read_text().splitlines()
    for name in "abc":
        assert [line for line in lines if line[0] == name] == [f"{name} {number}" for number in range(500)]
