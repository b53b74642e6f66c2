"""Helpers that handlers import: label mappings, class lookup, compile backends, deprecation."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import itertools
import json
import logging
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

logger = logging.getLogger(__name__)

CLEANUP_REGEX = re.compile(r"<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
"""Matches HTML tags and entities, which text handlers strip from their input."""

_Function = TypeVar("_Function", bound="Callable[..., Any]")


class PT2Backend(str, enum.Enum):
    """Backends of `torch.compile` that a model's configuration may name."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


_PT2_BACKENDS = frozenset(backend.value for backend in PT2Backend)


class _LabelMappingError(Exception):
    """`index_to_name.json` has a shape that means nothing."""


class _ClassMappingError(Exception):
    """The arguments of `map_class_to_label` do not fit."""


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether `torch.compile` may be asked for this backend; logs a warning if not."""
    if backend in _PT2_BACKENDS:
        return True
    logger.warning("%s is not a supported backend", backend)
    return False


def load_label_mapping(mapping_file_path: str | os.PathLike[str]) -> dict[str, str] | None:
    """Return the labels of `index_to_name.json`, by class index as text.

    Three shapes are known: index to label, index to list (its last element is the label), and
    `{"object_type_names": [...]}` (the position is the index). A missing file gives None and a warning.

    Raises:
        json.JSONDecodeError: The file is not JSON.
        IndexError: A list of labels is empty.
        Exception: The file has another shape.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        logger.warning("'%s' is missing. Inference output will not include class name.", mapping_file_path)
        return None
    mapping = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(mapping, dict):
        raise _LabelMappingError('index->name JSON mapping should be in "class": "label" format.')
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        mapping = {str(index): name for index, name in enumerate(names)}
    return {index: _label(value) for index, value in mapping.items()}


def _label(value: Any) -> str:
    label = value[-1] if isinstance(value, list) else value
    if not isinstance(label, str):
        raise _LabelMappingError("labels in index->name mapping must be either str or List[str]")
    return label


def map_class_to_label(
    probs: list[list[float]],
    mapping: dict[str, str] | None = None,
    lbl_classes: Iterable[Sequence[Any]] | None = None,
) -> list[dict[str, float]]:
    """Return one dictionary of label to probability for each row.

    Args:
        probs: Rows of probabilities.
        mapping: Class index as text to label; None uses the index.
        lbl_classes: The class of each probability, row by row; by default its position.

    Raises:
        Exception: `probs` is not a list of lists, or `mapping` is not a dictionary.
        KeyError: A class is missing in the mapping.
    """
    if not (isinstance(probs, list) and all(isinstance(row, list) for row in probs)):
        raise _ClassMappingError("Convert classes to list before doing mapping")
    if mapping is not None and not isinstance(mapping, dict):
        raise _ClassMappingError("Mapping must be a dict")
    classes = itertools.repeat(range(len(probs[0]))) if lbl_classes is None else lbl_classes
    return [
        {
            (str(index) if mapping is None else mapping[str(index)]): probability
            for index, probability in zip(indices, row, strict=False)
        }
        for indices, row in zip(classes, probs, strict=False)
    ]


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that a module defines itself, by name; with `parent_class`, only its subclasses."""
    return [
        found
        for _, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__ and (parent_class is None or issubclass(found, parent_class))
    ]


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """Return a class by its dotted name.

    Args:
        class_name: `package.module.Class`, or less with a prefix.
        module_prefix: Dotted name put before it.

    Raises:
        ImportError: The name names no module or no class, or the module cannot be imported.
    """
    module_name, _, name = (class_name or "").rpartition(".")
    if not name:
        raise ImportError("class name is not defined")
    module_name = ".".join(filter(None, (module_prefix, module_name)))
    if not module_name:
        raise ImportError("module name is not defined.")
    found = getattr(importlib.import_module(module_name), name, None)
    if not isinstance(found, type):
        raise ImportError(f"class:{name} not found in module:{module_name}.")  # noqa: TRY004 - as the docstring says
    return found


def get_yaml_config(yaml_file_path: str | os.PathLike[str]) -> Any:
    """Return the content of a YAML file, None for an empty one.

    Raises:
        OSError: The file cannot be read.
        yaml.YAMLError: The file is not YAML.
    """
    # Most handlers that import this module have no configuration file.
    import yaml

    with Path(yaml_file_path).open(encoding="utf-8") as file:
        return yaml.safe_load(file)


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[_Function], _Function]:
    """Return a decorator that warns on each call of a function that has moved.

    Args:
        version: Version that deprecated it.
        replacement: Where it is now.
        klass: Category of the warning.
    """

    def decorate(function: _Function) -> _Function:
        message = f"{function.__name__} is deprecated in {version} and moved to {replacement}"

        @functools.wraps(function)
        def warn_and_call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(message, klass, stacklevel=2)
            return function(*args, **kwargs)

        return warn_and_call  # type: ignore[return-value]  # wraps keeps the signature

    return decorate
