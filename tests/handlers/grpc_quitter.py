"""Its worker process ends while it loads."""

# ruff: noqa: ARG002 - the signatures are those of a handler

import os


class Quitter:
    """Never comes up."""

    def initialize(self, context):
        os._exit(3)

    def handle(self, data, context):
        return ["never"] * len(data)
