"""Streamed answers: parts that are sent while the handler is still running."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from relight.sdk.util import deprecated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relight.sdk.context import Context

# The deprecated call carries no context. The worker's own knows which batch the caller belongs to.
_current: Context | None = None


def set_current_context(context: Context | None) -> None:
    """Name the context that calls without one mean; the worker calls it once, before the handler is loaded."""
    global _current
    _current = context


def send_intermediate_predict_response(
    ret: list[Any],
    req_id_map: Mapping[int, str] | None,  # noqa: ARG001 - part of the published signature; the context knows its batch
    message: str,
    code: int,
    context: Context | None = None,
) -> None:
    """Send one part of the answer to each request of the batch, at once.

    The handler's return value follows as the last part. On ranks other than 0 of a multi-process model this does
    nothing, and neither does it where no server is attached (a unit test with a mock context).

    Args:
        ret: One part per request, in batch order; serialised like returned items.
        req_id_map: `context.request_ids`.
        message: Reason phrase, for protocols that have one per part.
        code: Status of the answer; only the first part's reaches an HTTP client.
        context: The context that `handle` was given.

    Raises:
        RuntimeError: No context was given, and no handler is being run.
    """
    if os.environ.get("LOCAL_RANK", "") not in {"", "0"}:
        return
    if context is None:
        context = _current
        if context is None:
            raise RuntimeError("send_intermediate_predict_response needs a context outside of a worker")
    sender = getattr(context, "intermediate_sender", None)
    if sender is not None:
        sender(ret, code, message)


@deprecated(version="0.12.0", replacement="ts.handler_utils.utils.send_intermediate_predict_response")
def deprecated_send_intermediate_predict_response(
    ret: list[Any],
    req_id_map: Mapping[int, str] | None,
    message: str,
    code: int,
    context: Context | None = None,
) -> None:
    """Do the same, with a PendingDeprecationWarning: the function under its former path."""
    send_intermediate_predict_response(ret, req_id_map, message, code, context)
