"""The signature that KMS-encrypted S3 objects need (rest_api.md §6): AWS Signature Version 4 of a GET.

S3 decrypts for whoever may use the key and proves who they are; no header of the request speaks of encryption.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from relight.errors import DownloadArchiveError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"
_REGION, _ACCESS, _SECRET, _TOKEN = (
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
_log = logging.getLogger("relight.archive")


@dataclass(frozen=True)
class AwsCredentials:
    """Who signs, and for which region."""

    region: str
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def find_credentials(url: str, env: Mapping[str, str] | None = None) -> AwsCredentials:
    """The credentials of the environment, else those of botocore's chain (profile, instance role), if installed.

    Args:
        url: The url to fetch, for messages.
        env: The environment; the process's own by default.

    Raises:
        DownloadArchiveError: A variable is empty, or missing where nothing else gives credentials.
    """
    env = os.environ if env is None else env
    failure = f"Failed to download archive from: {url}"
    for name in (_REGION, _ACCESS, _SECRET):
        if env.get(name) == "":
            _log.error("The environment variable %s is empty.", name)
            raise DownloadArchiveError(failure)
    region, access, secret = (env.get(name) for name in (_REGION, _ACCESS, _SECRET))
    if region and access and secret:
        return AwsCredentials(region, access, secret, env.get(_TOKEN) or None)
    found = _from_botocore(region)
    if found is not None:
        return found
    missing = next(name for name in (_REGION, _ACCESS, _SECRET) if name not in env)
    raise DownloadArchiveError(f"{failure}. The environment variable {missing} is not set.")


def canonical_url(url: str) -> str:
    """`url` with path and query encoded as S3 signs them: once, and the query sorted.

    Servers that check signatures over the text that they received, without encoding it anew, then agree as well.
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, _canonical_path(parts.path), _canonical_query(parts.query), ""))


def signed_headers(url: str, credentials: AwsCredentials, now: datetime) -> dict[str, str]:
    """The headers that make a GET of `url` a signed one.

    Args:
        url: The url that will be requested.
        credentials: Who signs.
        now: The time, in UTC.

    Returns:
        `x-amz-date`, `x-amz-content-sha256`, `Authorization` and, for temporary credentials, `x-amz-security-token`.
        The `Host` header is signed too: it has to be that of `url`.
    """
    parts = urlsplit(url)
    timestamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": parts.netloc.rpartition("@")[2].lower(),
        "x-amz-content-sha256": _EMPTY_HASH,
        "x-amz-date": timestamp,
    }
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(headers)
    canonical = "\n".join(
        [
            "GET",
            _canonical_path(parts.path),
            _canonical_query(parts.query),
            *(f"{name}:{value}" for name, value in headers.items()),
            "",
            names,
            _EMPTY_HASH,
        ]
    )
    scope = f"{timestamp[:8]}/{credentials.region}/s3/aws4_request"
    to_sign = "\n".join([_ALGORITHM, timestamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    del headers["host"]
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _encoded(text: str, safe: str = "") -> str:
    # Decoded first: S3 wants every key encoded exactly once, however the url wrote it.
    return quote(unquote(text), safe=safe + "-_.~")


def _canonical_path(path: str) -> str:
    return _encoded(path or "/", safe="/")


def _canonical_query(query: str) -> str:
    pairs = (item.partition("=") for item in query.split("&") if item)
    return "&".join(f"{name}={value}" for name, value in sorted((_encoded(n), _encoded(v)) for n, _, v in pairs))


def _from_botocore(region: str | None) -> AwsCredentials | None:
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        return None
    session: Any = Session()
    try:
        region = region or session.get_config_variable("region")
        credentials = session.get_credentials()
        frozen = credentials.get_frozen_credentials() if credentials is not None else None
    except BotoCoreError as error:
        _log.warning("botocore found no credentials: %s", error)
        return None
    if not region or frozen is None or not frozen.access_key or not frozen.secret_key:
        return None
    return AwsCredentials(region, frozen.access_key, frozen.secret_key, frozen.token)
