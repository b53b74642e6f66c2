"""The metrics API: what is written for each call, to the byte, and what is refused."""

from __future__ import annotations

import copy
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from relight.sdk.metrics import CachingMetric, Dimension, MetricsCacheYamlImpl, MetricTypes, emission
from relight.sdk.metrics.errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from relight.sdk.metrics.legacy import Metric, MetricEncoder, MetricsStore, emit_metrics
from relight.sdk.metrics.yaml_error import MetricsCachePyYamlError

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 1795150686
Lines = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def fixed_host_and_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(emission, "_HOSTNAME", "vm")
    monkeypatch.setattr("relight.sdk.metrics.emission.time.time", lambda: SECONDS + 0.9)
    caplog.set_level(logging.INFO)


@pytest.fixture
def cache() -> MetricsCacheYamlImpl:
    cache = MetricsCacheYamlImpl(None)
    cache.initialize_cache()
    cache.model_name = "met"
    cache.set_request_ids({0: "r0", 1: "r1"})
    return cache


def line(body: str, ids: str = "r0,r1") -> str:
    name, _, rest = body.partition(":")
    return f"[METRICS]{name}:{rest}|#hostname:vm,{SECONDS}" + (f",{ids}" if ids else "")


def test_the_exact_line(cache: MetricsCacheYamlImpl, caplog: Lines) -> None:
    cache.set_request_ids({0: "8cf24f17-ed4f-4aa8-a457-62050df4a243"})
    cache.add_time("PredictionTime", 0.45)
    assert caplog.record_tuples == [
        (
            "root",
            logging.INFO,
            (
                "[METRICS]PredictionTime.Milliseconds:0.45|#ModelName:met,Level:Model|#type:GAUGE|"
                "#hostname:vm,1795150686,8cf24f17-ed4f-4aa8-a457-62050df4a243"
            ),
        )
    ]


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("add_counter", ("C", 1), line("C.Count:1|#ModelName:met,Level:Model|#type:COUNTER")),
        ("add_counter", ("C", 1, 1), line("C.Count:1|#ModelName:met,Level:Model|#type:COUNTER", "r1")),
        ("add_counter", ("C", 1, 7), line("C.Count:1|#ModelName:met,Level:Model|#type:COUNTER")),
        (
            "add_counter",
            ("C", 2, None, [Dimension("z", "eu")]),
            line("C.Count:2|#z:eu,ModelName:met,Level:Model|#type:COUNTER"),
        ),
        (
            "add_counter",
            ("C", 1, None, [Dimension("Level", "own")]),
            line("C.Count:1|#Level:own,ModelName:met|#type:COUNTER"),
        ),
        ("add_time", ("T", 2.5, 0, "s"), line("T.Seconds:2.5|#ModelName:met,Level:Model|#type:GAUGE", "r0")),
        ("add_time", ("T", None), line("T.Milliseconds:None|#ModelName:met,Level:Model|#type:GAUGE")),
        ("add_size", ("S", 3), line("S.Megabytes:3|#ModelName:met,Level:Model|#type:GAUGE")),
        ("add_size", ("S", 3, 0, "kB"), line("S.Kilobytes:3|#ModelName:met,Level:Model|#type:GAUGE", "r0")),
        ("add_percent", ("P", 9.5), line("P.Percent:9.5|#ModelName:met,Level:Model|#type:GAUGE")),
        ("add_error", ("E", 1), line("E.unit:1|#Level:Error|#type:COUNTER", "")),
        ("add_error", ("E", 1, [Dimension("a", "b")]), line("E.unit:1|#a:b,Level:Error|#type:COUNTER", "")),
        (
            "add_metric",
            ("M", 1, "km", None, [], MetricTypes.HISTOGRAM),
            line("M.km:1|#ModelName:met,Level:Model|#type:HISTOGRAM"),
        ),
        ("add_metric", ("M", 1, ""), line("M.unit:1|#ModelName:met,Level:Model|#type:COUNTER")),
    ],
)
def test_lines(
    cache: MetricsCacheYamlImpl, caplog: Lines, method: str, arguments: tuple[Any, ...], expected: str
) -> None:
    assert getattr(cache, method)(*arguments) is None
    assert caplog.messages == [expected]


def test_ids_during_load_and_outside_of_any_request(cache: MetricsCacheYamlImpl, caplog: Lines) -> None:
    cache.set_request_ids("uuid")
    cache.add_time("T", 1, 0)
    cache.set_request_ids(None)
    cache.add_counter("C", 1)
    assert caplog.messages == [
        line("T.Milliseconds:1|#ModelName:met,Level:Model|#type:GAUGE", "uuid"),
        line("C.Count:1|#Level:Error|#type:COUNTER", ""),
    ]


