"""`ts.metrics.caching_metric`."""

from relight.sdk.metrics.caching_metric import CachingMetric

__all__ = ["CachingMetric"]
