"""How a metric line leaves the process."""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

METRICS_PREFIX = "[METRICS]"

# The root logger writes to the worker's stdout as `%(message)s`, which is where a frontend looks for metric lines.
_ROOT = logging.getLogger()
_HOSTNAME = socket.gethostname()

_sink: Callable[[str], None] = _ROOT.info


def set_sink(sink: Callable[[str], None] | None) -> None:
    """Send metric lines elsewhere than to the log.

    A worker may set one that reaches the frontend directly: cheaper than a log line, and it survives handlers that
    configure logging themselves.

    Args:
        sink: Called with each complete line, `[METRICS]` included; None goes back to the log.
    """
    global _sink
    _sink = _ROOT.info if sink is None else sink


def tail(request_id: str | None) -> str:
    """Return the end of a metric line: host, unix seconds, and the request ids if there are any."""
    end = f"|#hostname:{_HOSTNAME},{int(time.time())}"
    return f"{end},{request_id}" if request_id else end


def hostname() -> str:
    """Return the host name that metric lines carry."""
    return _HOSTNAME


def emit(name: str, unit: str, value: Any, dimensions: str, type_name: str, request_id: str | None) -> None:
    """Write one metric line.

    Args:
        name: Metric name.
        unit: Unit as it is written, `Milliseconds`.
        value: The value; written with `str`.
        dimensions: `name:value` pairs joined by commas.
        type_name: `COUNTER`, `GAUGE` or `HISTOGRAM`.
        request_id: Ids of the requests that the value belongs to, joined by commas; empty or None for none.
    """
    _sink(f"{METRICS_PREFIX}{name}.{unit}:{value}|#{dimensions}|#type:{type_name}{tail(request_id)}")


def complain(text: str) -> None:
    """Log that an update was refused. The prefix and the level are what TorchServe's log shows."""
    _ROOT.error("%s%s", METRICS_PREFIX, text)
