"""`ts.metrics.metric_cache_abstract`."""

from relight.sdk.metrics.cache import MetricCacheAbstract

__all__ = ["MetricCacheAbstract"]
