"""`ts.metrics.unit`."""

from relight.sdk.metrics.model import Units

__all__ = ["Units"]
