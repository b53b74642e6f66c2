"""Inputs of a gRPC request as text; lies beside the handler in its archive."""


def text(row, key, default=""):
    """Return an input as text."""
    value = row.get(key)
    if value is None:
        return default
    return value if isinstance(value, str) else bytes(value).decode()
