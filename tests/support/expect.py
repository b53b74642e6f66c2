"""What an answer has to look like (rest_api.md §1.5 to §1.7)."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.raw import RawResponse

NOT_FOUND = ("ResourceNotFoundException", "Requested resource is not found, please refer to API document.")
NOT_ALLOWED = ("MethodNotAllowedException", "Requested method is not allowed, please refer to API document.")
CACHE_HEADERS = [
    ("Pragma", "no-cache"),
    ("Cache-Control", "no-cache; no-store, must-revalidate, private"),
    ("Expires", "Thu, 01 Jan 1970 00:00:00 UTC"),
]


def pretty(document: object) -> bytes:
    """Return the document as the server writes it."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def assert_standard_headers(response: RawResponse) -> None:
    """Check what every answer of a route carries."""
    value = response.header("x-request-id")
    assert value is not None
    assert uuid.UUID(value).version == 4
    assert [pair for pair in response.headers if pair[0] in dict(CACHE_HEADERS)] == CACHE_HEADERS
    assert response.header("connection") == ("close" if response.status >= 400 else "keep-alive")
    assert response.header("date") is None
    assert response.header("server") is None


def assert_json(response: RawResponse, status: int, document: object, length: int | None = None) -> None:
    """Check status, headers and the exact bytes of a JSON answer; `length` is the figure of the conformance table."""
    assert (response.status, response.body.decode()) == (status, pretty(document).decode())
    assert response.header("content-type") == "application/json"
    assert response.header("content-length") == str(len(response.body))
    assert length in {None, len(response.body)}
    assert_standard_headers(response)


def assert_status(response: RawResponse, status: int, text: str, length: int | None = None) -> None:
    """Check a `{"status": ...}` answer."""
    assert_json(response, status, {"status": text}, length)


def assert_error(response: RawResponse, status: int, kind: str, message: str, length: int | None = None) -> None:
    """Check an error answer, to the byte."""
    assert_json(response, status, {"code": status, "type": kind, "message": message}, length)


def assert_bad_request(response: RawResponse) -> None:
    """Check a 400 whose message is free: where the table's text was Java's own."""
    document: dict[str, Any] = response.json()
    assert (response.status, document["code"], document["type"]) == (400, 400, "BadRequestException")
    assert isinstance(document["message"], str)
    assert document["message"]
    assert_error(response, 400, "BadRequestException", document["message"])


def assert_body(response: RawResponse, status: int, body: bytes, content_type: str | None = None) -> None:
    """Check an answer that a handler gave."""
    assert (response.status, response.body) == (status, body)
    assert response.header("content-length") == str(len(body))
    assert response.header("content-type") == content_type
    assert_standard_headers(response)
