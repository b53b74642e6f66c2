"""`ts.handler_utils.timer`."""

from relight.sdk.timing import timed

__all__ = ["timed"]
