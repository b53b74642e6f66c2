"""`ts.handler_utils.utils`."""

from relight.sdk.streaming import send_intermediate_predict_response
from relight.sdk.util import import_class

__all__ = ["import_class", "send_intermediate_predict_response"]
