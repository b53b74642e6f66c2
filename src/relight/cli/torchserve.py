"""The `torchserve` command: starts the server process, waits until it serves, and stops it.

Messages, their order and the exit codes are TorchServe's (configuration.md §1), but that a start which fails says why
and exits with 1. Only light modules are imported here: a start is waited for, and `--version` should be quick.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from relight.cli import process
from relight.command_line import CommandLine
from relight.properties import ConfigurationError, read_properties, substitute
from relight.readiness import READY_FD
from relight.version import TORCHSERVE_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_STOP_TIMEOUT_S = 60.0
_FAILED_END_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments without the program's name; those of the process by default.

    Returns:
        The exit status. In the foreground the process becomes the server, and this does not return.

    Raises:
        SystemExit: With status 2 after a usage error, with status 0 after `--help`.
    """
    args = CommandLine.parse(sys.argv[1:] if argv is None else argv)
    try:
        pid_file = process.PidFile()
        pid = pid_file.read()
        if pid is not None and not process.is_alive(pid):
            print("Removing orphan pid file.")
            pid_file.remove()
            pid = None
        if args.version:
            print(f"TorchServe Version is {TORCHSERVE_VERSION}")
            return 0
        if args.stop:
            return _stop(args, pid_file, pid)
        return _start(args, pid_file, pid)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        print(f"torchserve: {error.strerror}: {error.filename or 'the server process'}")
        return 1


def _stop(args: CommandLine, pid_file: process.PidFile, pid: int | None) -> int:
    if pid is None or not process.is_server(pid):
        print("TorchServe is not currently running.")
        return 0
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        print("TorchServe already stopped.")
        pid_file.remove(pid)
        return 0
    except PermissionError:
        print(f"TorchServe could not be stopped: no permission to signal process {pid}.")
        return 1
    pid_file.remove(pid)
    if not args.foreground:
        print("TorchServe has stopped.")
    elif not process.wait_for_end(pid, _STOP_TIMEOUT_S):
        print("Stopping TorchServe took too long.")
    return 0


def _start(args: CommandLine, pid_file: process.PidFile, pid: int | None) -> int:
    if pid is not None and process.is_server(pid):
        print("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
        return 1
    try:
        problem = _check(args)
    except ConfigurationError as error:
        problem = f"Invalid configuration: {error.message}"
    if problem is not None:
        print(problem)
        return 1
    command = process.server_command(args.server_argv())
    if args.foreground:
        _become_server(command, pid_file)
    return _start_in_background(command, pid_file)


def _check(args: CommandLine) -> str | None:
    """What keeps the server from starting, or None. The order is part of the contract."""
    if args.log_config and not Path(args.log_config).is_file():
        return f"--log-config file not found: {Path(args.log_config).resolve()}"
    temp = os.environ.get("TEMP")
    if temp is not None and not Path(temp).is_dir():
        return f"Invalid temp directory: {temp}, please check TEMP environment variable."
    config = os.environ.get("TS_CONFIG_FILE") or args.ts_config
    if config and not Path(config).is_file():
        return f"--ts-config file not found: {config}"
    settings = _file_values(config)
    if settings.get("vmargs"):
        print(f"Warning: TorchServe is using non-default JVM parameters: {settings['vmargs']}")
    plugins = args.plugins_path or settings.get("plugins_path")
    if plugins:
        print(f"Warning: Java plugins cannot be loaded without a JVM, ignoring: {plugins}")

    store = args.model_store or settings.get("model_store")
    if not store:
        return "Missing mandatory parameter --model-store"
    if not Path(store).is_dir():
        return f"--model-store directory not found: {store}"
    if args.workflow_store and not Path(args.workflow_store).is_dir():
        return f"--workflow-store directory not found: {args.workflow_store}"
    if args.cpp_log_config and not Path(args.cpp_log_config).is_file():
        return f"--cpp-log-config file not found: {Path(args.cpp_log_config).resolve()}"
    return None


def _file_values(config: str | None) -> dict[str, str]:
    """The three values of the properties file that the checks need."""
    path = Path(config or "config.properties")
    if not path.is_file():
        return {}
    properties = read_properties(path)
    values: dict[str, str] = {}
    for key in ("vmargs", "plugins_path", "model_store"):
        if key in properties:
            value, line = properties[key]
            values[key] = substitute(value, os.environ, f"{key}, {path}:{line}")
    from_environment = os.environ.get("TS_MODEL_STORE")
    use_environment = properties["enable_envvars_config"].value if "enable_envvars_config" in properties else ""
    if from_environment and use_environment.lower() == "true":
        values["model_store"] = from_environment
    return values


def _become_server(command: list[str], pid_file: process.PidFile) -> NoReturn:
    # Not a child: signals and the exit status are the server's own, which containers and service managers rely on.
    pid_file.write(os.getpid())
    os.environ.pop(READY_FD, None)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError:
        pid_file.remove(os.getpid())
        raise


def _start_in_background(command: list[str], pid_file: process.PidFile) -> int:
    sys.stdout.flush()

    def interrupted(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - the signature of a signal handler
        raise SystemExit(128 + number)

    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupted) for number in handled}
    pid = 0
    try:
        pid, reading = process.spawn(command)
        pid_file.write(pid)
        outcome = process.wait_until_ready(pid, reading)
    except BaseException:
        _end(pid, pid_file)
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if outcome.error is None:
        return 0
    # It is ending by itself as a rule, and should clean up undisturbed.
    process.wait_for_end(pid, _FAILED_END_S)
    _end(pid, pid_file)
    print(f"TorchServe did not start: {outcome.error}")
    return 1


def _end(pid: int, pid_file: process.PidFile) -> None:
    """End a server whose start failed or was cancelled."""
    if process.is_alive(pid):
        os.kill(pid, signal.SIGTERM)
        if not process.wait_for_end(pid, _STOP_TIMEOUT_S):
            os.kill(pid, signal.SIGKILL)
    pid_file.remove(pid)
