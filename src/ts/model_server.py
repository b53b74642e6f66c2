"""`python -m ts.model_server` is the `torchserve` command."""

import importlib
import sys

__all__ = ["start"]


def start() -> int | None:
    """Run the `torchserve` command with this process's arguments; returns its exit code."""
    # Imported late: a handler that imports `ts` must not pull the server into its worker.
    code: int | None = importlib.import_module("relight.cli.torchserve").main()
    return code


if __name__ == "__main__":
    sys.exit(start())
