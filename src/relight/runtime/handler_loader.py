"""Finding and loading a handler from the handler string of an archive (TorchServe's rules, and fixes to them)."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from relight.sdk.context import Context

STOCK_HANDLERS = "ts.torch_handler"
DEFAULT_FUNCTION = "handle"


@dataclass(frozen=True)
class EntryPoint:
    """How a worker talks to a handler.

    Args:
        initialize: Loads the model. For a function handler it calls `fn(None, context)`. The result means nothing,
            except that an async function's is a coroutine, which somebody has to run or close.
        handle: Answers a batch: rows and context in, a list out. A coroutine function when `is_async`.
        is_async: Whether `handle` has to be awaited.
    """

    initialize: Callable[[Context], Any]
    handle: Callable[[list[Any], Context], Any]
    is_async: bool


def resolve(handler: str, model_dir: Path) -> EntryPoint:
    """Import a handler and return its entry point; a handler class is instantiated, not initialized.

    The string is `<module>[.py][:<function or class>]`; the module may lie in a sub-directory (`sub/h.py`) or a package
    (`sub.h`). A function, by default `handle`, comes first, then the class. A module that does not exist is looked for
    among the stock handlers.

    Args:
        handler: The manifest's handler string.
        model_dir: Directory of the unpacked archive.

    Raises:
        ModuleNotFoundError: There is no such module, neither the model's nor a stock handler.
        ValueError: The module has no function of that name, and no single class that could be the handler.
        AttributeError: The class has no `initialize`.
        Exception: Whatever importing the module or creating the object raises, unchanged.
    """
    module_part, _, wanted = handler.partition(":")
    module = _import_handler(handler, module_part, model_dir)
    target = getattr(module, wanted or DEFAULT_FUNCTION, None)
    if inspect.isclass(target):
        return _class_entry(target)
    if callable(target):
        return _function_entry(target)
    return _class_entry(_handler_class(module))


def model_sys_path(
    handler: str,
    real_dir: Path,
    extra: Sequence[str | os.PathLike[str]] = (),
    inherited_pythonpath: str | None = None,
) -> list[str]:
    """Return the directories that a worker's `sys.path` begins with, absolute and each once.

    The order: the handler's own directory where the handler string names one, the server's PYTHONPATH, the model
    directory, then `extra`. So the operator's PYTHONPATH beats the archive, and the archive beats installed packages.

    Args:
        handler: The manifest's handler string.
        real_dir: The model directory, links resolved.
        extra: Further directories: where the model's own packages were installed, the server's home.
        inherited_pythonpath: The server's PYTHONPATH. Relative entries count from the model directory, which is a
            worker's working directory.
    """
    directory = handler.partition(":")[0].rpartition("/")[0]
    inherited = (inherited_pythonpath or "").split(os.pathsep)
    entries = [entry for entry in (directory, *inherited) if entry]
    return list(dict.fromkeys(os.path.normpath(real_dir / entry) for entry in (*entries, "", *extra)))


def enter_model_dir(handler: str, real_dir: Path, extra: Sequence[str | os.PathLike[str]] = ()) -> None:
    """Make this process what TorchServe starts its workers as: in the model directory, its modules on the path.

    A worker that was forked did not read PYTHONPATH at its start, so the path is set here; the variable is set as well,
    for processes that the handler starts. Its present value is taken as the server's.

    Args:
        handler: The manifest's handler string.
        real_dir: The model directory, links resolved.
        extra: Further directories, see `model_sys_path`.
    """
    entries = model_sys_path(handler, real_dir, extra, os.environ.get("PYTHONPATH"))
    os.chdir(real_dir)
    # "" is the working directory, which a TorchServe worker has only behind PYTHONPATH, as the model directory.
    rest = [entry for entry in sys.path if entry and entry not in entries]
    sys.path[:] = [*entries, *rest]
    os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    importlib.invalidate_caches()


def shadowed_modules(entries: Iterable[str]) -> list[str]:
    """Return the top-level modules, imported already, that a fresh interpreter would take from `entries` instead.

    An archive may ship its own version of a package that the fork server has loaded. Reloading such a package in a
    running process is not possible in general; a worker for such an archive needs an interpreter of its own.

    Args:
        entries: From `model_sys_path`; those that the packages in use were loaded from shadow nothing.
    """
    shadowed: list[str] = []
    # The interpreter finds its built-in modules before it looks at the path.
    seen = {"__main__", *sys.builtin_module_names}
    for entry in entries:
        for name in _importable_names(Path(entry)) - seen:
            seen.add(name)
            if name in sys.modules and not _is_from(sys.modules[name], Path(entry)):
                shadowed.append(name)
    return sorted(shadowed)


def _import_handler(handler: str, module_part: str, model_dir: Path) -> ModuleType:
    directory, _, base = module_part.rpartition("/")
    name = base.removesuffix(".py")
    own = os.path.normpath(model_dir / directory)
    if directory and own not in sys.path:
        sys.path.insert(0, own)
        importlib.invalidate_caches()
    _forget_namesake(name.partition(".")[0], Path(own))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not _is_itself(error.name, name):
            raise
        missing = error
    stock = f"{STOCK_HANDLERS}.{handler}"
    try:
        return importlib.import_module(stock)
    except ModuleNotFoundError as error:
        if not _is_itself(error.name, stock):
            raise
    # Neither exists: what the author wrote is the name to report.
    raise missing


def _is_itself(missing: str | None, name: str) -> bool:
    """Whether the module that was not found is the one asked for, or a package on the way to it."""
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _function_entry(function: Callable[[Any, Context], Any]) -> EntryPoint:
    return EntryPoint(lambda context: function(None, context), function, _is_async(function))


def _class_entry(handler_class: type) -> EntryPoint:
    instance = handler_class()
    # From the instance: a handler may put a wrapper such as MicroBatching into `self.handle`.
    handle = getattr(instance, "handle", None)
    if handle is None:
        raise ValueError(f"Expect handle method in class {handler_class}")
    return EntryPoint(instance.initialize, handle, _is_async(handle))


def _handler_class(module: ModuleType) -> type:
    if module.__name__.startswith(f"{STOCK_HANDLERS}."):
        # Stock modules re-export what relight.handlers defines, and say so in __all__.
        exported = [getattr(module, name) for name in module.__all__]
        classes: list[type] = [found for found in exported if inspect.isclass(found)]
    else:
        classes = [
            found for _, found in inspect.getmembers(module, inspect.isclass) if found.__module__ == module.__name__
        ]
    # A handler module may define helpers: dataclasses, exceptions, enums.
    complete = [found for found in classes if hasattr(found, "initialize") and hasattr(found, "handle")]
    for candidates in (complete, classes):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(f"Expected only one class in custom service code or a function entry point {classes}")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _forget_namesake(name: str, directory: Path) -> None:
    """Let a handler module be imported although the process holds another module of its name.

    The fork server has imported much before the handler's directory came onto the path, in front of everything.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and name in _importable_names(directory) and not _is_from(loaded, directory):
        del sys.modules[name]


def _importable_names(directory: Path) -> set[str]:
    """Return the top-level modules and packages that a directory on the path offers."""
    try:
        paths = list(directory.iterdir())
    except OSError:
        return set()
    return {
        path.name.partition(".")[0]
        for path in paths
        if path.suffix in {".py", ".so"} or (path / "__init__.py").is_file()
    }


def _is_from(module: ModuleType, directory: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve().is_relative_to(directory.resolve())
