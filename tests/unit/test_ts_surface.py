"""The import paths of existing handlers: present, light, and free of the server."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import relight
import ts

SURFACE = {
    "ts": ["__version__"],
    "ts.version": ["__version__"],
    "ts.context": ["Context", "RequestProcessor"],
    "ts.service": ["PREDICTION_METRIC", "PredictionException", "Service", "emit_metrics"],
    "ts.utils.util": [
        "CLEANUP_REGEX",
        "PT2Backend",
        "PredictionException",
        "check_valid_pt2_backend",
        "deprecated",
        "get_yaml_config",
        "list_classes_from_module",
        "load_label_mapping",
        "map_class_to_label",
    ],
    "ts.handler_utils.utils": ["import_class", "send_intermediate_predict_response"],
    "ts.handler_utils.timer": ["timed"],
    "ts.protocol.otf_message_handler": ["send_intermediate_predict_response"],
    "ts.metrics.dimension": ["Dimension"],
    "ts.metrics.metric_type_enum": ["MetricTypes"],
    "ts.metrics.unit": ["Units"],
    "ts.metrics.metric": ["Metric"],
    "ts.metrics.metrics_store": ["MetricsStore"],
    "ts.metrics.metric_encoder": ["MetricEncoder"],
    "ts.metrics.metric_abstract": ["MetricAbstract"],
    "ts.metrics.caching_metric": ["CachingMetric"],
    "ts.metrics.metric_cache_abstract": ["MetricCacheAbstract"],
    "ts.metrics.metric_cache_yaml_impl": ["MetricsCacheYamlImpl"],
    "ts.metrics.metric_cache_errors": [
        "GeneralMetricsCacheError",
        "MetricsCacheIOError",
        "MetricsCacheKeyError",
        "MetricsCachePyYamlError",
        "MetricsCacheTypeError",
        "MetricsCacheValueError",
    ],
    "ts.torch_handler.request_envelope.base": ["BaseEnvelope"],
    "ts.torch_handler.request_envelope.body": ["BodyEnvelope"],
    "ts.torch_handler.request_envelope.json": ["JSONEnvelope"],
    "ts.torch_handler.request_envelope.kserve": ["KServeEnvelope"],
    "ts.torch_handler.request_envelope.kservev2": ["KServev2Envelope"],
    "ts.torch_handler.unit_tests.test_utils.mock_context": ["MockContext"],
    "ts.model_server": ["start"],
}
NEEDS_TORCH = {
    "ts.torch_handler.base_handler": [
        "IPEX_AVAILABLE",
        "ONNX_AVAILABLE",
        "PROFILER_AVAILABLE",
        "PT230_AVAILABLE",
        "PT2_AVAILABLE",
        "XLA_AVAILABLE",
        "BaseHandler",
        "setup_ort_session",
    ],
}


@pytest.mark.parametrize(("module", "names"), SURFACE.items())
def test_surface(module: str, names: list[str]) -> None:
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(names)
    for name in names:
        assert hasattr(found, name)


def test_torch_surface() -> None:
    pytest.importorskip("torch")
    for module, names in NEEDS_TORCH.items():
        assert sorted(importlib.import_module(module).__all__) == sorted(names)


def test_version() -> None:
    assert ts.__version__ == "0.12.0"
    assert (Path(ts.__file__).parent / "version.txt").read_text().strip() == "0.12.0"
    assert relight.__version__ != ts.__version__


@pytest.mark.parametrize("modules", [["ts.context", "ts.handler_utils.utils", "ts.service", "ts.utils.util"]])
def test_light_imports(modules: list[str]) -> None:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"torch", "yaml", "psutil", "numpy", "asyncio", "msgspec", "httptools", "uvloop"}
    assert heavy.isdisjoint(loaded)
    assert not [name for name in loaded if name.startswith(("relight.serv", "relight.api", "relight.cli"))]


def test_every_module_of_the_package_is_listed() -> None:
    root = Path(ts.__file__).parent
    names = {
        ".".join(("ts", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        for path in root.rglob("*.py")
    }
    packages = {name for name in names if (root.parent / name.replace(".", "/") / "__init__.py").exists()}
    assert names - packages | {"ts"} == {*SURFACE, *NEEDS_TORCH}
