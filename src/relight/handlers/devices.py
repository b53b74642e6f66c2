"""Which device a handler's model runs on."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from typing import Any

import torch

logger = logging.getLogger(__name__)

XLA_AVAILABLE = importlib.util.find_spec("torch_xla") is not None

# From this compute capability on, tensor cores multiply float32 matrices.
_TENSOR_CORES = (8, 0)


def choose(gpu_id: int | str | None) -> tuple[Any, str | None]:
    """Return the device for a worker, and the `map_location` that belongs to it.

    Args:
        gpu_id: The GPU that the server assigned to the worker, None for none.
    """
    if gpu_id is not None:
        if torch.cuda.is_available():
            if torch.cuda.get_device_capability(int(gpu_id)) >= _TENSOR_CORES:
                torch.set_float32_matmul_precision("high")
                logger.info("Enabled tensor cores")
            return torch.device(f"cuda:{gpu_id}"), "cuda"
        if os.environ.get("TS_IPEX_GPU_ENABLE", "false") == "true" and torch.xpu.is_available():
            return torch.device(f"xpu:{gpu_id}"), "xpu"
        if torch.backends.mps.is_available():
            return torch.device("mps"), "mps"
    if XLA_AVAILABLE:
        return importlib.import_module("torch_xla.core.xla_model").xla_device(), None
    return torch.device("cpu"), "cpu"
