"""Guesses whether a handler uses torch, to fork it from the right template.

A wrong guess costs time or memory, never correctness: a worker without torch imports it when its handler does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_IMPORT = re.compile(
    rb"^\s*(?:import|from)\s+(?:torch|torchvision|torchaudio|transformers|diffusers|captum|ts\.torch_handler)\b",
    re.MULTILINE,
)
_WEIGHTS = (".pt", ".pth", ".pt2", ".so", ".safetensors")
_MOST_FILES = 200
_MOST_BYTES = 1024 * 1024


def wants_torch(model_dir: Path, handler: str, serialized_file: str | None) -> bool:
    """Whether the handler of a model is expected to use torch.

    Args:
        model_dir: The unpacked archive.
        handler: The handler entry; one without a file in the archive is a stock handler, and they use torch.
        serialized_file: Name of the weights, if there are any.
    """
    if serialized_file is not None and serialized_file.endswith(_WEIGHTS):
        return True
    module = handler.partition(":")[0].removesuffix(".py")
    if not any((model_dir / f"{name}.py").is_file() for name in (module, module.rpartition("/")[2])):
        return True
    for index, path in enumerate(model_dir.rglob("*.py")):
        if index >= _MOST_FILES:
            return True
        try:
            with path.open("rb") as file:
                if _IMPORT.search(file.read(_MOST_BYTES)):
                    return True
        except OSError:
            continue
    return False
