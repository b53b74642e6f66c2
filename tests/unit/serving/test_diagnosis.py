"""Why a worker died: texts for the log, members for describe; what it had printed."""

from __future__ import annotations

import logging
import os
import signal
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from tests.unit.serving.support import on_loop, until, within

from relight.serving import diagnosis as diagnosis_module
from relight.serving.diagnosis import Diagnosis, oom_kills
from relight.serving.launchers.base import ExitStatus
from relight.serving.output import WorkerOutput, attach

if TYPE_CHECKING:
    from pathlib import Path

TIME = datetime(2026, 11, 20, 4, 57, 45, 507_999, tzinfo=timezone.utc)
KILLED = ExitStatus(None, signal.SIGKILL)


@pytest.mark.parametrize(
    ("status", "expected", "text", "killed"),
    [
        (0, ExitStatus(0, None), "exit code 0", False),
        (3 << 8, ExitStatus(3, None), "exit code 3", False),
        (137 << 8, ExitStatus(137, None), "exit code 137", True),
        (9, KILLED, "signal 9 (SIGKILL)", True),
        (11, ExitStatus(None, 11), "signal 11 (SIGSEGV)", False),
        (0x80 | 6, ExitStatus(None, 6), "signal 6 (SIGABRT)", False),
        (35, ExitStatus(None, 35), "signal 35", False),
    ],
)
def test_exit_status(status: int, expected: ExitStatus, text: str, killed: bool) -> None:
    made = ExitStatus.from_wait(status)

    assert made == expected
    assert (str(made), made.killed) == (text, killed)


@pytest.mark.parametrize(
    ("made", "exhausted"),
    [
        (Diagnosis("handle", "", exit=KILLED), True),
        (Diagnosis("handle", "", exit=ExitStatus(137, None)), True),
        (Diagnosis("handle", "", exit=KILLED, own_doing=True), False),
        (Diagnosis("handle", "", exit=ExitStatus(1, None)), False),
        (Diagnosis("initialize", "", exit=ExitStatus(1, None), out_of_memory=True), True),
        (Diagnosis("start", ""), False),
    ],
)
def test_exhausted(made: Diagnosis, exhausted: bool) -> None:
    assert made.exhausted is exhausted


def test_a_full_diagnosis() -> None:
    made = Diagnosis(
        "handle",
        "ValueError: no",
        exit=KILLED,
        out_of_memory=True,
        exception="ValueError: no",
        traceback="Traceback\n  x\nValueError: no\n",
        output=["one", "two"],
        lost=["id-1", "id-2"],
        time=TIME,
    )

    assert list(made.as_json().items()) == [
        ("time", "2026-11-20T04:57:45.507Z"),
        ("phase", "handle"),
        ("cause", "ValueError: no"),
        ("signal", 9),
        ("outOfMemory", True),
        ("exception", "ValueError: no"),
        ("traceback", "Traceback\n  x\nValueError: no\n"),
        ("output", ["one", "two"]),
        ("lostRequests", ["id-1", "id-2"]),
    ]
    assert str(made) == (
        "phase: handle; cause: ValueError: no; ended by signal 9 (SIGKILL); out of memory\n"
        "requests lost: id-1, id-2\n"
        "traceback of the handler:\nTraceback\n  x\nValueError: no\n"
        "last lines of the worker:\none\ntwo"
    )


def test_a_diagnosis_leaves_out_what_is_unknown() -> None:
    made = Diagnosis("start", "no memory", time=TIME)

    assert made.as_json() == {
        "time": "2026-11-20T04:57:45.507Z",
        "phase": "start",
        "cause": "no memory",
        "outOfMemory": False,
        "output": [],
        "lostRequests": [],
    }
    assert str(made) == "phase: start; cause: no memory\nrequests lost: none"


def test_an_exit_code_of_zero_is_told() -> None:
    assert Diagnosis("idle", "ended", exit=ExitStatus(0, None)).as_json()["exitCode"] == 0


@pytest.mark.parametrize(
    ("events", "vmstat", "count"),
    [
        ("low 0\noom 4\noom_kill 3\n", "oom_kill 99\n", 3),
        ("low 0\n", "pgfree 1\noom_kill 7\n", 7),
        (None, "oom_kill 5\n", 5),
        (None, None, 0),
    ],
)
def test_the_kernels_kills(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events: str | None, vmstat: str | None, count: int
) -> None:
    for name, text in (("_EVENTS", events), ("_VMSTAT", vmstat)):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(diagnosis_module, name, path)

    assert oom_kills() == count


def output(caplog: pytest.LogCaptureFixture, *pieces: bytes) -> tuple[list[str], list[str]]:
    """What a worker's output becomes: the records, and the lines kept."""
    caplog.set_level(logging.INFO)
    lines = WorkerOutput.new_last_lines()
    reader = WorkerOutput("W-9000-m_1.0-stdout", logging.INFO, lines)
    for piece in pieces:
        reader.data_received(piece)
    reader.connection_lost(None)
    assert reader.closed.done()
    return [f"{record.name} {record.message}" for record in caplog.records], list(lines)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"n", b"e\nt", b"wo\n"], ["one", "two"]),
        ([b"no end"], ["no end"]),
        ([b"\n\n"], ["", ""]),
        ([b"dos\r\n"], ["dos"]),
        ([b"caf\xc3", b"\xa9\n\xff\n"], ["café", "\ufffd"]),
        ([], []),
    ],
)
def test_output_is_cut_into_lines(caplog: pytest.LogCaptureFixture, pieces: list[bytes], expected: list[str]) -> None:
    @on_loop
    async def read() -> None:
        assert output(caplog, *pieces) == ([f"MODEL_LOG {line}" for line in expected], expected)

    read()


def test_a_line_without_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    @on_loop
    async def read() -> None:
        _, lines = output(caplog, *[b"x" * 8192] * 20, b"\n")
        assert "".join(lines) == "x" * 8192 * 20
        assert max(map(len, lines)) <= 64 * 1024 + 8192

    read()


def test_only_the_last_lines_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    @on_loop
    async def read() -> None:
        records, lines = output(caplog, b"".join(b"%d\n" % number for number in range(1000)))
        assert len(records) == 1000
        assert lines == [str(number) for number in range(960, 1000)]

    read()


def test_metrics_are_no_output(caplog: pytest.LogCaptureFixture) -> None:
    @on_loop
    async def read() -> None:
        records, lines = output(caplog, b"[METRICS]PredictionTime.ms:0.07|#Level:Model\nline [METRICS] within\n")
        assert records == ["MODEL_METRICS PredictionTime.ms:0.07|#Level:Model", "MODEL_LOG line [METRICS] within"]
        assert lines == ["line [METRICS] within"]

    read()


@on_loop
async def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    lines = WorkerOutput.new_last_lines()
    reader = WorkerOutput("w", logging.INFO, lines)
    transport = await attach(os.fdopen(reading, "rb", buffering=0), reader)

    os.write(writing, b"one\ntw")
    await until(lambda: list(lines) == ["one"])
    os.write(writing, b"o")
    os.close(writing)
    await within(reader.closed)

    assert list(lines) == ["one", "two"]
    transport.close()
