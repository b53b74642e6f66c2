"""TLS for listeners."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from relight.properties import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def server_context(certificate: Path | None, key: Path | None, protocols: Sequence[str]) -> ssl.SSLContext:
    """A context for TLS 1.2 and 1.3.

    Args:
        certificate: PEM file with the certificate, and those up to the root's (`certificate_file`).
        key: PEM file with its private key, without a password (`private_key_file`).
        protocols: Names for ALPN.

    Raises:
        ConfigurationError: a file is not given, cannot be read, or does not fit.
    """
    if certificate is None or key is None:
        missing = "certificate_file" if certificate is None else "private_key_file"
        raise ConfigurationError(f"Invalid configuration: TLS needs {missing}, which is not set")
    _check_readable("certificate_file", certificate)
    _check_readable("private_key_file", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(protocols))
    try:
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError, TypeError) as error:
        text = f"{certificate} and {key} are no PEM certificate with its unencrypted key: {error}"
        raise ConfigurationError(f"Invalid configuration: {text}") from error
    return context


def _check_readable(name: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigurationError(f"Invalid configuration: {name} {path}: {error.strerror}") from error
