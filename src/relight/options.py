"""How one configuration option is declared, and the readers that turn its text into a value."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ALL_MODELS",
    "Address",
    "LoadModels",
    "ModelSource",
    "ModelsConfig",
    "Option",
    "RejectedValueError",
    "option",
]

T = TypeVar("T")

ALL_MODELS: Literal["all"] = "all"
"""The value of `load_models` that stands for everything in the model store."""

_INT = re.compile(r"[+-]?[0-9]{1,40}")
_ADDRESS = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[^:/\[\]\s]+)(?::([0-9]{1,40}))?|unix:(/.*)", re.IGNORECASE)
# sockaddr_un holds 108 bytes with the final zero.
_LONGEST_SOCKET_PATH = 107
_HIGHEST_PORT = 65535


class RejectedValueError(ValueError):
    """A reader does not accept the text.

    Args:
        accepted: What it would accept, for the sentence "expected ...".
        lead: How the message starts, where TorchServe's wording is kept.
    """

    def __init__(self, accepted: str, lead: str | None = None) -> None:
        super().__init__(accepted)
        self.accepted = accepted
        self.lead = lead


@dataclass(frozen=True)
class Option:
    """The declaration of one key; the documentation is generated from it.

    Args:
        read: Turns the text into the value; raises RejectedValueError.
        doc: One line for operators.
        env: Whether `TS_<KEY>` sets it when `enable_envvars_config=true`.
        lenient: Whether a value that is not accepted means the default and a warning, not the end.
        no_effect: Whether the key is accepted only so that existing files keep working.
        not_yet: Whether the feature behind it is still to come; until then the key is read and checked only.
    """

    read: Callable[[str], Any]
    doc: str
    env: bool = True
    lenient: bool = False
    no_effect: bool = False
    not_yet: bool = False


def option(
    read: Callable[[str], T],
    default: T,
    doc: str,
    *,
    env: bool = True,
    lenient: bool = False,
    no_effect: bool = False,
    not_yet: bool = False,
    secret: bool = False,
) -> T:
    """A dataclass field that is a configuration key.

    Args:
        read: As in `Option`, like the other arguments that are not described here.
        default: The value when no source sets the key.
        doc: As in `Option`.
        env: As in `Option`.
        lenient: As in `Option`.
        no_effect: As in `Option`.
        not_yet: As in `Option`.
        secret: Whether the value is left out of the object's `repr`.
    """
    metadata = {"option": Option(read, doc, env, lenient, no_effect, not_yet)}
    result: Any
    if isinstance(default, dict):
        result = field(default_factory=default.copy, metadata=metadata)
    else:
        result = field(default=default, metadata=metadata, repr=not secret)
    return cast("T", result)


@dataclass(frozen=True)
class Address:
    """Where a listener is bound. Equal addresses are one listener; the host is compared as text.

    Args:
        scheme: `http`, `https` or `unix`.
        host: Name or IP, an IPv6 one without brackets; empty for `unix`.
        port: TCP port; 0 for `unix`.
        path: Absolute path of the socket for `unix`, else empty.
        text: What the operator wrote, which `str()` returns.
    """

    scheme: Literal["http", "https", "unix"]
    host: str
    port: int
    path: str
    text: str = field(compare=False, default="")

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str, http_port: int = 80, https_port: int = 443) -> Address:
        """Read `http://host[:port]`, `https://host[:port]` or `unix:/path`.

        Args:
            text: The address.
            http_port: The port when an http address names none.
            https_port: The port when an https address names none.

        Raises:
            RejectedValueError: It is none of the three, or the port is above 65535.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None:
            accepted = "http://host[:port], https://host[:port] or unix:/path, without a trailing slash"
            raise RejectedValueError(accepted, f"Invalid binding address: {text}")
        scheme, host, port, path = match.groups()
        if path is not None:
            if len(path.encode()) > _LONGEST_SOCKET_PATH:
                raise RejectedValueError("a socket path of at most 107 bytes", f"Invalid binding address: {text}")
            return cls("unix", "", 0, path, text)
        secure = scheme.lower() == "https"
        number = int(port) if port else (https_port if secure else http_port)
        if number > _HIGHEST_PORT:
            raise RejectedValueError("a port from 0 to 65535", f"Invalid port number: {text}")
        return cls("https" if secure else "http", host.strip("[]"), number, "", text)


def address(http_port: int, https_port: int) -> Callable[[str], Address]:
    """A reader of addresses with the given ports for those that name none."""
    return lambda text: Address.parse(text, http_port, https_port)


def boolean(text: str) -> bool:
    """Only `true`, in any letter case, is true. Everything else is false, as in Java."""
    return text.lower() == "true"


def string(text: str) -> str:
    """The text itself."""
    return text


def optional_string(text: str) -> str | None:
    """The text, or None when it is empty."""
    return text or None


def optional_path(text: str) -> Path | None:
    """A path, or None when it is empty."""
    return Path(text) if text else None


