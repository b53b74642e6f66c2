"""`ts.metrics.metric_encoder`."""

from relight.sdk.metrics.legacy import MetricEncoder

__all__ = ["MetricEncoder"]
