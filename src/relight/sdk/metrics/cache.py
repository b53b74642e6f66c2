"""`context.metrics`: the metrics of one worker."""

from __future__ import annotations

import abc
import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relight.sdk.metrics.caching_metric import CachingMetric
from relight.sdk.metrics.errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from relight.sdk.metrics.model import Dimension, MetricTypes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")

_MODEL_DIMENSIONS = ("ModelName", "Level")
_BUILT_IN_GAUGES = ("HandlerTime", "PredictionTime")


class MetricCacheAbstract(abc.ABC):
    """A cache of metrics by type and name, filled by `initialize_cache` and by first use.

    Args:
        config_file_path: Where the definitions are; None where there is nothing to read.

    Attributes:
        cache: Type to name to metric.
        store: Kept for old code, which reads it; always empty.
        request_ids: Batch position to request id, or one id during load; set by the worker.
        model_name: Value of the default dimension `ModelName`; set by the worker.
    """

    def __init__(self, config_file_path: str | os.PathLike[str] | None) -> None:
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.store: list[Any] = []
        self.request_ids: Mapping[int, str] | str | None = None
        self.model_name: str | None = None
        self.config_file_path = config_file_path

    @abc.abstractmethod
    def initialize_cache(self) -> None:
        """Fill the cache with the declared metrics."""

    def set_request_ids(self, request_ids: Mapping[int, str] | str | None) -> None:
        """Name the requests that updates belong to from now on."""
        self.request_ids = request_ids

    def cache_keys(self) -> list[str]:
        """Return `type:name` of every registered metric."""
        return [f"{kind.value}:{name}" for kind, metrics in self.cache.items() for name in metrics]

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Register a metric without recording anything; one of the same type and name is replaced.

        Args:
            metric_name: Name of the metric.
            unit: Short unit (`ms`, `count`, ...) or any text.
            dimension_names: All label names; none are added by default here.
            metric_type: Type of the metric.

        Raises:
            MetricsCacheTypeError: An argument has the wrong type.
        """
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type)
        metrics = self.cache.setdefault(metric_type, {})
        if metric_name in metrics:
            logger.warning("Overriding existing key %s:%s", metric_type, metric_name)
        metrics[metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """Return a registered metric.

        Raises:
            MetricsCacheKeyError: There is none of this type and name.
            MetricsCacheTypeError: An argument has the wrong type.
        """
        if not isinstance(metric_name, str):
            raise MetricsCacheTypeError("`metric_name` must be a str")
        if not isinstance(metric_type, MetricTypes):
            raise MetricsCacheTypeError("`metric_type` must be a MetricTypes enum")
        metric = self.cache.get(metric_type, {}).get(metric_name)
        if metric is None:
            raise MetricsCacheKeyError(f"Metric of type '{metric_type}' and name '{metric_name}' doesn't exist")
        return metric

    def add_metric(
        self,
        name: str,
        value: Any,
        unit: str,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Record a value, registering the metric on first use.

        The dimensions `ModelName` and `Level` are added unless given. The first call, or the metrics file, fixes unit
        and dimension names.

        Args:
            name: Name of the metric.
            value: The value.
            unit: Short unit (`ms`, `count`, ...) or any text.
            idx: Batch position of the request that the value belongs to; None for the whole batch.
            dimensions: Labels of the caller's own; the sequence is not changed.
            metric_type: Type of the metric.

        Raises:
            MetricsCacheTypeError: An argument has the wrong type.
        """
        names, values = self._with_defaults(dimensions)
        self._record(name, value, unit, (names, values), metric_type, self._request_id(idx))

    def add_counter(self, name: str, value: Any, idx: int | None = None, dimensions: Sequence[Dimension] = ()) -> None:
        """Add to a counter; see `add_metric`."""
        self.add_metric(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: Any,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Record a duration in `ms` or `s`; see `add_metric`.

        Raises:
            MetricsCacheValueError: The unit is another one.
        """
        if unit not in TIME_UNITS:
            raise MetricsCacheValueError(f"the unit for a timed metric should be one of {list(TIME_UNITS)}")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: Any,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Record a size in `MB`, `kB`, `GB` or `B`; see `add_metric`.

        Raises:
            ValueError: The unit is another one.
        """
        if unit not in SIZE_UNITS:
            raise ValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: Any,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Record a percentage; see `add_metric`."""
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: Any, dimensions: Sequence[Dimension] = ()) -> None:
        """Add to an error counter. It carries `Level:Error` and never a request id; the value is a number."""
        names = [*(dimension.name for dimension in dimensions), "Level"]
        values = [*(dimension.value for dimension in dimensions), "Error"]
        self._record(name, value, "", (names, values), MetricTypes.COUNTER, "")

    def _record(
        self,
        name: str,
        value: Any,
        unit: str,
        labels: tuple[list[str], list[Any]],
        metric_type: MetricTypes,
        request_id: str,
    ) -> None:
        metrics = self.cache.get(metric_type)
        metric = metrics.get(name) if metrics is not None else None
        if metric is None:
            metric = self.add_metric_to_cache(name, unit, list(labels[0]), metric_type)
        metric.add_or_update(value, labels[1], request_id)

    def _with_defaults(self, dimensions: Sequence[Dimension]) -> tuple[list[str], list[Any]]:
        names = [dimension.name for dimension in dimensions]
        values = [dimension.value for dimension in dimensions]
        if not self.request_ids:
            return [*names, "Level"], [*values, "Error"]
        for name, value in zip(_MODEL_DIMENSIONS, (self.model_name, "Model"), strict=True):
            if name not in names:
                names.append(name)
                values.append(value)
        return names, values

    def _request_id(self, idx: int | None) -> str:
        ids = self.request_ids
        if not ids:
            return ""
        if isinstance(ids, str):
            return ids
        if idx is not None and idx in ids:
            return ids[idx]
        return ",".join(ids.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> MetricCacheAbstract:
        # Concurrent requests of one worker each get their own request ids; the metrics stay the worker's.
        clone = copy.copy(self)
        memo[id(self)] = clone
        return clone


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """The metrics that the section `model_metrics` of a metrics file declares.

    Without a file it knows the two metrics that every worker records, `HandlerTime` and `PredictionTime`.

    Args:
        config_file_path: The metrics file; None or empty for none.

    Raises:
        MetricsCacheIOError: The file cannot be read.
        MetricsCachePyYamlError: The file is not YAML.
    """

    def __init__(self, config_file_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(config_file_path)
        self._parsed_file = read_metrics_file(config_file_path) if config_file_path else None

    def initialize_cache(self) -> None:
        """Register the declared metrics. A file without the section, or with an empty one, declares none.

        Raises:
            MetricsCacheKeyError: An unknown metric type, or an entry without `name`, `unit` or `dimensions`.
            MetricsCacheValueError: The section is not made of lists of entries by type.
        """
        if not self.config_file_path:
            for name in _BUILT_IN_GAUGES:
                self.add_metric_to_cache(name, "ms", list(_MODEL_DIMENSIONS), MetricTypes.GAUGE)
            return
        section = (self._parsed_file or {}).get("model_metrics") or {}
        if not isinstance(section, dict):
            raise MetricsCacheValueError("`model_metrics` must map metric types to lists of metrics")
        for type_name, entries in section.items():
            self._add_entries(type_name, entries or [])

    def _add_entries(self, type_name: str, entries: Any) -> None:
        try:
            metric_type = MetricTypes(type_name)
        except ValueError as error:
            raise MetricsCacheKeyError(f"Invalid metric type: {error}") from error
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise MetricsCacheValueError(f"`model_metrics.{type_name}` must be a list of metrics")
        for entry in entries:
            try:
                name, unit, names = entry["name"], entry["unit"], entry["dimensions"]
            except KeyError as error:
                raise MetricsCacheKeyError(f"Key not found in cache spec: {error}") from error
            self.add_metric_to_cache(name, unit, names, metric_type)


def read_metrics_file(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return a metrics file's content.

    Raises:
        MetricsCacheIOError: The file cannot be read.
        MetricsCachePyYamlError: The file is not YAML.
        MetricsCacheValueError: The file is not a mapping.
    """
    # Workers without a metrics file never need PyYAML for this.
    import yaml

    from relight.sdk.metrics.yaml_error import MetricsCachePyYamlError

    try:
        with Path(path).open(encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise MetricsCacheIOError(f"Error reading file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise MetricsCachePyYamlError(f"Error parsing file {path}: {error}") from error
    if content is not None and not isinstance(content, dict):
        raise MetricsCacheValueError(f"Metrics file {path} must be a mapping")
    return content
