"""From a received request to what the handler gets: the row of named inputs, and the header dict."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relight.wire.messages import Item

logger = logging.getLogger("relight.worker")


def decode_rows(items: list[Item], payload: bytes | memoryview, decode: bool) -> list[dict[str, Any]]:
    """One dict of named inputs for each request (archives_and_handlers.md §2.5).

    Args:
        items: The requests of the batch.
        payload: Their inputs, one after the other.
        decode: Whether JSON and text are decoded (`decode_input_request`).
    """
    if len(items) == 1 and len(items[0].parts) == 1:
        name, content_type, _ = items[0].parts[0]
        return [{name: _value(content_type if decode else "", payload)}]
    rows = []
    at = 0
    for item in items:
        row = {}
        for name, content_type, length in item.parts:
            row[name] = _value(content_type if decode else "", payload[at : at + length])
            at += length
        rows.append(row)
    return rows


def _value(content_type: str, data: bytes | memoryview) -> Any:
    if content_type == "application/json":
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError):
            logger.warning("Failed json decoding of input data. Forwarding encoded payload")
    elif content_type.startswith("text"):
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            logger.warning("Failed utf-8 decoding of input data. Forwarding encoded payload")
    if isinstance(data, memoryview) and isinstance(data.obj, bytearray) and data.nbytes == len(data.obj):
        return data.obj
    return bytearray(data)


def headers_of(item: Item) -> dict[str, Any]:
    """The request headers as a handler sees them (archives_and_handlers.md §3).

    An entry for each input with its content type, over it the client's headers (Latin-1, the last of equal names),
    over them those that the server adds.
    """
    headers: dict[str, Any] = {name: {"content-type": content_type} for name, content_type, _ in item.parts}
    for key, value in item.headers:
        headers[key.decode("latin-1")] = value.decode("latin-1")
    headers.update(item.added)
    return headers
