"""Log lines to the byte (configuration.md §10.1)."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.serving.support import on_loop, until

from relight.telemetry import access_log as access_log_module
from relight.telemetry.access_log import AccessLog
from relight.telemetry.logs import Logs, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relight.telemetry.sinks import Sink

PEER = "/127.0.0.1:56458"
TIME = 1795150000.6169


@pytest.fixture(autouse=True)
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class FakeSink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    def write(self, text: str) -> None:
        self.writes.append(text)


def answered(target: bytes = b"/predictions/ctl?a=b", status: int = 200, arrived: float = 0.0, **more: Any) -> Any:
    values = {"method": "POST", "target": target, "version": "HTTP/1.1", "status": status, "arrived": arrived}
    return SimpleNamespace(**values | more)


def rig(now: float) -> tuple[AccessLog, FakeSink, FakeSink]:
    access, everything = FakeSink(), FakeSink()
    sinks: list[Any] = [access, everything]
    log = AccessLog(sinks[0], sinks[1:])
    log._clock = lambda: now
    log._wall_clock = lambda: TIME - 50.0 + now
    return log, access, everything


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (TIME, "2026-11-19T23:46:40,616"),
        (0.0, "1969-12-31T19:00:00,000"),
        (1795150000.0, "2026-11-19T23:46:40,000"),
        (1795150000.9999, "2026-11-19T23:46:40,999"),
        (1783000000.005, "2026-07-02T09:46:40,005"),
    ],
)
def test_timestamps(seconds: float, text: str) -> None:
    assert timestamp(seconds) == text


@on_loop
async def test_access_lines() -> None:
    log, access, everything = rig(50.0)

    log.record(answered(arrived=49.9917), PEER)
    log.record(answered(b"/\xff", 404, method="GET", version="HTTP/1.0"), "127.0.0.1")
    log.flush()

    assert access.writes == [
        (
            '2026-11-19T23:46:40,616 - /127.0.0.1:56458 "POST /predictions/ctl?a=b HTTP/1.1" 200 8\n'
            '2026-11-19T23:46:40,616 - 127.0.0.1 "GET /ÿ HTTP/1.0" 404 0\n'
        )
    ]
    (text,) = everything.writes
    assert text.splitlines()[0] == (
        '2026-11-19T23:46:40,616 [INFO ] http ACCESS_LOG - /127.0.0.1:56458 "POST /predictions/ctl?a=b HTTP/1.1" 200 8'
    )


@on_loop
async def test_access_lines_are_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log_module, "_INTERVAL", 0.001)
    log, access, _ = rig(50.0)

    for _ in range(2):
        log.record(answered(), PEER)
        log.record(answered(), PEER)
        await until(lambda: access.writes)
        assert access.writes.pop().count("\n") == 2


@on_loop
async def test_access_lines_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log_module, "_MOST_RECORDS", 10)
    log, access, _ = rig(50.0)

    for _ in range(35):
        log.record(answered(), PEER)

    assert [text.count("\n") for text in access.writes] == [10, 10, 10]
    log.flush()
    assert access.writes[3].count("\n") == 5


@on_loop
async def test_nothing_to_write() -> None:
    log, access, everything = rig(50.0)

    log.flush()
    await asyncio.sleep(0)

    assert access.writes == everything.writes == []


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Logs, Path]]:
    """The server's logs, with a file for the console; the loggers of the tests are put back."""
    console = (tmp_path / "console").open("w")
    monkeypatch.setattr(sys, "stdout", console)
    names = ("MODEL_LOG", "TS_METRICS", "MODEL_METRICS", "httpx")
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    made = Logs(tmp_path / "logs", tmp_path / "metrics")
    yield made, tmp_path
    made.close()
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    console.close()


def written(made: Logs, folder: Path) -> dict[str, list[str]]:
    """The lines of each file without their times, which are checked."""
    sinks: list[Sink] = [made.access, made._model, made._ts_metrics, made._model_metrics, made.everything, made.console]
    for sink in sinks:
        sink.close()
    files = [*(folder / "logs").iterdir(), *(folder / "metrics").iterdir(), folder / "console"]
    found = {}
    for path in files:
        lines = path.read_text().splitlines()
        assert all(time.strptime(line[:19], "%Y-%m-%dT%H:%M:%S") for line in lines if line[:4].isdigit())
        found[path.name] = [line[24:] if line[:4].isdigit() else line for line in lines]
    return found


def test_files_and_formats(logs: tuple[Logs, Path]) -> None:
    made, folder = logs
    worker = {"worker": "W-9600-ctl_1.0-stdout"}
    logging.getLogger("relight.server").info("up %d", 1)
    logging.getLogger("relight.server").debug("not this")
    logging.getLogger("MODEL_LOG").info("print hello", extra=worker)
    logging.getLogger("MODEL_LOG").warning("to-stderr", extra={"worker": "W-9600-ctl_1.0-stderr"})
    logging.getLogger("TS_METRICS").info("Requests2XX.Count:1.0|#Level:Host|#hostname:vm,timestamp:1")
    logging.getLogger("MODEL_METRICS").info("PredictionTime.ms:0.07|#Level:Model", extra=worker)
    logging.getLogger("httpx").info("HTTP Request: GET")
    logging.getLogger("other").error("bad")
    logging.getLogger("other").critical("worse")

    found = written(made, folder)

    everything = [
        "[INFO ] main relight.server - up 1",
        "[INFO ] W-9600-ctl_1.0-stdout MODEL_LOG - print hello",
        "[WARN ] W-9600-ctl_1.0-stderr MODEL_LOG - to-stderr",
        "[INFO ] main TS_METRICS - Requests2XX.Count:1.0|#Level:Host|#hostname:vm,timestamp:1",
        "[INFO ] W-9600-ctl_1.0-stdout MODEL_METRICS - PredictionTime.ms:0.07|#Level:Model",
        "[ERROR] main other - bad",
        "[FATAL] main other - worse",
    ]
    assert found == {
        "ts_log.log": everything,
        "console": everything,
        "access_log.log": [],
        "model_log.log": everything[1:3],
        "ts_metrics.log": ["- Requests2XX.Count:1.0|#Level:Host|#hostname:vm,timestamp:1"],
        "model_metrics.log": ["- PredictionTime.ms:0.07|#Level:Model"],
    }


def test_exceptions(logs: tuple[Logs, Path]) -> None:
    made, folder = logs
    try:
        int("why")
    except ValueError:
        logging.getLogger("x").exception("it failed")

    lines = written(made, folder)["ts_log.log"]

    assert lines[:2] == ["[ERROR] main x - it failed", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: invalid literal for int() with base 10: 'why'"
