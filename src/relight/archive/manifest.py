"""MAR-INF/MANIFEST.json (archives_and_handlers.md §1.3): read as leniently as TorchServe does, written in its order."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relight.errors import InvalidModelError

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST_PATH = "MAR-INF/MANIFEST.json"
"""Where the manifest lies in every archive."""

DEFAULT_VERSION = "1.0"
"""The version of a model whose manifest names none."""

RUNTIMES = ("python", "python3", "LSP")
"""The runtimes that a manifest may name."""

ARCHIVER_VERSION = "0.12.0"
"""The torch-model-archiver release whose manifests these are."""

_MAX_BYTES = 16 * 1024 * 1024
_log = logging.getLogger("relight.archive")


@dataclass(frozen=True)
class Manifest:
    """What an archive says about itself.

    Attributes:
        model_name: Name to register under where the request gives none; None when absent or empty.
        model_version: Version, `1.0` when absent.
        runtime: One of `RUNTIMES`.
        handler: Handler entry, e.g. `h`, `h.py:fn` or `image_classifier`; None when absent or empty.
        serialized_file: Weights file, relative to the archive's root.
        model_file: Python file of the architecture.
        requirements_file: pip requirements of the model.
        config_file: The model's YAML configuration.
        raw: The document itself, as handlers see it in `context.manifest`.
    """

    model_name: str | None = None
    model_version: str = DEFAULT_VERSION
    runtime: str = "python"
    handler: str | None = None
    serialized_file: str | None = None
    model_file: str | None = None
    requirements_file: str | None = None
    config_file: str | None = None
    raw: dict[str, Any] = field(default_factory=dict)


def read_manifest(root: Path) -> Manifest | None:
    """Read the manifest of an unpacked archive.

    Args:
        root: The archive's root directory.

    Returns:
        The manifest, or None where the archive has none (legal: the registration then gives name and handler).

    Raises:
        InvalidModelError: The manifest is not JSON, or one of its entries is wrong.
    """
    path = root / MANIFEST_PATH
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        _log.warning("Cannot read %s: %s", path, error)
        raise InvalidModelError("Failed to parse signature.json.") from error
    if len(data) > _MAX_BYTES:
        raise InvalidModelError("Failed to parse signature.json.")
    return parse_manifest(data)


def parse_manifest(data: bytes) -> Manifest:
    """Parse the text of a manifest (UTF-8, a byte order mark is tolerated).

    Raises:
        InvalidModelError: `Failed to parse signature.json.` (sic), `Missing Model entry in manifest file.` or
            `Runtime is not defined or invalid.`
    """
    raw = _load(data)
    # Numbers keep the digits that they were written with: version 1.50 is "1.50".
    literal = _load(data, parse_int=str, parse_float=str)
    model = literal.get("model", {})
    if model is None:
        raise InvalidModelError("Missing Model entry in manifest file.")
    if not isinstance(model, dict):
        raise InvalidModelError("Failed to parse signature.json.")
    runtime = str(_text(literal, "runtime")) if "runtime" in literal else "python"
    canonical = {name.lower(): name for name in RUNTIMES}.get(runtime.lower())
    if canonical is None:
        raise InvalidModelError("Runtime is not defined or invalid.")
    for key in ("createdOn", "archiverVersion"):
        if literal.get(key) is None:
            _log.warning("Model archive %s is not defined.", key)
    version = _text(model, "modelVersion")
    return Manifest(
        model_name=_text(model, "modelName") or None,
        model_version=DEFAULT_VERSION if version is None else version,
        runtime=canonical,
        handler=_text(model, "handler") or None,
        serialized_file=_text(model, "serializedFile") or None,
        model_file=_text(model, "modelFile") or None,
        requirements_file=_text(model, "requirementsFile") or None,
        config_file=_text(model, "configFile") or None,
        raw=raw,
    )


def render_manifest(
    *,
    model_name: str,
    model_version: str | None,
    handler: str,
    runtime: str = "python",
    serialized_file: str | None = None,
    model_file: str | None = None,
    requirements_file: str | None = None,
    config_file: str | None = None,
    created_on: str | None = None,
) -> str:
    """Write a manifest as torch-model-archiver does: its key order, two spaces, no trailing newline, nothing null.

    Args:
        model_name: Default name of the model.
        model_version: Version; None or empty leaves it out.
        handler: Handler entry.
        runtime: One of `RUNTIMES`.
        serialized_file: Base name of the weights file.
        model_file: Base name of the architecture's Python file.
        requirements_file: Base name of the requirements file.
        config_file: Base name of the YAML configuration.
        created_on: `dd/mm/YYYY HH:MM:SS`; None leaves it out.
    """
    model = {
        "modelName": model_name,
        "serializedFile": serialized_file,
        "handler": handler,
        "modelFile": model_file,
        "modelVersion": model_version,
        "requirementsFile": requirements_file,
        "configFile": config_file,
    }
    document: dict[str, Any] = {} if created_on is None else {"createdOn": created_on}
    document["runtime"] = runtime
    document["model"] = {key: value for key, value in model.items() if value}
    document["archiverVersion"] = ARCHIVER_VERSION
    return json.dumps(document, indent=2)


def _load(data: bytes, **hooks: Any) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8-sig"), **hooks)
    except (ValueError, RecursionError) as error:
        _log.warning("The manifest is not JSON: %s", error)
        raise InvalidModelError("Failed to parse signature.json.") from error
    if not isinstance(document, dict):
        raise InvalidModelError("Failed to parse signature.json.")
    return document


def _text(entries: dict[str, Any], key: str) -> str | None:
    """A text entry; numbers and booleans count as text, as they do for TorchServe."""
    value = entries.get(key)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, str):
        return value
    raise InvalidModelError("Failed to parse signature.json.")
