"""`ts.torch_handler.unit_tests.test_utils.mock_context`."""

from relight.sdk.testing import MockContext

__all__ = ["MockContext"]
