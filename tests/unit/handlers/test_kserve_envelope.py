"""The envelope of version 1 of the KServe protocol (archives_and_handlers.md §5.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.handlers.support import Metrics, Recorder, context, identity, returning

from relight.handlers.envelopes.kserve import KServeEnvelope

if TYPE_CHECKING:
    from tests.unit.handlers.support import Handle


@pytest.mark.parametrize(
    "row",
    [
        {"data": {"instances": [[1, 2]]}},
        {"body": {"instances": [[1, 2]]}},
        {"body": b'{"instances": [[1, 2]]}'},
        {"body": bytearray(b'{"instances": [[1, 2]]}')},
    ],
)
def test_kserve(row: dict[str, Any]) -> None:
    assert KServeEnvelope(identity).handle([row], context()) == [{"predictions": [[1, 2]]}]


def test_kserve_leaves_base64_to_the_handler() -> None:
    row = {"body": {"instances": [{"b64": "aGk="}]}}
    assert KServeEnvelope(identity).handle([row], context()) == [{"predictions": [{"b64": "aGk="}]}]


@pytest.mark.parametrize(("explain", "member"), [("True", "explanations"), ("False", "predictions")])
def test_kserve_explanations(explain: str, member: str) -> None:
    bound = context({"explain": explain})
    assert KServeEnvelope(identity).handle([{"body": {"instances": [1]}}], bound) == [{member: [1]}]


@pytest.mark.parametrize("result", [[1, 2, 3], {"a": 1}, "text", 5])
def test_kserve_wraps_any_result(result: Any) -> None:
    row = {"body": {"instances": [1]}}
    assert KServeEnvelope(returning(result)).handle([row], context()) == [{"predictions": result}]


def test_kserve_without_instances() -> None:
    assert KServeEnvelope(lambda data, _: repr(data)).handle([{"body": {}}], context()) == [{"predictions": "None"}]
    assert KServeEnvelope(identity).handle([{"body": {}}], context()) is None
    assert KServeEnvelope(identity).handle([{"body": {"instances": []}}], context()) == []


@pytest.mark.parametrize(
    ("body", "error"),
    [('{"instances": [1]}', AttributeError), ([1], AttributeError), (None, AttributeError), (b"nonsense", ValueError)],
)
def test_kserve_refuses(body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        KServeEnvelope(identity).handle([{"body": body}], context())


def kserve_rows(*bodies: Any) -> list[dict[str, Any]]:
    return [{"body": {"instances": instances}} for instances in bodies]


def test_kserve_predicts_a_batch_in_one_call() -> None:
    handle, bound = Recorder(), context({"x-name": "A"}, {"x-name": "B"}, {"x-name": "C"})
    answers = KServeEnvelope(handle).handle(kserve_rows([1], [2, 3], []), bound)
    assert handle.calls == [([1, 2, 3], ["A", "B", "C"], {0: "id-0", 1: "id-1", 2: "id-2"})]
    assert answers == [{"predictions": [["r", 1]]}, {"predictions": [["r", 2], ["r", 3]]}, {"predictions": []}]


def test_kserve_keeps_predictions_and_explanations_apart() -> None:
    headers = [{"x-name": name, "explain": str(name in "BD")} for name in "ABCD"]
    handle, metrics = Recorder(), Metrics()
    bound = context(*headers, metrics=metrics)
    processors, ids = bound.request_processor, bound.request_ids
    answers = KServeEnvelope(handle).handle(kserve_rows([1], [2], [3], [4]), bound)
    assert handle.calls == [
        ([1, 3], ["A", "C"], {0: "id-0", 1: "id-2"}),
        ([2], ["B"], {0: "id-1"}),
        ([4], ["D"], {0: "id-3"}),
    ]
    assert answers == [
        {"predictions": [["r", 1]]},
        {"explanations": [["r", 2]]},
        {"predictions": [["r", 3]]},
        {"explanations": [["r", 4]]},
    ]
    assert [bound.get_response_status(index)[1] for index in range(4)] == ["by A", "by B", "by A", "by D"]
    assert (bound.request_processor, bound.request_ids) == (processors, ids)
    assert metrics.seen[0] == {0: "id-0", 1: "id-2"}
    assert metrics.seen[-1] == ids


@pytest.mark.parametrize(
    ("handle", "rows", "text"),
    [
        (identity, kserve_rows([1], None), "has to be a list"),
        (returning({"a": 1}), kserve_rows([1], [2]), "2 instances of 2 requests need .* batchSize 1"),
        (returning([1]), kserve_rows([1], [2, 3]), "3 instances of 2 requests"),
    ],
)
def test_kserve_cannot_answer_such_a_batch(handle: Handle, rows: list[Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        KServeEnvelope(handle).handle(rows, context({}, {}))


def test_an_explanation_without_an_answer_fails_its_batch() -> None:
    bound = context({"explain": "True"}, {})
    with pytest.raises(ValueError, match="no answer to request id-0"):
        KServeEnvelope(identity).handle(kserve_rows([], [1]), bound)
    assert bound.get_request_id(1) == "id-1"


def test_a_subclass_of_the_kserve_envelope_is_asked_for_batches_too() -> None:
    class Renamed(KServeEnvelope):
        def parse_input(self, data: Any) -> Any:
            return data[0]["body"]["rows"]

        def format_output(self, data: Any) -> Any:
            assert self.context is not None
            return [{self.context.get_request_header(0, "x-name"): data}]

    rows = [{"body": {"rows": [1]}}, {"body": {"rows": [2]}}]
    assert Renamed(identity).handle(rows, context({"x-name": "A"}, {"x-name": "B"})) == [{"A": [1]}, {"B": [2]}]
