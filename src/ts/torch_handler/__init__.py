"""`ts.torch_handler`: the stock handlers."""
