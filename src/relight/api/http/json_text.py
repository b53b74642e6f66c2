"""JSON bodies: the text that both APIs share, in UTF-8, with a newline at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relight.api.json_text import json_text

if TYPE_CHECKING:
    from relight.errors import RelightError


def dump(document: Any) -> bytes:
    """The bytes of a JSON answer (rest_api.md §1.6)."""
    return json_text(document).encode("utf-8", "surrogatepass") + b"\n"


def error_body(error: RelightError) -> bytes:
    """The body of an error answer (rest_api.md §1.7)."""
    return dump({"code": error.status, "type": error.wire_type, "message": error.message})


def status_body(text: str) -> bytes:
    """The body of an answer that has nothing but a status."""
    return dump({"status": text})
