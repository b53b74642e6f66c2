"""`ts.metrics.metric_type_enum`."""

from relight.sdk.metrics.model import MetricTypes

__all__ = ["MetricTypes"]
