"""`ts.metrics.metric_cache_yaml_impl`."""

from relight.sdk.metrics.cache import MetricsCache as MetricsCacheYamlImpl

__all__ = ["MetricsCacheYamlImpl"]
