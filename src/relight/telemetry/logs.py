"""The server's logs: the files, line formats and names of TorchServe's built-in layout (configuration.md §10.1)."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from relight.telemetry.sinks import Sink

if TYPE_CHECKING:
    from pathlib import Path

_LEVELS = {"DEBUG": "DEBUG", "INFO": "INFO ", "WARNING": "WARN ", "ERROR": "ERROR", "CRITICAL": "FATAL"}
_THREADS = {"MainThread": "main"}


def timestamp(seconds: float) -> str:
    """Local time as log lines have it: `2026-11-20T04:57:45,507`."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(seconds))},{int(seconds * 1000) % 1000:03d}"


class _LineFormatter(logging.Formatter):
    """`time [LEVEL] thread logger - message`, or without the middle."""

    def __init__(self, *, short: bool) -> None:
        super().__init__()
        self._short = short

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        stamp = timestamp(record.created)
        if self._short:
            return f"{stamp} - {message}\n"
        thread = getattr(record, "worker", None) or _THREADS.get(record.threadName or "", record.threadName)
        return f"{stamp} [{_LEVELS.get(record.levelname, record.levelname)}] {thread} {record.name} - {message}\n"


class _SinkHandler(logging.Handler):
    """Hands formatted records to sinks."""

    def __init__(self, sinks: list[Sink], *, short: bool = False) -> None:
        super().__init__()
        self._sinks = sinks
        self.setFormatter(_LineFormatter(short=short))

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        for sink in self._sinks:
            sink.write(line)


class Logs:
    """All logs of a server. Made once; `close` writes what is pending.

    Args:
        log_location: Folder of the log files.
        metrics_location: Folder of the metric log files.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, log_location: Path, metrics_location: Path) -> None:
        self.console = Sink(sys.stdout.fileno(), "log-console", owned=False)
        self.everything = Sink.file(log_location / "ts_log.log")
        self.access = Sink.file(log_location / "access_log.log")
        self._model = Sink.file(log_location / "model_log.log")
        self._ts_metrics = Sink.file(metrics_location / "ts_metrics.log")
        self._model_metrics = Sink.file(metrics_location / "model_metrics.log")
        root = logging.getLogger()
        for handler in list(root.handlers):
            root.removeHandler(handler)
        root.addHandler(_SinkHandler([self.console, self.everything]))
        root.setLevel(logging.INFO)
        for name, sink, short in (
            ("MODEL_LOG", self._model, False),
            ("TS_METRICS", self._ts_metrics, True),
            ("MODEL_METRICS", self._model_metrics, True),
        ):
            logging.getLogger(name).addHandler(_SinkHandler([sink], short=short))
        # Its request lines tell less than the download's own.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def close(self) -> None:
        """Write what is pending and close the files."""
        for sink in (
            self.access,
            self._model,
            self._ts_metrics,
            self._model_metrics,
            self.everything,
            self.console,
        ):
            sink.close()
