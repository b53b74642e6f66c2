"""`ts.torch_handler.unit_tests`."""