def integer(minimum: int | None = None, maximum: int = 2**31 - 1) -> Callable[[str], int]:
    """A reader of whole numbers in Java's syntax: ASCII digits with an optional sign.

    Args:
        minimum: The smallest value accepted; None for Java's own limit.
        maximum: The largest value accepted; a Java `int` by default.
    """
    at_least = f", at least {minimum}" if minimum is not None else ""
    at_most = f" and at most {maximum}" if maximum != 2**31 - 1 or not at_least else ""
    accepted = f"a whole number{at_least}{at_most}"

    def read(text: str) -> int:
        if not _INT.fullmatch(text):
            raise RejectedValueError(accepted)
        value = int(text)
        if not (-(maximum + 1) if minimum is None else minimum) <= value <= maximum:
            raise RejectedValueError(accepted)
        return value

    return read


byte_count = integer(0, 2**63 - 1)
seconds = integer(1)


def port(text: str) -> int:
    """A TCP port."""
    return integer(0, _HIGHEST_PORT)(text)


def gpu_count(text: str) -> int | None:
    """A number of GPUs; a negative one counts as none."""
    return max(0, integer()(text))


def milliseconds(text: str) -> int:
    """A duration in milliseconds."""
    return integer(1, 2**63 - 1)(text)


def minutes(text: str) -> float:
    """A finite number of minutes, fractions allowed."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise RejectedValueError("a number of minutes")
    return value


def duration(text: str) -> float:
    """A finite number of seconds from zero, fractions allowed."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise RejectedValueError("a number of seconds, at least 0")
    return value


def grpc_host(text: str) -> str:
    """A host name or IP address, an IPv6 one with or without brackets. No scheme and no port."""
    host = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    colons = host.count(":")
    if (
        not host
        or colons == 1
        or re.search(r"[/\s\[\]]", host)
        or (colons and not re.fullmatch("[0-9a-fA-F:.%]+", host))
    ):
        raise RejectedValueError("a host name or an IP address, without scheme and port")
    return host


def metrics_mode(text: str) -> str:
    """`log`, `prometheus` or `legacy`, in any letter case."""
    value = "".join(text.split()).lower()
    if value not in ("log", "prometheus", "legacy"):
        raise RejectedValueError("log, prometheus or legacy")
    return value


def optional_regex(text: str) -> str | None:
    """A regular expression, or None when it is empty."""
    if text:
        _check_regex(text)
    return text or None


def regex_list(text: str) -> tuple[str, ...]:
    """Regular expressions separated by commas."""
    patterns = tuple(part.strip() for part in text.split(","))
    for pattern in patterns:
        _check_regex(pattern)
    return patterns


def _check_regex(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise RejectedValueError(f"a regular expression, but {text!r} is none: {error}") from None


class ModelSource(NamedTuple):
    """A model to load at start: the name to register it under (None: the archive's own) and where it is."""

    name: str | None
    location: str


LoadModels = tuple[ModelSource, ...] | Literal["all"]


def load_models(text: str) -> LoadModels:
    """Comma-separated `[name=]location`, or `all`; blanks around items and empty items are dropped."""
    if text.strip().lower() == ALL_MODELS:
        return ALL_MODELS
    return tuple(_model_source(item.strip()) for item in text.split(",") if item.strip())


def _model_source(item: str) -> ModelSource:
    name, equals, location = item.partition("=")
    # A url may hold "=" in its query; a name holds no "://".
    if not equals or "://" in name:
        return ModelSource(None, item)
    return ModelSource(name.strip(), location.strip())


_MODEL_NUMBERS = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout")
ModelsConfig = dict[str, dict[str, dict[str, Any]]]


def models_config(text: str) -> ModelsConfig:
    """`{"name": {"version": {...}}}`; the six numeric members become ints, and those not above zero are left out."""
    accepted = 'a JSON object {"model": {"version": {"minWorkers": 1, ...}}}'
    try:
        document = json.loads(text) if text else {}
    except ValueError as error:
        raise RejectedValueError(f"{accepted}, but {error}") from None
    if not isinstance(document, dict) or not all(isinstance(versions, dict) for versions in document.values()):
        raise RejectedValueError(accepted)
    for model, versions in document.items():
        for version, members in versions.items():
            if not isinstance(members, dict):
                raise RejectedValueError(accepted)
            versions[version] = _model_members(f"{model}:{version}", members)
    return cast("ModelsConfig", document)


def _model_members(label: str, members: dict[str, Any]) -> dict[str, Any]:
    result = dict(members)
    for key in _MODEL_NUMBERS:
        value = result.pop(key, None)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool | float) or (isinstance(value, str) and not _INT.fullmatch(value)):
            raise RejectedValueError(f"a whole number as {key} of {label}, not {json.dumps(value)}")
        # Arrays, objects and null mean the default, as in TorchServe.
        if isinstance(value, int | str) and int(value) > 0:
            result[key] = int(value)
    return result
