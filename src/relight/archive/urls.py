"""What may be fetched (configuration.md §7.1), and the name that it gets in the model store."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

from relight.errors import ModelNotFoundError

DEFAULT_ALLOWED_URLS = "file://.*|http(s)?://.*"
"""The default of the property `allowed_urls`."""

_URL = re.compile(r"(?:https?|file)://", re.IGNORECASE)


class AllowedUrls:
    """The property `allowed_urls`: urls that models may be fetched from.

    Args:
        patterns: Regular expressions, separated by commas (so none may contain one). A url is allowed when one of them
            matches all of it, case-insensitively. An empty text allows nothing.

    Raises:
        ValueError: A pattern is not a regular expression.
    """

    def __init__(self, patterns: str = DEFAULT_ALLOWED_URLS) -> None:
        self.text = patterns
        self._patterns = [_compiled(pattern) for pattern in map(str.strip, patterns.split(",")) if pattern]

    def allows(self, url: str) -> bool:
        """Whether `url` is an http, https or file url and matches a pattern. Plain names never do."""
        return is_url(url) and any(pattern.fullmatch(url) for pattern in self._patterns)


def is_url(text: str) -> bool:
    """Whether `text` is a url to fetch (http, https or file), not a name in the model store."""
    return _URL.match(text) is not None


def check_location(location: str) -> None:
    """Refuse what no archive may be called.

    Raises:
        ModelNotFoundError: `empty url` or `Relative path is not allowed in url: <location>`.
    """
    if not location:
        raise ModelNotFoundError("empty url")
    if ".." in location:
        raise ModelNotFoundError(f"Relative path is not allowed in url: {location}")


def local_name(location: str) -> str | None:
    """The name of an archive in the model store: the last component of a path, or of a url's path as it is written.

    Returns:
        None where there is no usable name, e.g. for `http://host/`, `/` or `.`.
    """
    if not is_url(location):
        name = location.rstrip("/").rpartition("/")[2]
    else:
        try:
            name = urlsplit(location).path.rpartition("/")[2]
        except ValueError:
            return None
        if "\\" in location or not location.isprintable():
            return None
    return None if name in ("", ".", "..") or "\0" in name else name


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"allowed_urls: {pattern} is not a regular expression: {error}") from error


def redacted(url: str) -> str:
    """`url` without what may be secret: user, password, query (signatures of presigned urls) and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "<malformed url>"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
