"""The envelope `body`: bodies instead of rows."""

from __future__ import annotations

from typing import Any

from relight.handlers.envelopes.base import BaseEnvelope, body_of


class BodyEnvelope(BaseEnvelope):
    """Hands the handler the bodies alone; answers stay as they are."""

    def parse_input(self, data: list[Any]) -> list[Any]:
        """Return one value for each request: its `data`, else its `body`, else None."""
        return [body_of(row) for row in data]

    def format_output(self, data: Any) -> Any:
        """Return the results unchanged."""
        return data
