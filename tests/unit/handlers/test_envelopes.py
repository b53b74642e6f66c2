"""The request envelopes, as a handler sees them (archives_and_handlers.md §5.7)."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.handlers.support import context, identity, returning

from relight.handlers.envelopes.base import BaseEnvelope
from relight.handlers.envelopes.body import BodyEnvelope
from relight.handlers.envelopes.instances import JSONEnvelope
from relight.handlers.envelopes.kserve import KServeEnvelope
from relight.handlers.envelopes.kservev2 import KServev2Envelope

if TYPE_CHECKING:
    from relight.sdk.context import Context


class Numbered(BaseEnvelope):
    """Numbers the rows, and says that it was here."""

    def parse_input(self, data: Any) -> Any:
        return list(enumerate(data))

    def format_output(self, data: Any) -> Any:
        return [("formatted", each) for each in data]


# The base


def test_rows_are_parsed_and_results_formatted() -> None:
    envelope, bound = Numbered(identity), context()
    assert envelope.context is None
    assert envelope.handle(["a"], bound) == [("formatted", (0, "a"))]
    assert envelope.context is bound


@pytest.mark.parametrize("nothing", [None, []])
def test_nothing_is_not_parsed(nothing: Any) -> None:
    assert Numbered(lambda data, _: [data]).handle(nothing, context()) == [("formatted", nothing)]


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_nothing_is_not_formatted(nothing: Any) -> None:
    assert Numbered(returning(nothing)).handle(["a"], context()) == nothing


def test_an_envelope_needs_both_halves() -> None:
    half = type("Half", (BaseEnvelope,), {"parse_input": lambda _, data: data})
    with pytest.raises(TypeError, match="format_output"):
        half(identity)


@pytest.mark.parametrize("kind", [Numbered, BodyEnvelope, JSONEnvelope, KServeEnvelope, KServev2Envelope])
def test_describe_bypasses_the_envelope(kind: type[BaseEnvelope]) -> None:
    assert kind(identity).handle([{}], context({"describe": "True"})) == [{}]


def test_a_client_cannot_bypass_the_envelope() -> None:
    row = {"body": {"instances": [1]}}
    assert KServeEnvelope(identity).handle([row], context({"describe": "True"})) == [{"predictions": [1]}]


def test_unit_tests_may_go_without_a_context() -> None:
    assert BodyEnvelope(identity).handle([{"body": b"x"}], None) == [b"x"]  # type: ignore[arg-type]


# body


def test_body() -> None:
    rows = [{"data": "d", "body": "b"}, {"data": b"", "body": "b"}, {"other": "o"}, {"body": b""}]
    assert BodyEnvelope(identity).handle(rows, context(*[{}] * 4)) == ["d", "b", None, b""]


# json


def json_rows(*instances: Any) -> list[Any]:
    return JSONEnvelope(identity).parse_input([{"body": {"instances": list(instances)}}])


@pytest.mark.parametrize("row", [{"data": {"instances": [1]}}, {"body": {"instances": [1]}}, {"instances": [1]}])
def test_json_finds_the_instances(row: dict[str, Any]) -> None:
    assert JSONEnvelope(identity).handle([row], context()) == ['{"predictions": [1]}']


@pytest.mark.parametrize(
    ("instances", "rows"),
    [
        ([1, [2], "a"], [1, [2], "a"]),
        ([{"b64": "aGk="}, {"b64": "eW8="}], [b"hi", b"yo"]),
        ([{"x": {"b64": "aGk="}, "n": {"m": {"b64": "aGk="}}}], [{"x": b"hi", "n": {"m": {"b64": "aGk="}}}]),
        ([{"b64": "aGk="}, {"x": {"b64": "aGk="}}], [b"hi", {"x": b"hi"}]),
        ([{"b64": "aGk=", "x": 1}], [{"b64": "aGk=", "x": 1}]),
        ([{"x": {"b64": "aGk=", "y": 1}}], [{"x": {"b64": "aGk=", "y": 1}}]),
        ([1, {"b64": "aGk="}], [1, {"b64": "aGk="}]),
        ([{"b64": "!!"}], [b""]),
    ],
)
def test_json_decodes_base64(instances: list[Any], rows: list[Any]) -> None:
    assert json_rows(*instances) == rows


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (bytearray(b'{"instances": [1]}'), TypeError),
        ([1], TypeError),
        ({"no": []}, KeyError),
        ({"instances": []}, ValueError),
        ({"instances": [{"b64": "aGk="}, 1]}, AttributeError),
        ({"instances": [{"b64": "a"}]}, ValueError),
    ],
)
def test_json_refuses(body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        JSONEnvelope(identity).handle([{"body": body}], context())


def test_json_deals_the_results_out() -> None:
    calls = []

    def handle(data: Any, context: Context) -> Any:
        calls.append(data)
        return [f"é{each}" for each in data]

    rows = [{"body": {"instances": instances}} for instances in ([1, 2], [{"b64": "aGk="}], [3])]
    answers = JSONEnvelope(handle).handle(rows, context({}, {}, {}))
    assert calls == [[1, 2, b"hi", 3]]
    assert answers == [
        '{"predictions": ["\\u00e91", "\\u00e92"]}',
        '{"predictions": ["\\u00e9b\'hi\'"]}',
        '{"predictions": ["\\u00e93"]}',
    ]


@pytest.mark.parametrize(("results", "predictions"), [([1], [1]), ([1, 2, 3], [1, 2])])
def test_json_with_another_number_of_results(results: list[int], predictions: list[int]) -> None:
    (answer,) = JSONEnvelope(returning(results)).handle([{"body": {"instances": [5, 6]}}], context())
    assert json.loads(answer) == {"predictions": predictions}


# Where they are imported from


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("base", BaseEnvelope),
        ("body", BodyEnvelope),
        ("json", JSONEnvelope),
        ("kserve", KServeEnvelope),
        ("kservev2", KServev2Envelope),
    ],
)
def test_paths_of_torchserve(module: str, found: type) -> None:
    imported = importlib.import_module(f"ts.torch_handler.request_envelope.{module}")
    assert getattr(imported, found.__name__) is found


def test_importing_envelopes_loads_nothing_heavy() -> None:
    names = ("base", "body", "json", "kserve", "kservev2")
    code = (
        f"import sys, {', '.join(f'ts.torch_handler.request_envelope.{name}' for name in names)}; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"torch", "numpy"}.isdisjoint(loaded)
