"""Compiling a loaded model: `torch.compile` by the `pt2` section of its configuration, or Intel's extension."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from typing import Any

import torch

from relight.sdk.util import check_valid_pt2_backend

logger = logging.getLogger(__name__)

IPEX_AVAILABLE = (
    os.environ.get("TS_IPEX_ENABLE", "false") == "true"
    and importlib.util.find_spec("intel_extension_for_pytorch") is not None
)

_DEPRECATED_FORM = (
    "This approach of specifying torch.compile() options is deprecated. "
    "The new standard approach is mentioned in https://github.com/pytorch/serve/issues/3164"
)

# Backends that register themselves with torch when their package is imported.
_BACKEND_PACKAGES = {"openvino": "openvino.torch", "tensorrt": "torch_tensorrt"}


def compile_options(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the keyword arguments for `torch.compile` that a model's configuration asks for, None for no compiling.

    Three forms are known: `pt2: <backend>`, `pt2: {backend: ..., mode: ...}` (both deprecated), and
    `pt2: {compile: {enable: true, backend: ..., mode: ...}}`.

    Args:
        config: The model's YAML configuration; it is not changed.

    Raises:
        ValueError: `pt2` is neither text nor a mapping.
    """
    pt2 = config.get("pt2")
    if pt2 is None:
        return None
    if isinstance(pt2, str):
        logger.warning(_DEPRECATED_FORM)
        return {"backend": pt2}
    if not isinstance(pt2, dict):
        raise ValueError("pt2 should be str or dict")  # noqa: TRY004 - the value of a configuration is wrong, not a type
    if "compile" in pt2:
        options = dict(pt2["compile"] or {})
        return options if options.pop("enable", False) is True else None
    if "export" in pt2:
        return None
    logger.warning(_DEPRECATED_FORM)
    return dict(pt2)


def compile_model(model: Any, options: dict[str, Any]) -> Any:
    """Return the compiled model, or the model itself where it cannot be compiled; the log says which.

    Args:
        model: A loaded model.
        options: From `compile_options`.
    """
    backend = options.get("backend")
    if backend is not None and not check_valid_pt2_backend(backend):
        return model
    import_backend(_BACKEND_PACKAGES.get(backend or "", ""))
    summary = ", ".join(f"{key} {value}" for key, value in options.items())
    try:
        compiled = torch.compile(model, **options)
    except Exception as error:  # noqa: BLE001 - an uncompiled model still answers, whatever the compiler's objection
        logger.warning("Compiling model model with %s has failed \n Proceeding without compilation", summary)
        logger.warning(error)
        return model
    logger.info("Compiled model with %s", summary)
    return compiled


def import_backend(package: str) -> None:
    """Import a package that adds something to torch, if it is installed."""
    if not package or importlib.util.find_spec(package.partition(".")[0]) is None:
        return
    try:
        importlib.import_module(package)
    except ImportError as error:
        logger.warning("%s is installed but cannot be imported: %s", package, error)


def optimize_with_ipex(model: Any) -> Any:
    """Return the model optimised by Intel's extension, in channels-last layout."""
    ipex = importlib.import_module("intel_extension_for_pytorch")
    optimized = ipex.optimize(model.to(memory_format=torch.channels_last))
    logger.info("Compiled model with ipex")
    return optimized
