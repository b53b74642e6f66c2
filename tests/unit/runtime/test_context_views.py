"""The contexts of requests that run at the same time (archives_and_handlers.md §3)."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from relight.runtime.context_views import ContextViews
from relight.sdk.context import Context
from relight.sdk.metrics.cache import MetricsCacheYamlImpl

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def make(attach: Callable[[Any], None] = lambda _: None) -> tuple[Any, ContextViews]:
    metrics = MetricsCacheYamlImpl(None)
    metrics.initialize_cache()
    context = Context("m", "/m", {"a": 1}, 4, None, metrics=metrics, model_yaml_config={"b": 2})
    views = ContextViews(context)
    attach(context)
    return context, views


def test_a_view_is_like_the_context() -> None:
    context, views = make()
    view = views.make()

    assert type(view) is Context
    assert view.model_name == "m"
    assert view.system_properties is context.system_properties
    assert view.manifest is context.manifest
    assert view.model_yaml_config is context.model_yaml_config
    assert view.request_ids is None


def test_metrics_are_shared_but_for_the_request_ids() -> None:
    context, views = make()
    one, two = views.make(), views.make()
    one.metrics.set_request_ids({0: "one"})
    two.metrics.set_request_ids({0: "two"})
    one.metrics.add_counter("C", 1)

    assert (one.metrics.request_ids, two.metrics.request_ids) == ({0: "one"}, {0: "two"})
    assert context.metrics.get_metric("C") is two.metrics.get_metric("C")


def test_what_the_handler_attached_is_copied_for_each() -> None:
    def attach(context: Any) -> None:
        context.cache = {"list": []}
        context.alias = context.cache["list"]
        context.owner = context

    context, views = make(attach)
    one, two = views.make(), views.make()
    one.cache["list"].append("one")  # type: ignore[attr-defined]
    one.new = 1  # type: ignore[attr-defined]

    assert one.alias == ["one"]  # type: ignore[attr-defined]
    assert one.owner is one  # type: ignore[attr-defined]
    assert context.cache == two.cache == {"list": []}  # type: ignore[attr-defined]
    assert not hasattr(two, "new")


def test_what_cannot_be_copied_is_shared_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def attach(context: Any) -> None:
        context.engine = SimpleNamespace(lock=threading.Lock())

    context, views = make(attach)

    assert views.make().engine is views.make().engine is context.engine  # type: ignore[attr-defined]
    assert len([record for record in caplog.records if "context.engine is shared" in record.message]) == 1


def test_weights_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        def __deepcopy__(self, memo: object) -> Module:
            raise AssertionError("copied")

    torch = SimpleNamespace(nn=SimpleNamespace(Module=Module), Tensor=Module)
    monkeypatch.setitem(sys.modules, "torch", torch)

    def attach(context: Any) -> None:
        context.model = Module()

    context, views = make(attach)

    assert views.make().model is views.make().model is context.model  # type: ignore[attr-defined]
