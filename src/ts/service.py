"""`ts.service`."""

from relight.sdk.errors import PredictionException
from relight.sdk.metrics.legacy import emit_metrics
from relight.sdk.service import PREDICTION_METRIC, Service

__all__ = ["PREDICTION_METRIC", "PredictionException", "Service", "emit_metrics"]
