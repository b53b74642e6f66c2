r"""Java `.properties` files: the syntax of config.properties, snapshots and nothing else.

The format is that of `java.util.Properties.load`: ISO-8859-1, `#` and `!` comments, a key separated from its value by
`=`, `:` or white space, `\` at the end of a line to go on with the next, the escapes `\t \n \r \f \uXXXX`. One thing
differs on purpose: white space at the end of a value is dropped unless it is escaped, because it is never meant.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ConfigurationError", "Properties", "Property", "parse_properties", "read_properties", "substitute"]

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VARIABLE = re.compile(r"\$\$([^$\s]+)\$\$")


class ConfigurationError(Exception):
    """The configuration cannot be used; the operator has to correct it.

    Args:
        message: One sentence that names the setting, its value, where it was set and what is accepted. The server
            prints it as `Invalid configuration: <message>` and ends with status 1.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Property(NamedTuple):
    """One value and the 1-based number of the line on which its key stands."""

    value: str
    line: int


Properties = dict[str, Property]
"""Keys in file order; of a key that stands twice, the last value."""


def parse_properties(text: str, name: str = "config.properties") -> Properties:
    """Parse the text of a properties file.

    Args:
        text: The whole file.
        name: What to call the file in errors.

    Raises:
        ConfigurationError: A unicode escape is malformed.
    """
    result: Properties = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            entry = Property(_unescape(_rstrip(value)), number)
            result[_unescape(key)] = entry
        except ValueError as error:
            raise ConfigurationError(f"{error} ({name}:{number}): expected \\u and four hexadecimal digits") from None
    return result


def read_properties(path: Path, name: str | None = None) -> Properties:
    """Read and parse a properties file.

    Args:
        path: The file.
        name: What to call it in errors; its path by default.

    Raises:
        ConfigurationError: The file cannot be read or parsed.
    """
    try:
        text = path.read_text(encoding="iso-8859-1")
    except OSError as error:
        raise ConfigurationError(f"cannot read {name or path}: {error.strerror}") from error
    return parse_properties(text, name or str(path))


def substitute(value: str, environ: Mapping[str, str], where: str) -> str:
    """Replace every `$$NAME$$` in a value by the environment variable NAME.

    Args:
        value: The value as it stands in the file.
        environ: The environment.
        where: Key and place of the value, for the error.

    Raises:
        ConfigurationError: A variable is not set.
    """

    def variable(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environ:
            raise ConfigurationError(f"Invalid Environment Variable {name} ({where}): it is not set")
        return environ[name]

    return _VARIABLE.sub(variable, value) if "$$" in value else value


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending, start = "", 0
    # Not splitlines: it also breaks at \x0b, \x1c, \x85 and others, which are ordinary characters here.
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(_BLANKS)
        if not start and (not line or line[0] in "#!"):
            continue
        start = start or number
        if _ends_in_escape(line):
            pending += line[:-1]
            continue
        yield start, pending + line
        pending, start = "", 0
    if pending:
        yield start, pending


def _ends_in_escape(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    end, escaped = 0, False
    for end, char in enumerate(line):  # noqa: B007 - the index where the key ends is the result
        if not escaped and (char in _BLANKS or char in "=:"):
            break
        escaped = char == "\\" and not escaped
    else:
        return line, ""
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _rstrip(value: str) -> str:
    stripped = value.rstrip(_BLANKS)
    if len(stripped) < len(value) and _ends_in_escape(stripped):
        return value[: len(stripped) + 1]
    return stripped


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\":
            parts.append(char)
        elif text[index : index + 1] == "u":
            digits = text[index + 1 : index + 5]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise ValueError(f"malformed escape \\u{digits}")
            parts.append(chr(int(digits, 16)))
            index += 5
        else:
            following = text[index : index + 1]
            parts.append(_ESCAPES.get(following, following))
            index += 1
    return "".join(parts)
