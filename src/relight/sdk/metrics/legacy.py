"""The older metrics API: `MetricsStore`, which collects `Metric` objects, and `emit_metrics`, which writes them.

Still the `metrics` of the mock context that handlers are unit-tested with.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from relight.sdk.metrics import emission
from relight.sdk.metrics.cache import SIZE_UNITS, TIME_UNITS
from relight.sdk.metrics.caching_metric import CachingMetric
from relight.sdk.metrics.model import UNIT_NAMES, Dimension, MetricTypes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Metric:
    """One value with its unit, dimensions and request id.

    Args:
        name: Name of the metric.
        value: The value.
        unit: Short unit (`ms`, `count`, ...) or any text.
        dimensions: Labels.
        request_id: Ids of the requests that the value belongs to, joined by commas.
        metric_method: `counter` for counters; kept as an attribute.
    """

    metric_type = MetricTypes.COUNTER

    def __init__(
        self,
        name: str,
        value: Any,
        unit: str | None,
        dimensions: Sequence[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = UNIT_NAMES.get(unit, unit or "")
        self.dimensions = list(dimensions)
        self.dimension_names = [dimension.name for dimension in self.dimensions]
        self.dimension_values = [dimension.value for dimension in self.dimensions]
        self.request_id = request_id
        self.metric_method = metric_method
        self._caching_metric = CachingMetric(name, unit or "", self.dimension_names, self.metric_type)

    def update(self, value: Any) -> None:
        """Write a line with another value; the object keeps its own."""
        self._caching_metric.add_or_update(value, self.dimension_values, self.request_id or "")

    def reset(self) -> None:
        """Write a line with value 0."""
        self.update(0)

    def to_dict(self) -> dict[str, Any]:
        """Return the metric as the dictionary that its JSON form has."""
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": self.dimensions,
            "Timestamp": int(time.time()),
            "HostName": emission.hostname(),
            "RequestId": self.request_id,
        }

    def __str__(self) -> str:
        dimensions = ",".join(str(dimension) for dimension in self.dimensions)
        return f"{self.name}.{self.unit}:{self.value}|#{dimensions}{emission.tail(self.request_id)}"


class MetricsStore:
    """Collects metrics in `store`; an update of one that is there already is written at once.

    Args:
        request_ids: Batch position to request id.
        model_name: Value of the default dimension `ModelName`.
    """

    def __init__(self, request_ids: Mapping[int, str] | None, model_name: str) -> None:
        self.store: list[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[str, Metric] = {}

    def add_counter(self, name: str, value: Any, idx: int | None = None, dimensions: Sequence[Dimension] = ()) -> None:
        """Collect a count."""
        self._add(name, value, "count", idx, dimensions, "counter")

    def add_time(
        self,
        name: str,
        value: Any,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] = (),
    ) -> None:
        """Collect a duration in `ms` or `s`.

        Raises:
            ValueError: The unit is another one.
        """
        if unit not in TIME_UNITS:
            raise ValueError(f"the unit for a timed metric should be one of {list(TIME_UNITS)}")
        self._add(name, value, unit, idx, dimensions)

    def add_size(
        self,
        name: str,
        value: Any,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] = (),
    ) -> None:
        """Collect a size in `MB`, `kB`, `GB` or `B`.

        Raises:
            ValueError: The unit is another one.
        """
        if unit not in SIZE_UNITS:
            raise ValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self._add(name, value, unit, idx, dimensions)

    def add_percent(self, name: str, value: Any, idx: int | None = None, dimensions: Sequence[Dimension] = ()) -> None:
        """Collect a percentage."""
        self._add(name, value, "percent", idx, dimensions)

    def add_error(self, name: str, value: Any, dimensions: Sequence[Dimension] = ()) -> None:
        """Collect an error, as a number or as text; it carries `Level:Error` and no request id."""
        self._keep(Metric(name, value, "", [*dimensions, Dimension("Level", "Error")]))

    def add_metric(
        self,
        name: str,
        value: Any,
        unit: str | None,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
    ) -> None:
        """Collect a value of any unit."""
        self._add(name, value, unit, idx, dimensions)

    def _add(
        self,
        name: str,
        value: Any,
        unit: str | None,
        idx: int | None,
        dimensions: Sequence[Dimension],
        method: str | None = None,
    ) -> None:
        ids = self.request_ids or {}
        request_id = ids[idx] if idx is not None and idx in ids else ",".join(ids.values())
        labels = [*dimensions, Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        self._keep(Metric(name, value, unit, labels, request_id, method))

    def _keep(self, metric: Metric) -> None:
        dimensions = ",".join(map(str, metric.dimensions))
        known = self.cache.setdefault(f"{metric.name}-{metric.unit}-{dimensions}-{metric.request_id}", metric)
        if known is metric:
            self.store.append(metric)
        else:
            known.update(metric.value)


class MetricEncoder(json.JSONEncoder):
    """A JSON encoder that knows `Metric` and `Dimension`."""

    def default(self, o: Any) -> Any:
        """Return what stands for a metric or dimension in JSON."""
        if isinstance(o, (Metric, Dimension)):
            return o.to_dict()
        return super().default(o)


def emit_metrics(metrics: Iterable[Metric] | None) -> None:
    """Write the collected metrics, one line each."""
    for metric in metrics or ():
        logging.getLogger().info("%s%s", emission.METRICS_PREFIX, metric)
