"""Guesses whether a handler uses torch, to fork it from the right template.

A wrong guess costs time or memory, never correctness: a worker without torch imports it when its handler does.
"""

from __future__ import annotations

import json
import re
import zipfile
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


def location_wants_torch(store: Path, location: str) -> bool | None:
    """The same for a model that is not unpacked yet; None if it cannot be told quickly.

    Args:
        store: The model store.
        location: A name in it, or a path.
    """
    path = store / location.rpartition("/")[2]
    if path.suffix != ".mar" or not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
            if str(manifest.get("serializedFile", "")).endswith(_WEIGHTS):
                return True
            if f"{manifest['handler'].partition(':')[0].removesuffix('.py')}.py" not in names:
                return True
            sources = [name for name in names if name.endswith(".py")][:_MOST_FILES]
            return any(_IMPORT.search(archive.open(name).read(_MOST_BYTES)) for name in sources)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile):
        return None


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
