"""Streaming through the context that the worker prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relight.sdk import streaming
from relight.sdk.context import Context
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.protocol import otf_message_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

Sent = list[tuple[list[Any], int, str]]


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def context(sent: Sent) -> Iterator[Context]:
    context = Context("m", "/dir", None, 1, None)
    context.request_ids = {0: "r"}
    context.intermediate_sender = lambda ret, code, message: sent.append((ret, code, message))
    yield context
    streaming.set_current_context(None)


def test_sends_through_the_context(context: Context, sent: Sent) -> None:
    send_intermediate_predict_response(["a"], context.request_ids, "Intermediate", 200, context)
    assert sent == [(["a"], 200, "Intermediate")]


@pytest.mark.parametrize(("rank", "count"), [("0", 1), ("1", 0), ("7", 0)])
def test_only_the_first_rank_sends(
    context: Context, sent: Sent, monkeypatch: pytest.MonkeyPatch, rank: str, count: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    send_intermediate_predict_response(["a"], context.request_ids, "m", 200, context)
    assert len(sent) == count


def test_former_path_warns_and_finds_the_current_context(context: Context, sent: Sent) -> None:
    streaming.set_current_context(context)
    with pytest.warns(PendingDeprecationWarning, match="send_intermediate_predict_response"):
        otf_message_handler.send_intermediate_predict_response(["a"], context.request_ids, "m", 200)
    assert sent == [(["a"], 200, "m")]


def test_without_any_context() -> None:
    with pytest.raises(RuntimeError, match="needs a context"):
        send_intermediate_predict_response(["a"], None, "m", 200)


def test_without_a_server(context: Context) -> None:
    context.intermediate_sender = None
    send_intermediate_predict_response(["a"], None, "m", 200, context)
