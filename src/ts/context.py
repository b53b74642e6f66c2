"""`ts.context`."""

from relight.sdk.context import Context, RequestProcessor

__all__ = ["Context", "RequestProcessor"]
