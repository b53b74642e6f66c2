"""`ts.metrics.metric_abstract`."""

from relight.sdk.metrics.caching_metric import MetricAbstract

__all__ = ["MetricAbstract"]
