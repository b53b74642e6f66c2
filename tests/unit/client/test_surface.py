"""What users of relight.client import, and what that imports."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import relight.client
from relight.client import AsyncClient, AsyncSession, Client, Session

PAIRS = [(Client, AsyncClient), (Session, AsyncSession)]


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("waiting", "asynchronous"), PAIRS)
def test_both_clients_offer_the_same(waiting: type, asynchronous: type) -> None:
    ours, theirs = public(waiting), public(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, signature in ours.items():
        assert signature.parameters.keys() == theirs[name].parameters.keys(), name
        for parameter, found in signature.parameters.items():
            other = theirs[name].parameters[parameter]
            assert (found.default, found.kind) == (other.default, other.kind), (name, parameter)


def test_both_clients_are_made_alike() -> None:
    ours, theirs = inspect.signature(Client).parameters, inspect.signature(AsyncClient).parameters
    assert {name: (each.default, each.annotation) for name, each in ours.items()} == {
        name: (each.default, each.annotation) for name, each in theirs.items()
    }


def test_everything_public_is_documented() -> None:
    for name in relight.client.__all__:
        assert getattr(relight.client, name).__doc__
    for kind in (kind for pair in PAIRS for kind in pair):
        assert all(getattr(kind, name).__doc__ for name in public(kind))


def imported(code: str) -> set[str]:
    """Return the modules that are imported after the code has run in a fresh interpreter."""
    code = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import relight.client", {"grpc", "httpx", "numpy", "torch", "google", "google.protobuf"}),
        (
            "from relight.client import Client\nClient('http://127.0.0.1:1')",
            {"grpc", "numpy", "torch", "google.protobuf"},
        ),
        ("from relight.client import Client\nClient('grpc://127.0.0.1:1').close()", {"httpx", "numpy", "torch"}),
    ],
    ids=["import", "http", "grpc"],
)
def test_imports(code: str, without: set[str]) -> None:
    modules = imported(code)
    assert not modules & without
    ours = {name for name in modules if name.startswith("relight.") and not name.startswith("relight.client")}
    assert {name for name in ours if not name.startswith("relight.protos")} <= {"relight.version"}
