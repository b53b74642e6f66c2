"""Measuring the steps of a handler."""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Method = TypeVar("_Method", bound="Callable[..., Any]")


def timed(method: _Method) -> _Method:
    """Record how long a handler's method takes, as metric `ts_handler_<method>` in milliseconds.

    It measures only where the model's configuration says `handler: {profile: true}`, and only the decorated method: an
    override without the decorator is not measured. On a GPU the time is that of the device.
    """
    metric = f"ts_handler_{method.__name__}"

    @functools.wraps(method)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Handlers may leave out the base class's __init__, so even `context` may be missing.
        context: Any = getattr(self, "context", None)
        if not _is_profiled(context):
            return method(self, *args, **kwargs)
        stop = _start_clock(self)
        result = method(self, *args, **kwargs)
        context.metrics.add_time(metric, stop(), None, "ms")
        return result

    return measured  # type: ignore[return-value]  # wraps keeps the signature


def _is_profiled(context: Any) -> bool:
    config = getattr(context, "model_yaml_config", None)
    section = config.get("handler") if config else None
    return isinstance(section, dict) and bool(section.get("profile"))


def _start_clock(handler: Any) -> Callable[[], float]:
    """Return a function that says how many milliseconds have passed."""
    # A handler without torch has nothing on a device, and must not pay for importing it.
    torch = sys.modules.get("torch")
    device = getattr(handler, "device", None)
    if torch is not None and getattr(device, "type", None) == "cuda":
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()

        def elapsed_on_device() -> float:
            end.record()
            torch.cuda.synchronize()
            milliseconds: float = begin.elapsed_time(end)
            return milliseconds

        return elapsed_on_device
    started = time.perf_counter()
    return lambda: (time.perf_counter() - started) * 1000
