"""BaseHandler with real small models, without a server."""

from __future__ import annotations

import itertools
import logging
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from relight.handlers import compilation  # noqa: E402
from relight.handlers.base import BaseHandler  # noqa: E402
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1, bias=False)

        def forward(self, x):
            return self.layer(x)
"""
_numbers = itertools.count()


def pack(tmp_path: Path, source: str = MODEL, weights: bool = True, config: str | None = None) -> Any:
    """Write a model file of a name not used before, and return a context for it."""
    name = f"model_{next(_numbers)}.py"
    (tmp_path / name).write_text(textwrap.dedent(source))
    if weights:
        torch.save({"layer.weight": torch.tensor([[1.0, 2.0]])}, tmp_path / "w.pt")
    if config is not None:
        (tmp_path / "c.yaml").write_text(config)
    return MockContext(
        model_pt_file="w.pt" if weights else None,
        model_dir=str(tmp_path),
        model_file=name,
        model_yaml_config_file="c.yaml" if config is not None else None,
    )


@pytest.fixture(autouse=True)
def keep_sys_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_eager_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = pack(tmp_path)
    handler = BaseHandler()
    handler.initialize(context)
    handler.context = context
    assert handler.initialized
    assert handler.get_device() == torch.device("cpu")
    assert not handler.model.training
    assert handler.handle([[1.0, 1.0], [2.0, 0.5]], context) == [[3.0], [3.0]]
    assert [metric.name for metric in context.metrics.store] == ["HandlerTime"]
    assert caplog.messages == [
        f"'{tmp_path}/index_to_name.json' is missing. Inference output will not include class name."
    ]


def test_eager_model_without_weights_is_served_as_it_is_built(tmp_path: Path) -> None:
    context = pack(tmp_path, weights=False)
    handler = BaseHandler()
    handler.initialize(context)
    assert handler.model_pt_path is None
    assert len(handler.handle([[1.0, 1.0]], context)) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_model_and_labels(tmp_path: Path) -> None:
    module = torch.jit.trace(torch.nn.ReLU(), torch.zeros(1))
    module.save(str(tmp_path / "m.pt"))
    (tmp_path / "index_to_name.json").write_text('{"0": "cat"}')
    context: Any = MockContext("m.pt", str(tmp_path), None)
    handler = BaseHandler()
    handler.initialize(context)
    assert handler.handle([-1.0, 2.0], context) == [0.0, 2.0]
    assert handler.mapping == {"0": "cat"}


@pytest.mark.parametrize("serialized", [None, "w.pth", "w.onnxx", "w.so"])
def test_unknown_weights(tmp_path: Path, serialized: str | None) -> None:
    context: Any = MockContext(serialized, str(tmp_path), None)
    with pytest.raises(RuntimeError, match=r"^No model weights could be loaded$"):
        BaseHandler().initialize(context)


def test_missing_model_file(tmp_path: Path) -> None:
    context: Any = MockContext(None, str(tmp_path), "absent.py")
    with pytest.raises(RuntimeError, match=r"^Missing the model.py file$"):
        BaseHandler().initialize(context)


def test_model_file_with_two_classes(tmp_path: Path) -> None:
    context = pack(tmp_path, MODEL + "\n    class Other:\n        pass\n")
    with pytest.raises(ValueError, match="Expected only one class as model definition"):
        BaseHandler().initialize(context)


class Explaining(BaseHandler):
    """Overrides `__init__` without calling the base class's, as many handlers do."""

    def __init__(self) -> None:
        self.seen: Any = None

    def get_insights(self, tensor: Any, inputs: Any, target: Any) -> list[Any]:
        self.seen = (tensor, inputs, target)
        return ["insight"]

    def preprocess(self, data: Any) -> Any:
        return [row["body"] for row in data]

    def describe_handle(self) -> dict[str, str]:
        return {"describes": "itself"}


class Headers:
    """A context of one request with the given headers."""

    def __init__(self, base: Any, **headers: str) -> None:
        self.headers = headers
        self.metrics = base.metrics
        self.model_yaml_config: dict[str, Any] = {}

    def get_request_header(self, idx: int, key: str) -> str | None:
        assert idx == 0
        return self.headers.get(key)


def test_explain_and_describe(tmp_path: Path) -> None:
    base: Any = MockContext(None, str(tmp_path), None)
    handler: Any = Explaining()
    assert handler.handle([{"body": 1, "target": 3}], Headers(base, explain="True")) == ["insight"]
    assert handler.seen == ([1], 1, 3)
    assert handler.explain
    assert handler.handle([{}], Headers(base, describe="True")) == [{"describes": "itself"}]


@pytest.mark.parametrize(
    ("config", "options", "warnings"),
    [
        ({}, None, 0),
        ({"pt2": "inductor"}, {"backend": "inductor"}, 1),
        ({"pt2": {"backend": "inductor", "mode": "x"}}, {"backend": "inductor", "mode": "x"}, 1),
        ({"pt2": {"compile": {"enable": True, "mode": "x"}}}, {"mode": "x"}, 0),
        ({"pt2": {"compile": {"enable": True}}}, {}, 0),
        ({"pt2": {"compile": {"enable": False, "mode": "x"}}}, None, 0),
        ({"pt2": {"compile": {"mode": "x"}}}, None, 0),
        ({"pt2": {"export": {"aot_compile": True}}}, None, 0),
    ],
)
def test_compile_options(
    config: dict[str, Any], options: dict[str, Any] | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = repr(config)
    assert compilation.compile_options(config) == options
    assert repr(config) == before
    assert len(caplog.records) == warnings


def test_compile_options_of_another_type() -> None:
    with pytest.raises(ValueError, match="pt2 should be str or dict"):
        compilation.compile_options({"pt2": 3})


def test_compiled_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    context = pack(tmp_path, config="pt2: {compile: {enable: true, backend: eager}}\n")
    handler = BaseHandler()
    handler.initialize(context)
    assert "Compiled model with backend eager" in caplog.messages
    assert handler.handle([[1.0, 1.0]], context) == [[3.0]]


def test_model_that_cannot_be_compiled_is_served_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.ReLU()
    assert compilation.compile_model(model, {"backend": "zz"}) is model
    assert compilation.compile_model(model, {"mode": "no-such-mode"}) is model
    assert caplog.messages[:2] == [
        "zz is not a supported backend",
        "Compiling model model with mode no-such-mode has failed \n Proceeding without compilation",
    ]


def test_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "False")  # any value turns it on
    context = pack(tmp_path)
    context.manifest["model"]["modelName"] = "m"
    handler = BaseHandler()
    handler.initialize(context)
    handler.profiler_args = {"activities": [torch.profiler.ProfilerActivity.CPU], "on_trace_ready": lambda _: None}
    assert handler.handle([[1.0, 1.0]], context) == [[3.0]]
    assert "preprocess" in caplog.messages[-1]
