"""The metrics API (metrics.md §6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange

_TEXT = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"


class MetricsApi:
    """Serves `/metrics`. In log mode, the default, its answer is empty."""

    def handle(self, exchange: Exchange, _query: bytes) -> None:
        """Answer a scrape, whatever its method."""
        exchange.respond(200, b"", _TEXT)
