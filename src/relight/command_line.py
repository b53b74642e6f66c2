"""The flags of `torchserve`, shared by the command that operators type and the server process that it starts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SERVER_MARKER", "CommandLine"]

SERVER_MARKER = "org.pytorch.serve.ModelServer"
"""An element of the argv of every server process, and of no other. Process managers (the SageMaker toolkit,
`torchserve --stop`) find the server by it, as they found TorchServe's JVM."""


class CommandLine(NamedTuple):
    """The parsed flags. Not a dataclass, because importing those takes a third of the time of `torchserve --version`.

    Every attribute is named after its option. `models` is the text of `load_models`: the values of `--models` joined by
    commas.
    """

    version: bool = False
    start: bool = False
    stop: bool = False
    ts_config: str | None = None
    model_store: str | None = None
    workflow_store: str | None = None
    models: str | None = None
    log_config: str | None = None
    cpp_log_config: str | None = None
    foreground: bool = False
    no_config_snapshots: bool = False
    plugins_path: str | None = None
    disable_token_auth: bool = False
    enable_model_api: bool = False

    @classmethod
    def parse(cls, argv: Sequence[str]) -> CommandLine:
        """Parse the arguments of `torchserve`, or those of the server process, which begin with `SERVER_MARKER`.

        Raises:
            SystemExit: With status 2 after a usage error, with status 0 after `--help`.
        """
        arguments = list(argv[1:] if argv[:1] == [SERVER_MARKER] else argv)
        namespace = _parser().parse_args(arguments)
        if namespace.models is not None:
            namespace.models = ",".join(namespace.models)
        return cls(**vars(namespace))

    def server_argv(self) -> list[str]:
        """The arguments for the server process: `SERVER_MARKER` first, then what `parse` turns into an equal object.

        What only concerns the command itself (`--version`, `--start`, `--stop`, `--foreground`) is left out.
        """
        argv = [SERVER_MARKER]
        for name, value in self._asdict().items():
            option = "--" + name.replace("_", "-")
            if name in ("version", "start", "stop", "foreground") or value is None or value is False:
                continue
            argv.append(option if value is True else f"{option}={value}")
        return argv


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchserve", description="Torchserve")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    action.add_argument("--start", action="store_true", help="start the server (the default)")
    action.add_argument("--stop", action="store_true", help="stop the running server")
    parser.add_argument(
        "--ts-config", metavar="FILE", help="properties file; the variable TS_CONFIG_FILE goes before it"
    )
    parser.add_argument("--model-store", metavar="DIR", help="folder that holds the model archives")
    parser.add_argument("--workflow-store", metavar="DIR", help="folder that holds the workflow archives")
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="[NAME=]LOCATION",
        help='models to load at start: archives, folders or urls; or "all"',
    )
    parser.add_argument("--log-config", metavar="FILE", help="logging configuration (Log4j2 XML)")
    parser.add_argument("--cpp-log-config", metavar="FILE", help="accepted for compatibility: there is no C++ backend")
    parser.add_argument(
        "--foreground", action="store_true", help="stay in the foreground; with --stop, wait for the end"
    )
    parser.add_argument(
        "--no-config-snapshots", "--ncs", action="store_true", help="neither write snapshots nor start from the newest"
    )
    parser.add_argument(
        "--plugins-path", "--ppath", metavar="PATH", help="accepted for compatibility: Java plugins cannot load"
    )
    parser.add_argument("--disable-token-auth", "--dt", action="store_true", help="serve without token authorization")
    parser.add_argument(
        "--enable-model-api", action="store_true", help="allow clients to register and unregister models"
    )
    return parser
