"""Where the text of a setting comes from, and which source goes before which (configuration.md §2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relight.options import boolean
from relight.properties import ConfigurationError, read_properties, substitute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from relight.command_line import CommandLine
    from relight.options import Option

__all__ = ["Entry", "collect", "config_file", "environment_names"]


class Entry(NamedTuple):
    """The text of a setting, and what to call the place it comes from: `file:line`, a flag or a variable."""

    text: str
    source: str


def collect(
    args: CommandLine, environ: Mapping[str, str], cwd: Path, options: Mapping[str, Option]
) -> tuple[Path | None, dict[str, Entry]]:
    """The file that was read, if any, and every key that some source sets.

    Args:
        args: The parsed command line.
        environ: The environment.
        cwd: The folder that relative paths start from.
        options: The keys that `TS_*` variables may set.

    Raises:
        ConfigurationError: The file cannot be read, or it names a variable that is not set.
    """
    path = config_file(args, environ, cwd)
    entries = _from_file(path, cwd, environ) if path else {}
    use_environment = "enable_envvars_config" in entries and boolean(entries["enable_envvars_config"].text)
    entries.update(_from_command_line(args))
    if use_environment:
        entries.update(_from_environment(entries, environ, options))
    entries.update(_from_special_variables(environ))
    return path, entries


def config_file(args: CommandLine, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The properties file to read, as it was named, or None where there is none.

    Raises:
        ConfigurationError: A file was named that does not exist.
    """
    named = environ.get("TS_CONFIG_FILE") or args.ts_config
    if named:
        if not (cwd / named).is_file():
            raise ConfigurationError(f"--ts-config file not found: {named}")
        return Path(named)
    return Path("config.properties") if (cwd / "config.properties").is_file() else None


def environment_names(key: str, declared: Option) -> tuple[str, ...]:
    """The variables that set a key when `enable_envvars_config=true`; the first that is set counts."""
    if not declared.env:
        return ()
    upper = key.upper()
    name = upper if upper.startswith("TS_") else f"TS_{upper}"
    # TorchServe's one exception from the rule; the regular name works here as well.
    return ("TS_TOKEN_EXPIRATION_TIME_MIN", name) if key == "token_expiration_min" else (name,)


def _from_file(path: Path, cwd: Path, environ: Mapping[str, str]) -> dict[str, Entry]:
    entries = {}
    for key, (value, line) in read_properties(cwd / path, str(path)).items():
        source = f"{path}:{line}"
        entries[key] = Entry(substitute(value, environ, f"{key}, {source}"), source)
    return entries


def _from_command_line(args: CommandLine) -> Iterator[tuple[str, Entry]]:
    texts = {
        "model_store": ("--model-store", args.model_store),
        "workflow_store": ("--workflow-store", args.workflow_store),
        "load_models": ("--models", args.models),
        "cpp_log_config": ("--cpp-log-config", args.cpp_log_config),
        "plugins_path": ("--plugins-path", args.plugins_path),
        # Flags only ever switch on.
        "disable_token_authorization": ("--disable-token-auth", "true" if args.disable_token_auth else None),
        "enable_model_api": ("--enable-model-api", "true" if args.enable_model_api else None),
    }
    for key, (flag, text) in texts.items():
        if text is not None:
            yield key, Entry(text, flag)


def _from_environment(
    entries: Mapping[str, Entry], environ: Mapping[str, str], options: Mapping[str, Option]
) -> Iterator[tuple[str, Entry]]:
    urls_allowed = "use_env_allowed_urls" in entries and boolean(entries["use_env_allowed_urls"].text)
    for key, declared in options.items():
        if key == "allowed_urls" and not urls_allowed:
            continue
        for name in environment_names(key, declared):
            if name in environ:
                yield key, Entry(environ[name].strip(), name)
                break


def _from_special_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, Entry]]:
    """The variables that need no `enable_envvars_config`."""
    name = "TS_OPEN_INFERENCE_PROTOCOL"
    if name in environ:
        yield name.lower(), Entry("true" if environ[name] == "oip" else "false", name)
    name = "TS_MODEL_SERVER_HOME"
    if environ.get(name):
        yield "model_server_home", Entry(environ[name], name)
