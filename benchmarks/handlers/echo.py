"""Sends each body back: the cost of moving bytes."""


def handle(data, context):  # noqa: ARG001
    """Answer each row with what came in."""
    return [row["body"] for row in data] if data else None
