"""Models with `asyncCommunication` over gRPC (grpc_api.md §10 and §11, rows 107 and 108)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from tests.support.grpc_api import ISE, predictions, read_all, results
from tests.support.server import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.grpc_api import Api
    from tests.support.server import Server

OK = grpc.StatusCode.OK
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def concurrent(api: Api, grpc_server: Server) -> Iterator[str]:
    """A model whose worker runs its requests at the same time."""
    for attempt in range(10 if is_reference() else 1):
        name = f"concurrent{attempt}"
        with grpc_server.registered("concurrent.mar", name, initial_workers=1, synchronous="true"):
            # TorchServe's workers of this kind sometimes do not answer after their start.
            if not is_reference() or read_all(api.stream(name, {"name": "x"}, timeout=5)).code == OK:
                yield name
                return
    pytest.fail("no worker that answers")


def test_row_107_streams_at_once(api: Api, grpc_server: Server, concurrent: str) -> None:
    gate = grpc_server.gate()
    calls = [api.stream(concurrent, {"name": name, "gate": gate.name}) for name in "abcd"]
    gate.wait_arrived(4)
    assert [next(call).prediction for call in calls] == [b"a-0", b"b-0", b"c-0", b"d-0"]
    gate.open()
    for name, call in zip("abcd", calls, strict=True):
        outcome = read_all(call)
        assert (predictions(outcome), outcome.code) == ([f"{name}-1".encode(), f"{name}-end".encode()], OK)


@pytest.mark.fix
def test_row_108_one_raises(api: Api, grpc_server: Server, concurrent: str) -> None:
    for _ in range(3):
        bad_gate, good_gate = grpc_server.gate(), grpc_server.gate()
        good = api.stream(concurrent, {"name": "good", "gate": good_gate.name})
        bad = api.stream(concurrent, {"name": "bad", "gate": bad_gate.name, "then": "raise"})
        bad_gate.wait_arrived()
        good_gate.wait_arrived()
        bad_gate.open()
        outcome = read_all(bad)
        assert (predictions(outcome), outcome.code) == ([b"bad-0"], UNAVAILABLE)
        assert outcome.details == f"Prediction failed\n{ISE}"
        good_gate.open()
        outcome = read_all(good)
        assert (predictions(outcome), outcome.code) == ([b"good-0", b"good-1", b"good-end"], OK)


@pytest.mark.fix
def test_unary_calls_at_once(api: Api, grpc_server: Server, concurrent: str) -> None:
    gate = grpc_server.gate()
    calls = [api.start(concurrent, {"name": name, "gate": gate.name}) for name in "abcd"]
    gate.wait_arrived(4)
    gate.open()
    assert results(calls) == [f"{name}-0{name}-1{name}-end".encode() for name in "abcd"]


@pytest.mark.fix
def test_stream_beside_a_unary_call(api: Api, grpc_server: Server, concurrent: str) -> None:
    gate = grpc_server.gate()
    unary = api.start(concurrent, {"name": "u", "gate": gate.name})
    stream = api.stream(concurrent, {"name": "s", "gate": gate.name})
    gate.wait_arrived(2)
    gate.open()
    outcome = read_all(stream)
    assert (predictions(outcome), outcome.code) == ([b"s-0", b"s-1", b"s-end"], OK)
    assert results([unary]) == [b"u-0u-1u-end"]
