"""The metrics API of handlers: `context.metrics` and what it hands out.

Every update becomes one line, `[METRICS]<name>.<Unit>:<value>|#<dim>:<val>,...|#type:<TYPE>|#hostname:<host>,<unix
seconds>[,<request ids>]`, which the frontend parses; names, signatures, texts and the line are TorchServe's.
"""

from relight.sdk.metrics.cache import MetricsCacheYamlImpl
from relight.sdk.metrics.caching_metric import CachingMetric
from relight.sdk.metrics.model import Dimension, MetricTypes, Units

__all__ = ["CachingMetric", "Dimension", "MetricTypes", "MetricsCacheYamlImpl", "Units"]