def test_first_use_fixes_the_unit_and_the_callers_list_stays(cache: MetricsCacheYamlImpl, caplog: Lines) -> None:
    dimensions = [Dimension("a", "b")]
    cache.add_time("T", 1, dimensions=dimensions)
    cache.add_time("T", 2, unit="s", dimensions=dimensions)
    assert caplog.messages[1] == line("T.Milliseconds:2|#a:b,ModelName:met,Level:Model|#type:GAUGE")
    assert [str(dimension) for dimension in dimensions] == ["a:b"]


def test_refused_updates_are_logged(cache: MetricsCacheYamlImpl, caplog: Lines) -> None:
    cache.add_metric_to_cache("C", "count", ["z"])
    metric = cache.get_metric("C")
    metric.add_or_update(2, ["a", "b"])
    metric.add_or_update(-2, ["eu"])
    metric.add_or_update(1, None)
    assert caplog.messages == [
        (
            "[METRICS]Failed to update metric with name:C and dimensions:  with value: 2: "
            "Dimension values: ['a', 'b'] should correspond to Dimension names: ['z']"
        ),
        (
            "[METRICS]Failed to update metric with name:C and dimensions: z:eu with value: -2: "
            "Counter metric update value cannot be negative"
        ),
        (
            "[METRICS]Failed to update metric with name:C and dimensions:  with value: 1: "
            "Dimension values: None should correspond to Dimension names: ['z']"
        ),
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize(
    ("method", "arguments", "error", "text"),
    [
        ("add_time", ("T", 1, None, "h"), MetricsCacheValueError, "should be one of ['ms', 's']"),
        ("add_size", ("S", 1, None, "h"), ValueError, "is one of ['MB','kB', 'GB', 'B']"),
        ("add_counter", ("C", "x"), TypeError, "'<' not supported"),
        ("add_error", ("E", "text"), TypeError, "'<' not supported"),
        ("add_metric", (3, 1, ""), MetricsCacheTypeError, "`metric_name` must be a str"),
        ("add_metric", ("M", 1, None), MetricsCacheTypeError, "`unit` must be a str"),
        ("add_metric", ("M", 1, "", None, [], "counter"), MetricsCacheTypeError, "must be a MetricTypes enum"),
        ("add_metric_to_cache", ("M", "ms", ("a",)), MetricsCacheTypeError, "list of dimension name strings"),
        ("get_metric", ("nope",), MetricsCacheKeyError, "type 'MetricTypes.COUNTER' and name 'nope' doesn't exist"),
        ("get_metric", ("nope", "gauge"), MetricsCacheTypeError, "`metric_type` must be a MetricTypes enum"),
    ],
)
def test_errors(
    cache: MetricsCacheYamlImpl, method: str, arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        getattr(cache, method)(*arguments)
    assert text in str(caught.value)


def test_registered_metric(cache: MetricsCacheYamlImpl, caplog: Lines) -> None:
    metric = cache.add_metric_to_cache(
        metric_name="K", unit="ms", dimension_names=["a", "b"], metric_type=MetricTypes.GAUGE
    )
    assert cache.get_metric("K", MetricTypes.GAUGE) is metric
    metric.add_or_update(3, ["x", "y"])
    metric.add_or_update(value=4, dimension_values=["x", "y"], request_id="rid")
    metric.update(5, "r9", [Dimension("q", "w")])
    assert caplog.messages == [
        line("K.Milliseconds:3|#a:x,b:y|#type:GAUGE", ""),
        line("K.Milliseconds:4|#a:x,b:y|#type:GAUGE", "rid"),
        "Overriding existing dimensions",
        line("K.Milliseconds:5|#q:w|#type:GAUGE", "r9"),
    ]
    assert metric.dimension_names == ["q"]
    replaced = cache.add_metric_to_cache("K", "ms", ["a"], MetricTypes.GAUGE)
    assert caplog.messages[-1] == "Overriding existing key MetricTypes.GAUGE:K"
    assert cache.get_metric("K", MetricTypes.GAUGE) is replaced


def test_no_dimensions_by_default() -> None:
    first, second = CachingMetric("a", "ms"), CachingMetric("b", "ms")
    first.dimension_names.append("x")
    assert second.dimension_names == []


def test_sink_replaces_the_log(cache: MetricsCacheYamlImpl, caplog: Lines) -> None:
    lines: list[str] = []
    emission.set_sink(lines.append)
    try:
        cache.add_counter("C", 1)
    finally:
        emission.set_sink(None)
    cache.add_counter("C", 2)
    assert lines == [line("C.Count:1|#ModelName:met,Level:Model|#type:COUNTER")]
    assert caplog.messages == [line("C.Count:2|#ModelName:met,Level:Model|#type:COUNTER")]


def test_a_copy_has_its_own_requests_and_the_same_metrics(cache: MetricsCacheYamlImpl) -> None:
    clone = copy.deepcopy(cache)
    clone.set_request_ids({0: "other"})
    clone.add_metric_to_cache("new", "ms")
    assert cache.request_ids == {0: "r0", 1: "r1"}
    assert cache.get_metric("new") is clone.get_metric("new")


def test_built_in_definitions(cache: MetricsCacheYamlImpl) -> None:
    assert cache.cache_keys() == ["gauge:HandlerTime", "gauge:PredictionTime"]
    assert MetricsCacheYamlImpl("").cache == {}


def test_definitions_from_a_file(tmp_path: Path, caplog: Lines) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(
        "dimensions: [&m ModelName, &l Level]\n"
        "ts_metrics: {}\n"
        "model_metrics:\n"
        "  counter:\n"
        "    - {name: C1, unit: Count, dimensions: [*m, *l]}\n"
        "  gauge:\n"
        "    - {name: HandlerTime, unit: ms, dimensions: [*m, *l]}\n"
        "  histogram:\n"
    )
    cache = MetricsCacheYamlImpl(path)
    assert cache.cache == {}
    cache.initialize_cache()
    assert cache.cache_keys() == ["counter:C1", "gauge:HandlerTime"]
    assert cache.get_metric("HandlerTime", MetricTypes.GAUGE).unit == "Milliseconds"
    assert not caplog.records


@pytest.mark.parametrize("content", ["", "# nothing\n", "ts_metrics: {}\n", "model_metrics:\n"])
def test_files_that_declare_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(content)
    cache = MetricsCacheYamlImpl(path)
    cache.initialize_cache()
    assert cache.cache_keys() == []


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        ("a: [", MetricsCachePyYamlError, "Error parsing file: Error parsing file "),
        ("- 1", MetricsCacheValueError, "must be a mapping"),
        ("model_metrics: [1]", MetricsCacheValueError, "must map metric types"),
        ("model_metrics: {gauge: 3}", MetricsCacheValueError, "must be a list"),
        ("model_metrics: {gauge: [3]}", MetricsCacheValueError, "must be a list"),
        (
            "model_metrics: {summary: []}",
            MetricsCacheKeyError,
            "Invalid metric type: 'summary' is not a valid MetricTypes",
        ),
        ("model_metrics: {gauge: [{unit: x}]}", MetricsCacheKeyError, "Key not found in cache spec: 'name'"),
        (
            "model_metrics: {gauge: [{name: x, unit: x}]}",
            MetricsCacheKeyError,
            "Key not found in cache spec: 'dimensions'",
        ),
    ],
)
def test_bad_files(tmp_path: Path, content: str, error: type[Exception], text: str) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(content)
    with pytest.raises(error) as caught:
        MetricsCacheYamlImpl(path).initialize_cache()
    assert text in str(caught.value)


