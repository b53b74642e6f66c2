"""The server process: `python -m relight.main org.pytorch.serve.ModelServer [flags]`.

It reads the settings and starts importing torch where the first models need it, before it imports the server itself.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from relight.command_line import CommandLine
from relight.readiness import Readiness
from relight.settings import ConfigurationError, Settings, load_settings

if TYPE_CHECKING:
    from relight.serving.launchers.forkserver import ForkServerLauncher


def main(argv: list[str] | None = None) -> int:
    """Run the server until it is told to stop.

    Args:
        argv: Arguments; the process's own by default.

    Returns:
        The exit status: 1 if it could not start, 128 + n if signal n stopped it.
    """
    report = Readiness()
    try:
        settings = load_settings(CommandLine.parse(sys.argv[1:] if argv is None else argv))
    except ConfigurationError as error:
        print(f"Invalid configuration: {error.message}", flush=True)  # noqa: T201 - part of the command's interface
        report.failed(f"Invalid configuration: {error.message}")
        return 1
    launcher = _start_launcher(settings)
    # Imported late: the template's imports run in parallel with these.
    from relight.server import run

    return run(settings, launcher, report)


def _start_launcher(settings: Settings) -> ForkServerLauncher:
    """Start the template that the first models are likely to need, before anything else is imported."""
    from relight.serving.launchers.forkserver import ForkServerLauncher

    launcher = ForkServerLauncher(_worker_environment(settings))
    for torch in _first_needs(settings):
        launcher.prepare(torch=torch)
    return launcher


def _first_needs(settings: Settings) -> set[bool]:
    """The templates that start-up models need: with torch or without."""
    from relight.serving.torch_need import location_wants_torch

    store = settings.model_store
    if store is None:
        return set()
    if settings.load_models == "all":
        locations = [path.name for path in store.glob("*.mar")]
    else:
        locations = [source.location for source in settings.load_models]
    needs = (location_wants_torch(store, location) for location in locations)
    return {need for need in needs if need is not None}


def _worker_environment(settings: Settings) -> dict[str, str]:
    import re

    hidden = re.compile(settings.blacklist_env_vars) if settings.blacklist_env_vars else None
    return {name: value for name, value in os.environ.items() if hidden is None or not hidden.fullmatch(name)}


if __name__ == "__main__":
    sys.exit(main())
