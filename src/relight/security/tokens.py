"""Token authorization: three keys in a file, as TorchServe 0.12 has them (configuration.md §5.1).

The inference and the management key expire and can be refreshed with the API key, which does neither. What counts is in
memory: the file only tells the operator.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from datetime import datetime, timedelta, timezone
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, Literal

from relight.errors import InvalidKeyError
from relight.properties import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["KEY_FILE_NAME", "KeyKind", "TokenAuthority"]

KeyKind = Literal["inference", "management"]

KEY_FILE_NAME: Final = "key_file.json"
"""The name of the key file, which lies in the server's working directory."""

# "Authorization" and "Authentication": the two texts differ in TorchServe, and clients match them.
_REJECTED = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
_NOT_REFRESHED = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
_KEY_BYTES = 6
_LONGEST_LIFETIME = 1e11

_log = logging.getLogger("org.pytorch.serve.http.TokenAuthorizationHandler")


class _Token:
    """One key with the header that carries it, and when it ends on the authority's clock and on the wall."""

    __slots__ = ("ends_at", "expiration_time", "header", "key")

    def __init__(self, ends_at: float, expiration_time: str | None) -> None:
        self.key = base64.urlsafe_b64encode(os.urandom(_KEY_BYTES))
        self.header = b"Bearer " + self.key
        self.ends_at = ends_at
        self.expiration_time = expiration_time

    def entry(self) -> dict[str, str]:
        entry = {"key": self.key.decode()}
        if self.expiration_time is not None:
            entry["expiration time"] = self.expiration_time
        return entry


class TokenAuthority:
    """Creates the keys, writes the key file, and decides whether a request carries the right key.

    Args:
        path: The key file. An older one is replaced.
        expiration_min: Minutes that an inference or management key is valid; with zero or less it never is.
        clock: Seconds from any origin, never going back; expiry is measured on it, so that setting the wall clock
            neither ends nor revives a key.

    Raises:
        ConfigurationError: The key file cannot be written.
    """

    __slots__ = ("_api", "_clock", "_content", "_lifetime", "_tokens", "path")

    def __init__(self, path: Path, expiration_min: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        # The bounds keep the expiration time within what a date can hold.
        self._lifetime = min(max(expiration_min * 60, 0), _LONGEST_LIFETIME)
        self._clock = clock
        self._api = _Token(float("inf"), None)
        self._tokens: dict[str, _Token] = {"management": self._new_token(), "inference": self._new_token()}
        try:
            self._content = self._write(self._tokens)
        except OSError as error:
            raise ConfigurationError(
                f"Token Authorization setup unsuccessful: cannot write {path}: {error.strerror}"
            ) from error

    @property
    def notice(self) -> str:
        """The record that is logged at start, in TorchServe's words and lines."""
        return (
            "\n######\n"
            "TorchServe now enforces token authorization by default.\n"
            "This requires the correct token to be provided when calling an API.\n"
            f"Key file located at {self.path}\n"
            "Check token authorization documenation for information: "
            "https://github.com/pytorch/serve/blob/master/docs/token_authorization_api.md \n"
            "######\n"
        )

    def check(self, kind: KeyKind, authorization: bytes | None) -> None:
        """Let a request pass, or not. On the path of every request.

        Args:
            kind: The key that the route needs.
            authorization: The value of the first Authorization header; None without one.

        Raises:
            InvalidKeyError: The key is missing, malformed, wrong or expired.
        """
        token = self._tokens[kind]
        if authorization is None or self._clock() >= token.ends_at or not _matches(token, authorization):
            raise InvalidKeyError(_REJECTED)

    def refresh(self, kind: str | None, authorization: bytes | None) -> None:
        """Replace a key in memory and in the file; the old one is dead at once.

        Args:
            kind: `inference` or `management`.
            authorization: The value of the first Authorization header, which has to carry the API key.

        Raises:
            InvalidKeyError: The API key or the kind is missing or wrong, or the file could not be written. No key
                changed.
        """
        if authorization is None or not _matches(self._api, authorization) or kind is None or kind not in self._tokens:
            _log.error("Failed to update key file")
            raise InvalidKeyError(_NOT_REFRESHED)
        tokens = {**self._tokens, kind: self._new_token()}
        try:
            self._content = self._write(tokens)
        except OSError as error:
            _log.error("Failed to update key file %s: %s", self.path, error.strerror)
            raise InvalidKeyError(_NOT_REFRESHED) from error
        self._tokens = tokens

    def delete(self) -> None:
        """Remove the key file on orderly shutdown, unless another server has replaced it meanwhile."""
        try:
            if self.path.read_bytes() == self._content:
                self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("Failed to remove key file %s: %s", self.path, error.strerror)

    def _new_token(self) -> _Token:
        expiration = datetime.now(timezone.utc) + timedelta(seconds=self._lifetime)
        return _Token(self._clock() + self._lifetime, expiration.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))

    def _write(self, tokens: dict[str, _Token]) -> bytes:
        document = {kind: token.entry() for kind, token in tokens.items()} | {"API": self._api.entry()}
        content = json.dumps(document, indent=2).encode()
        # A new file under a name that nobody can guess: never readable by others, never written through a link.
        temporary = self.path.with_name(f".{self.path.name}.{os.urandom(8).hex()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return content


def _matches(token: _Token, authorization: bytes) -> bool:
    if compare_digest(authorization, token.header):
        return True
    # The rare but accepted form: any white space between scheme and key.
    parts = authorization.split()
    return (
        len(parts) == 2
        and authorization.startswith(b"Bearer")
        and parts[0] == b"Bearer"
        and authorization.endswith(parts[1])
        and compare_digest(parts[1], token.key)
    )