def test_absent_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    with pytest.raises(MetricsCacheIOError) as caught:
        MetricsCacheYamlImpl(path)
    assert str(caught.value).startswith(f"Error reading file: Error reading file {path}: [Errno 2] No such file")


def test_store(caplog: Lines) -> None:
    store = MetricsStore({0: "r0", 1: "r1"}, "mm")
    store.add_counter("A", 1)
    store.add_counter("A", 2, 1)
    store.add_time("T", 3.5, None, "s", [Dimension("a", "b")])
    store.add_error("E", "boom")
    assert not caplog.records
    emit_metrics(store.store)
    store.add_counter("A", 5)
    assert caplog.messages == [
        f"[METRICS]A.Count:1|#ModelName:mm,Level:Model|#hostname:vm,{SECONDS},r0,r1",
        f"[METRICS]A.Count:2|#ModelName:mm,Level:Model|#hostname:vm,{SECONDS},r1",
        f"[METRICS]T.Seconds:3.5|#a:b,ModelName:mm,Level:Model|#hostname:vm,{SECONDS},r0,r1",
        f"[METRICS]E.unit:boom|#Level:Error|#hostname:vm,{SECONDS}",
        f"[METRICS]A.Count:5|#ModelName:mm,Level:Model|#type:COUNTER|#hostname:vm,{SECONDS},r0,r1",
    ]
    assert [metric.value for metric in store.store] == [1, 2, 3.5, "boom"]
    with pytest.raises(ValueError, match="timed metric"):
        store.add_time("T", 1, None, "h")
    with pytest.raises(ValueError, match="size based metric"):
        store.add_size("S", 1, None, "h")


def test_legacy_metric(caplog: Lines) -> None:
    metric = Metric("A", 1, "ms", [Dimension("a", "b")], "rid")
    metric.update(5)
    metric.reset()
    assert caplog.messages == [
        line("A.Milliseconds:5|#a:b|#type:COUNTER", "rid"),
        line("A.Milliseconds:0|#a:b|#type:COUNTER", "rid"),
    ]
    assert json.loads(json.dumps([metric], cls=MetricEncoder)) == [
        {
            "MetricName": "A",
            "Value": 1,
            "Unit": "Milliseconds",
            "Dimensions": [{"Name": "a", "Value": "b"}],
            "Timestamp": SECONDS,
            "HostName": "vm",
            "RequestId": "rid",
        }
    ]
    with pytest.raises(TypeError):
        json.dumps({1: {2}}, cls=MetricEncoder)
