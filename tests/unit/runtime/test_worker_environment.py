"""What a worker finds in its environment: threads that fit the cores, and what the server adds."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from relight.runtime.worker import _apply_environment
from relight.wire.messages import Load

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """No thread variables, and a torch that records the thread counts it is told."""
    told: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=told.append))
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {"PATH": "/bin"})
        yield told


def load(threads: int, **environment: str) -> Load:
    values: dict[str, Any] = dict.fromkeys(Load.__struct_fields__)
    return Load(**values | {"threads": threads, "environment": environment})


def test_threads_that_fit(environment: list[int]) -> None:
    _apply_environment(load(3))

    assert environment == [3]
    assert os.environ["OMP_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "3"


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_operator_decides(environment: list[int], variable: str) -> None:
    os.environ[variable] = "7"

    _apply_environment(load(3))

    assert environment == []
    assert {name: os.environ.get(name) for name in VARIABLES} == dict.fromkeys(VARIABLES) | {variable: "7"}


def test_an_empty_variable_decides_nothing(environment: list[int]) -> None:
    os.environ["OMP_NUM_THREADS"] = ""

    _apply_environment(load(3))

    assert environment == [3]


def test_no_thread_count(environment: list[int]) -> None:
    _apply_environment(load(0))

    assert environment == []
    assert "OMP_NUM_THREADS" not in os.environ


def test_variables_of_the_server() -> None:
    _apply_environment(load(0, TS_DECODE_INPUT_REQUEST="false"))

    assert os.environ["TS_DECODE_INPUT_REQUEST"] == "false"
    assert not set(VARIABLES) & set(os.environ)
