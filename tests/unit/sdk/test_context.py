"""The context of a handler, as handlers use it."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

from relight.sdk.context import Context, RequestProcessor


def make(*headers: Any) -> Context:
    context = Context("m", "/dir", {"model": {}}, 4, 1, "0.12.0", model_yaml_config={"a": 1})
    if headers:
        context.request_processor = [RequestProcessor(header) for header in headers]
        context.request_ids = {index: f"r{index}" for index in range(len(headers))}
    return context


def test_before_the_first_request() -> None:
    context = make()
    assert context.system_properties == {
        "model_dir": "/dir",
        "gpu_id": 1,
        "batch_size": 4,
        "server_name": "MMS",
        "server_version": "0.12.0",
        "limit_max_image_pixels": True,
    }
    for name in ("request_ids", "request_processor", "metrics", "stopping_criteria"):
        assert getattr(context, name) is None
    assert (context.model_name, context.manifest, context.model_yaml_config) == ("m", {"model": {}}, {"a": 1})
    assert context.get_request_id() is None
    context.set_response_status(code=400)
    with pytest.raises(TypeError, match="'NoneType' object is not subscriptable"):
        context.get_request_header(0, "a")


def test_request_headers_are_looked_up_by_their_own_spelling() -> None:
    context = make({"Accept": "x", "body": {"content-type": "y"}}, {})
    assert context.get_request_header(0, "Accept") == "x"
    assert context.get_request_header(0, "accept") is None
    assert context.get_all_request_header(0) == {"Accept": "x", "body": {"content-type": "y"}}
    assert type(context.get_all_request_header(1)) is dict
    assert (context.get_request_id(), context.get_request_id(1), context.get_request_id(7)) == ("r0", "r1", None)
    with pytest.raises(IndexError):
        context.get_request_header(2, "a")


def test_headers_are_built_once_and_only_when_asked_for() -> None:
    built = []

    def build() -> dict[str, Any]:
        built.append(1)
        return {"a": "b"}

    context = make(build)
    context.set_response_status(404, "gone", 0)
    context.set_response_header(0, "k", "v")
    assert not built
    assert context.get_request_header(0, "a") == "b"
    assert context.get_all_request_header(0) == {"a": "b"}
    assert built == [1]


def test_response_status() -> None:
    context = make({}, {})
    assert context.get_response_status(0) == (200, None)
    context.set_response_status(404, "nf", 1)
    assert (context.get_response_status(0), context.get_response_status(1)) == ((200, None), (404, "nf"))
    context.set_response_status()
    assert context.get_response_status(0) == (200, "")
    context.set_all_response_status(418, "teapot")
    assert {context.get_response_status(index) for index in (0, 1)} == {(418, "teapot")}
    with pytest.raises(IndexError):
        context.set_response_status(idx=9)


def test_response_headers() -> None:
    context = make({}, {})
    assert context.get_response_content_type(0) is None
    context.set_response_content_type(0, "image/png")
    context.set_response_header(0, "X-a", "1")
    context.set_response_header(0, "X-a", "2")
    assert context.get_response_headers(0) == {"content-type": "image/png", "X-a": "2"}
    assert context.get_response_headers(1) == {}
    assert context.get_response_content_type(0) == "image/png"
    context.get_response_headers(1)["late"] = "seen"
    assert context.request_processor[1].response == {"late": "seen"}


def test_sequence_id(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make({"ts_request_sequence_id": "s1"})
    assert context.get_sequence_id(0) == "s1"
    monkeypatch.setenv("TS_REQUEST_SEQUENCE_ID", "my-id")
    assert make({"my-id": "s2"}).get_sequence_id(0) == "s2"
    assert make({}).get_sequence_id(0) is None


def test_cancellation() -> None:
    context = make({}, {})
    assert not context.is_cancelled()
    context.cancel_probe = lambda index: index == 1
    assert (context.is_cancelled(), context.is_cancelled(1)) == (False, True)


def test_equality() -> None:
    class Derived(Context):
        pass

    derived = Derived("m", "/dir", {"model": {}}, 4, 1, "0.12.0", model_yaml_config={"a": 1})
    assert make() == make()
    assert make() != derived
    assert make() != "m"
    other = make()
    other.cache = {}  # type: ignore[attr-defined]  # handlers add attributes
    assert make() != other


def test_deep_copy_keeps_the_workers_connection() -> None:
    context: Any = make({"a": "b"})
    lock = threading.Lock()  # cannot be copied, like a socket

    class Worker:
        def __init__(self) -> None:
            self.lock = lock

        def send(self, ret: list[Any], code: int, message: str) -> None:
            del ret, code, message

    context.intermediate_sender = Worker().send
    context.cache = {"k": [1]}
    clone = copy.deepcopy(context)
    clone.cache["k"].append(2)
    clone.set_response_status(500, "x", 0)
    assert context.cache == {"k": [1]}
    assert context.get_response_status(0) == (200, None)
    assert clone.intermediate_sender == context.intermediate_sender
    assert clone.get_request_header(0, "a") == "b"
