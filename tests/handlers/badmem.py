"""Its initialization raises MemoryError."""

# ruff: noqa: ARG002 - the signatures are those of a handler


class Broken:
    """Never comes up."""

    def initialize(self, context):
        raise MemoryError

    def handle(self, data, context):
        return ["never"] * len(data)
