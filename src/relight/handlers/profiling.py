"""Running a handler's steps under the torch profiler."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function, tensorboard_trace_handler

logger = logging.getLogger(__name__)

TRACE_ROOT = "/tmp/pytorch_profiler"  # noqa: S108 - where TorchServe's users look for traces


def run_profiled(handler: Any, data: list[Any]) -> tuple[Any, Any]:
    """Answer one batch with a handler's steps, each a section of the profile.

    The handler's `profiler_args` go to `torch.profiler.profile`. By default CPU and CUDA activities and input shapes
    are recorded, and the trace is written below /tmp/pytorch_profiler/<model name>.

    Returns:
        The answer and the profiler.
    """
    with profile(**_arguments(handler)) as profiler:
        with record_function("preprocess"):
            prepared = handler.preprocess(data)
        if handler._is_explain():  # noqa: SLF001 - a method that subclasses override, part of the handler's contract
            with record_function("explain"):
                output = handler.explain_handle(prepared, data)
        else:
            with record_function("inference"):
                inferred = handler.inference(prepared)
            with record_function("postprocess"):
                output = handler.postprocess(inferred)
    logger.info("%s", profiler.key_averages().table(sort_by="cpu_time_total", row_limit=10))
    return output, profiler


def _arguments(handler: Any) -> dict[str, Any]:
    arguments = dict(getattr(handler, "profiler_args", None) or {})
    if not arguments:
        arguments = {"activities": [ProfilerActivity.CPU, ProfilerActivity.CUDA], "record_shapes": True}
    if "on_trace_ready" not in arguments:
        target = Path(TRACE_ROOT) / handler.manifest["model"]["modelName"]
        logger.info("Saving chrome trace to : %s", target)
        arguments["on_trace_ready"] = tensorboard_trace_handler(str(target))
    return arguments
