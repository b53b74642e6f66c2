"""Values that a manifest may hold."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeType"]


class RuntimeType(str, Enum):
    """What runs the handler."""

    PYTHON = "python"
    PYTHON3 = "python3"
    LSP = "LSP"
