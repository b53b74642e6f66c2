"""The answer to `describe?customized=true`: the description, with what the handler says of itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from relight.api.http.describe import describe
from relight.api.http.exchange import header_lines

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange
    from relight.errors import RelightError
    from relight.serving.model import ModelVersion
    from relight.wire.messages import Answer


class CustomizedReply:
    """The Reply of a describe job (rest_api.md §4.5).

    Args:
        exchange: The request.
        version: What is described.
    """

    def __init__(self, exchange: Exchange, version: ModelVersion) -> None:
        self._exchange = exchange
        self._version = version
        self._chunks: list[bytes] = []

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:  # noqa: ARG002 - a Reply's signature
        """A handler that streams its description gets it put together."""
        self._chunks.append(bytes(body))
        return True

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Answer with the description."""
        text = b"".join([*self._chunks, body])
        document = describe(self._version)
        if text:
            document["customizedMetadata"] = _object(text)
        headers = dict(answer.headers or {})
        if not any(name.lower() == "content-type" for name in headers):
            headers["content-type"] = "application/json"
        self._exchange.json([document], answer.status, answer.phrase, header_lines(headers))

    def fail(self, error: RelightError) -> None:
        """Answer with an error."""
        self._exchange.fail(error)


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object that a handler returned; anything else counts as an empty one."""
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
