"""Finding the configured envelope, and putting it around a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relight.handlers.envelopes.base import BaseEnvelope
from relight.runtime.envelope import ENVELOPES, EnvelopeError, enclose
from relight.runtime.handler_loader import EntryPoint
from relight.sdk.context import Context

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
from ts.torch_handler.request_envelope.base import BaseEnvelope

NOT_A_CLASS = 1

class Other:
    pass

class Own(BaseEnvelope):
    def parse_input(self, data):
        return ["own", *data]

    def format_output(self, data):
        return data
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `own_envelope` with an envelope `Own`."""
    (tmp_path / "own_envelope.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def entry() -> EntryPoint:
    return EntryPoint(lambda _: "initialized", lambda data, _: data, is_async=False)


def context() -> Context:
    return Context("m", "/model", None, 1, None)


@pytest.mark.parametrize("name", ENVELOPES)
def test_built_in(name: str) -> None:
    enclosed = enclose(entry(), name)
    assert isinstance(enclosed.handle.__self__, BaseEnvelope)  # type: ignore[attr-defined]
    assert ENVELOPES[name].endswith(f":{type(enclosed.handle.__self__).__name__}")  # type: ignore[attr-defined]


def test_loading_bypasses_the_envelope() -> None:
    handler = entry()
    enclosed = enclose(handler, "body")
    assert enclosed.initialize is handler.initialize
    assert enclosed.is_async is handler.is_async
    assert enclosed.handle([{"body": 1}], context()) == [1]


@pytest.mark.usefixtures("own")
def test_own_envelope() -> None:
    assert enclose(entry(), "own_envelope:Own").handle([1], context()) == ["own", 1]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothere", "service_envelope=nothere: known are body, json, kserve, kservev2 and module:Class"),
        ("base", "service_envelope=base: known are "),
        ("no_such_module:Own", "service_envelope=no_such_module:Own: there is no module no_such_module"),
        ("own_envelope.sub:Own", "there is no module own_envelope.sub"),
        ("own_envelope:Missing", "own_envelope has no BaseEnvelope 'Missing'"),
        ("own_envelope:Other", "own_envelope has no BaseEnvelope 'Other'"),
        ("own_envelope:NOT_A_CLASS", "own_envelope has no BaseEnvelope 'NOT_A_CLASS'"),
    ],
)
def test_no_such_envelope(name: str, text: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        enclose(entry(), name)
    assert text in str(caught.value)


def test_an_error_inside_the_module_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_envelope.py").write_text("import not_installed_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_at_all"):
        enclose(entry(), "needy_envelope:Own")


def test_the_base_alone_is_no_envelope() -> None:
    with pytest.raises(TypeError, match="abstract"):
        enclose(entry(), "relight.handlers.envelopes.base:BaseEnvelope")


def test_results_of_the_handler_are_formatted() -> None:
    handler: Any = EntryPoint(lambda _: None, lambda _rows, _context: [1], is_async=False)
    assert enclose(handler, "json").handle([{"instances": [1]}], context()) == ['{"predictions": [1]}']
