"""How a handler string becomes an entry point: the table of TorchServe, with its fixes."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relight.runtime.handler_loader import enter_model_dir, model_sys_path, resolve, shadowed_modules
from relight.sdk.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FUNCTIONS = """
    def handle(data, context):
        return ["handle", data]

    def other(data, context):
        return ["other", data]
"""
ONE_CLASS = """
    class Model:
        def initialize(self, context):
            self.ready = context.model_name

        def handle(self, data, context):
            return ["class", data]
"""
WITH_HELPERS = (
    """
    import dataclasses, enum
    from collections import OrderedDict
"""
    + ONE_CLASS
    + """
    @dataclasses.dataclass
    class Row:
        value: int

    class Color(enum.Enum):
        RED = 1

    class Problem(Exception):
        pass
"""
)
TWO_HANDLERS = (
    ONE_CLASS
    + """
    class Another(Model):
        pass
"""
)
ASYNC_HANDLE = """
    async def handle(data, context):
        return ["async", data]
"""
WRAPPED = """
    class Wrapper:
        def __init__(self, parent):
            self.parent = parent

        def __call__(self, data, context):
            return ["wrapped", data]

    class Model:
        def __init__(self):
            self.handle = Wrapper(self)

        def initialize(self, context):
            pass

        def handle(self, data, context):
            return ["class", data]
"""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Write a module below the model directory, which is entered as a worker does; undone at the end."""
    path, cwd, pythonpath = list(sys.path), os.getcwd(), os.environ.get("PYTHONPATH")  # noqa: PTH109
    os.environ.pop("PYTHONPATH", None)
    enter_model_dir("h.py", tmp_path)

    def write_module(name: str, source: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))

    yield write_module
    os.chdir(cwd)
    sys.path[:] = path
    os.environ.pop("PYTHONPATH")
    if pythonpath is not None:
        os.environ["PYTHONPATH"] = pythonpath
    for name in ("h", "sub", "sub.h", "base_handler"):
        sys.modules.pop(name, None)


def context() -> Context:
    return Context("m", "/model", None, 1, None)


@pytest.mark.parametrize(
    ("handler", "file", "source", "answer"),
    [
        ("h.py", "h.py", FUNCTIONS, "handle"),
        ("h", "h.py", FUNCTIONS, "handle"),
        ("h.py:other", "h.py", FUNCTIONS, "other"),
        ("h:other", "h.py", FUNCTIONS, "other"),
        ("h.py", "h.py", ONE_CLASS, "class"),
        ("h", "h.py", ONE_CLASS, "class"),
        ("h.py:nope", "h.py", ONE_CLASS, "class"),
        ("h.py:Model", "h.py", ONE_CLASS, "class"),
        ("h.py:Model", "h.py", TWO_HANDLERS, "class"),
        ("h.py", "h.py", ONE_CLASS + FUNCTIONS, "handle"),
        ("h.py", "h.py", WITH_HELPERS, "class"),
        ("h.py", "h.py", WRAPPED, "wrapped"),
        ("sub/h.py", "sub/h.py", FUNCTIONS, "handle"),
        ("sub/h", "sub/h.py", ONE_CLASS, "class"),
        ("sub/h.py:handle", "sub/h.py", FUNCTIONS, "handle"),
        ("sub.h", "sub/h.py", FUNCTIONS, "handle"),
        ("queue.py", "queue.py", FUNCTIONS, "handle"),
    ],
)
def test_resolution(
    write: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    handler: str,
    file: str,
    source: str,
    answer: str,
) -> None:
    import queue

    monkeypatch.setitem(sys.modules, "queue", queue)
    write(file, source)
    entry = resolve(handler, tmp_path)
    entry.initialize(context())
    assert entry.handle([{"body": b"x"}], context()) == [answer, [{"body": b"x"}]]
    assert not entry.is_async


