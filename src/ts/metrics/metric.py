"""`ts.metrics.metric`."""

from relight.sdk.metrics.legacy import Metric

__all__ = ["Metric"]
