"""From what the handler returned to answers on the wire."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from relight.wire.messages import Answer

if TYPE_CHECKING:
    from relight.sdk.context import RequestProcessor

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD = re.compile(r"[^\r\n\0]*")


class UnsupportedOutputError(Exception):
    """An item of the handler's result is neither bytes, text, a tensor nor JSON."""


def encode_item(item: Any) -> bytes | bytearray:
    """The bytes of one item of a handler's result (archives_and_handlers.md §2.5).

    Raises:
        UnsupportedOutputError: it cannot be serialised.
    """
    if isinstance(item, (bytes, bytearray)):
        return item
    if isinstance(item, str):
        return item.encode("utf-8", "surrogateescape")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(item, getattr(torch, "Tensor", ())):
        return _tensor_bytes(torch, item)
    try:
        return json.dumps(item, indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedOutputError(str(error)) from error


def _tensor_bytes(torch: Any, tensor: Any) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()


def build_answer(body: bytes | bytearray, processor: RequestProcessor, limit: int) -> tuple[Answer, bytes | bytearray]:
    """Answer and bytes for one request; what the handler set wrongly becomes an error of this request alone.

    Args:
        body: The serialised item.
        processor: Where the handler left status and headers.
        limit: Largest body allowed, in bytes (`max_response_size`).
    """
    if len(body) > limit:
        return _refused(f"Response of {len(body)} bytes exceeds max_response_size {limit}.")
    status = processor.get_response_status_code()
    phrase = processor.get_response_status_phrase()
    headers = processor.get_response_headers()
    if status == 200 and not headers and not phrase:
        return Answer(len(body)), body
    problem = _problem(status, phrase, headers)
    if problem is not None:
        return _refused(problem)
    return Answer(len(body), 200 if status is None else status, phrase or None, dict(headers) or None), body


def _refused(message: str) -> tuple[Answer, bytes]:
    text = message.encode()
    return Answer(len(text), 500, error=True), text


def _problem(status: Any, phrase: Any, headers: dict[str, Any]) -> str | None:
    if status is not None and (not isinstance(status, int) or not 200 <= status <= 999):
        return f"Invalid response status {status!r}: must be an integer from 200 to 999."
    if phrase and (not isinstance(phrase, str) or not _FIELD.fullmatch(phrase)):
        return f"Invalid response status phrase {phrase!r}: must be one line of text."
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return f"Invalid response header name {name!r}."
        if not isinstance(value, str) or not _FIELD.fullmatch(value):
            return f"Invalid value {value!r} of response header {name}: must be one line of text."
    return None
