"""`ts.metrics.dimension`."""

from relight.sdk.metrics.model import Dimension

__all__ = ["Dimension"]
