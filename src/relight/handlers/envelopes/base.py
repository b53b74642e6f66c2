"""What every request envelope is made from; authors of their own subclass it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.sdk.context import Context


class BaseEnvelope(ABC):
    """Stands between the worker and a handler: rows are parsed on the way in, results formatted on the way out.

    Loading the model and `describe` bypass it; the handler gets those calls as without an envelope.

    Args:
        handle_fn: The handler's `handle`.

    Attributes:
        context: The context of the batch being handled; None before the first.
    """

    def __init__(self, handle_fn: Callable[[Any, Context], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Context | None = None

    def handle(self, data: Any, context: Context) -> Any:
        """Answer a batch. Nothing (None, an empty list) is neither parsed nor formatted.

        Args:
            data: One row of named inputs for each request.
            context: The handler's context.
        """
        self.context = context
        if _is_describe(data, context):
            return self._handle_fn(data, context)
        rows = self.parse_input(data) if data else data
        results = self._handle_fn(rows, context)
        return self.format_output(results) if results else results

    @abstractmethod
    def parse_input(self, data: Any) -> Any:
        """Return the rows that the handler gets for those of the requests."""

    @abstractmethod
    def format_output(self, data: Any) -> Any:
        """Return one answer for each request, from the handler's results."""


def body_of(row: Any) -> Any:
    """Return a request's body: its input `data` or, where that is empty, `body`; None where it has neither."""
    return row.get("data") or row.get("body")


def _is_describe(data: Any, context: Context) -> bool:
    # The row of a describe request is empty. That is checked first, as asking for a header builds all of them.
    return bool(data == [{}]) and context is not None and bool(context.get_request_header(0, "describe") == "True")
