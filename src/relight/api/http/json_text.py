"""JSON as TorchServe writes it: two-space indent, UTF-8, no escapes beyond JSON's own, one newline at the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relight.errors import RelightError


def dump(document: Any) -> bytes:
    """The bytes of a JSON answer (rest_api.md §1.6)."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def error_body(error: RelightError) -> bytes:
    """The body of an error answer (rest_api.md §1.7)."""
    return dump({"code": error.status, "type": error.wire_type, "message": error.message})


def status_body(text: str) -> bytes:
    """The body of an answer that has nothing but a status."""
    return dump({"status": text})
