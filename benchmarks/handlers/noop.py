"""Does nothing: what remains is the server's own cost."""


def handle(data, context):  # noqa: ARG001
    """Answer ``ok`` for each row."""
    return ["ok"] * len(data) if data else None
