"""`ts.metrics.metric_cache_errors`."""

from relight.sdk.metrics.errors import (
    GeneralMetricsCacheError,
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from relight.sdk.metrics.yaml_error import MetricsCachePyYamlError

__all__ = [
    "GeneralMetricsCacheError",
    "MetricsCacheIOError",
    "MetricsCacheKeyError",
    "MetricsCachePyYamlError",
    "MetricsCacheTypeError",
    "MetricsCacheValueError",
]
