"""`ts.metrics.metric_cache_yaml_impl`."""

from relight.sdk.metrics.cache import MetricsCacheYamlImpl

__all__ = ["MetricsCacheYamlImpl"]
