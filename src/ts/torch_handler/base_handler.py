"""`ts.torch_handler.base_handler`."""

from relight.handlers.base import (
    IPEX_AVAILABLE,
    ONNX_AVAILABLE,
    PROFILER_AVAILABLE,
    PT2_AVAILABLE,
    PT230_AVAILABLE,
    XLA_AVAILABLE,
    BaseHandler,
    setup_ort_session,
)

__all__ = [
    "IPEX_AVAILABLE",
    "ONNX_AVAILABLE",
    "PROFILER_AVAILABLE",
    "PT2_AVAILABLE",
    "PT230_AVAILABLE",
    "XLA_AVAILABLE",
    "BaseHandler",
    "setup_ort_session",
]
