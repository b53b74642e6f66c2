"""`ts.metrics.metrics_store`."""

from relight.sdk.metrics.legacy import MetricsStore

__all__ = ["MetricsStore"]