def test_function_is_initialized_with_none(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", "calls = []\ndef handle(data, context):\n    calls.append((data, context.model_name))\n")
    resolve("h.py", tmp_path).initialize(context())
    assert sys.modules["h"].calls == [(None, "m")]


def test_class_is_instantiated_but_not_initialized(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", ONE_CLASS)
    entry = resolve("h.py", tmp_path)
    instance: Any = entry.handle.__self__  # type: ignore[attr-defined]
    assert not hasattr(instance, "ready")
    entry.initialize(context())
    assert instance.ready == "m"


def test_async_function(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", ASYNC_HANDLE)
    entry = resolve("h.py", tmp_path)
    assert entry.is_async
    assert asyncio.run(entry.handle([1], context())) == ["async", [1]]


def test_two_possible_handlers_are_refused(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", TWO_HANDLERS)
    with pytest.raises(ValueError, match="Expected only one class") as caught:
        resolve("h.py", tmp_path)
    assert str(caught.value) == (
        "Expected only one class in custom service code or a function entry point "
        "[<class 'h.Another'>, <class 'h.Model'>]"
    )


def test_no_class_at_all(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", "from collections import OrderedDict\n")
    with pytest.raises(ValueError, match=r"a function entry point \[\]$"):
        resolve("h.py", tmp_path)


def test_class_without_handle(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", "class A:\n    pass\n")
    with pytest.raises(ValueError, match=r"^Expect handle method in class <class 'h.A'>$"):
        resolve("h.py", tmp_path)


def test_class_without_initialize(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("h.py", "class A:\n    def handle(self, data, context):\n        pass\n")
    with pytest.raises(AttributeError, match="initialize"):
        resolve("h.py", tmp_path)


@pytest.mark.parametrize("handler", ["h.py", "h.py:handle", "nothing_here", "sub/h.py", "sub.h"])
def test_missing_handler_is_reported_by_its_own_name(
    write: Callable[[str, str], None], tmp_path: Path, handler: str
) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        resolve(handler, tmp_path)
    assert caught.value.name in {"h", "nothing_here", "sub"}
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("import not_installed\n", ModuleNotFoundError, "No module named 'not_installed'"),
        ("from os import no_such_name\n", ImportError, "cannot import name 'no_such_name'"),
        ("1 / 0\n", ZeroDivisionError, "division by zero"),
        (
            "class A:\n    def __init__(self):\n        raise OSError('disk')\n    handle = initialize = None\n",
            OSError,
            "disk",
        ),
    ],
)
def test_the_handlers_own_error_is_not_hidden(
    write: Callable[[str, str], None], tmp_path: Path, source: str, error: type[Exception], text: str
) -> None:
    write("h.py", source)
    with pytest.raises(error, match=text) as caught:
        resolve("h.py", tmp_path)
    assert type(caught.value) is error
    assert caught.value.__context__ is None


def test_stock_handler(write: Callable[[str, str], None], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ts.torch_handler.base_handler import BaseHandler

    assert isinstance(resolve("base_handler", tmp_path).handle.__self__, BaseHandler)  # type: ignore[attr-defined]


def test_a_module_of_the_archive_comes_before_a_stock_handler(
    write: Callable[[str, str], None], tmp_path: Path
) -> None:
    write("base_handler.py", FUNCTIONS)
    assert resolve("base_handler", tmp_path).handle([], context()) == ["handle", []]


def test_the_path_of_a_worker(tmp_path: Path) -> None:
    model = str(tmp_path)
    assert model_sys_path("h.py", tmp_path) == [model]
    assert model_sys_path("h.py:handle", tmp_path, ["/pip", "/home/ts"], "/mine::/other") == [
        "/mine",
        "/other",
        model,
        "/pip",
        "/home/ts",
    ]
    assert model_sys_path("sub/h.py:handle", tmp_path, [model], f"lib:{model}") == [
        f"{model}/sub",
        f"{model}/lib",
        model,
    ]
    assert model_sys_path("/abs/h.py", tmp_path) == ["/abs", model]


def test_entering_a_model_directory(write: Callable[[str, str], None], tmp_path: Path) -> None:
    sys.path.insert(0, "")
    sys.path.append(str(tmp_path))
    os.environ["PYTHONPATH"] = "/mine"
    enter_model_dir("h.py", tmp_path, [Path("/extra")])
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109
    assert sys.path[:2] == ["/mine", str(tmp_path)]
    assert "" not in sys.path
    assert sys.path.count(str(tmp_path)) == 1
    assert os.environ["PYTHONPATH"] == f"/mine:{tmp_path}:/extra"


def test_modules_of_an_archive_that_are_loaded_already(tmp_path: Path) -> None:
    archive, first = tmp_path / "archive", tmp_path / "first"
    for folder in (archive, first, archive / "pytest", archive / "data"):
        folder.mkdir()
    for file in ("pytest/__init__.py", "textwrap.py", "sys.py", "unknown_name.py", "asyncio.txt"):
        (archive / file).touch()
    assert shadowed_modules([str(archive), str(tmp_path / "absent")]) == ["pytest", "textwrap"]
    assert shadowed_modules([os.path.dirname(textwrap.__file__), str(archive)]) == ["pytest"]  # noqa: PTH120
