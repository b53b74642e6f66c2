"""A metric that a handler registers once and updates often."""

from __future__ import annotations

import abc
import logging
from typing import TYPE_CHECKING, Any

from relight.sdk.metrics import emission
from relight.sdk.metrics.errors import MetricsCacheTypeError
from relight.sdk.metrics.model import UNIT_NAMES, Dimension, MetricTypes

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


class MetricAbstract(abc.ABC):
    """A named series with a unit, a type and fixed dimension names.

    Args:
        metric_name: Name of the series.
        unit: Short unit (`ms`, `count`, ...) or any text.
        dimension_names: Label names, in the order of the values given later.
        metric_type: Type of the series.

    Raises:
        MetricsCacheTypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        _check_types(metric_name, unit, dimension_names, metric_type)
        self.metric_name = metric_name
        self.unit = UNIT_NAMES.get(unit, unit)
        self.dimension_names: list[str] = [] if dimension_names is None else dimension_names
        self.metric_type = metric_type

    @abc.abstractmethod
    def add_or_update(self, value: Any, dimension_values: Sequence[Any] | None = (), request_id: str = "") -> None:
        """Record a value."""

    @abc.abstractmethod
    def update(self, value: Any, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Record a value under other dimensions."""


class CachingMetric(MetricAbstract):
    """A metric that writes one line for each update."""

    def add_or_update(self, value: Any, dimension_values: Sequence[Any] | None = (), request_id: str = "") -> None:
        """Record a value.

        A wrong number of dimension values and a negative counter are logged, not raised: a metric must not fail a
        request.

        Args:
            value: The value; a counter's must not be negative.
            dimension_values: Label values, in the order of `dimension_names`.
            request_id: Ids of the requests that the value belongs to, joined by commas.

        Raises:
            TypeError: A counter was given something that is not a number.
        """
        names = self.dimension_names
        if dimension_values is None or len(dimension_values) != len(names):
            values = dimension_values if dimension_values is None else list(dimension_values)
            self._refuse("", value, f"Dimension values: {values} should correspond to Dimension names: {names}")
            return
        pairs = ",".join([f"{name}:{given}" for name, given in zip(names, dimension_values, strict=True)])
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            self._refuse(pairs, value, "Counter metric update value cannot be negative")
            return
        self.emit_metrics(request_id, value, pairs)

    def update(self, value: Any, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Record a value, replacing the metric's dimension names by those given. For old code only."""
        logger.warning("Overriding existing dimensions")
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

    def emit_metrics(self, request_id: str, value: Any, dimension_string: str) -> None:
        """Write the line of one update; `dimension_string` holds the `name:value` pairs joined by commas."""
        emission.emit(self.metric_name, self.unit, value, dimension_string, self.metric_type.name, request_id)

    def _refuse(self, dimensions: str, value: Any, reason: str) -> None:
        emission.complain(
            f"Failed to update metric with name:{self.metric_name} and dimensions: {dimensions} "
            f"with value: {value}: {reason}"
        )


def _check_types(metric_name: object, unit: object, dimension_names: object, metric_type: object) -> None:
    if not isinstance(metric_name, str):
        raise MetricsCacheTypeError("`metric_name` must be a str")
    if not isinstance(unit, str):
        raise MetricsCacheTypeError("`unit` must be a str")
    if dimension_names is not None and not isinstance(dimension_names, list):
        raise MetricsCacheTypeError("`dimension_names` should be a list of dimension name strings")
    if not isinstance(metric_type, MetricTypes):
        raise MetricsCacheTypeError("`metric_type` must be a MetricTypes enum")
