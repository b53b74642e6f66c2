"""`make text-generator`: the streaming example, as a newcomer runs it, and what its handler promises."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relight.sdk.context import Context, RequestProcessor
from relight.sdk.errors import PredictionException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    Answer = Callable[..., list[str]]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text_generator"
ONE_CHARACTER_EACH = {"gRPC stub", "relight.client, grpc"}

torch = pytest.importorskip("torch")


def test_every_way_of_calling_hears_the_same_tales(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TS_CONFIG_FILE": "/nonexistent/other.properties"}
    done = subprocess.run(
        [sys.executable, EXAMPLE / "demo.py", "--quick"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\S.*?) +(\d+) +(\d+) +\d+\.\d +\d+ +\d+$", done.stdout, re.MULTILINE)
    curl = ["curl -N"] if shutil.which("curl") else []
    assert [row[0] for row in rows] == [*curl, "gRPC stub", "relight.client, http", "relight.client, grpc"]
    assert len({characters for _, characters, _ in rows}) == 1
    assert all(parts == characters for way, characters, parts in rows if way in ONE_CHARACTER_EACH)
    assert done.stdout.count("\nOne evening ") == 3
    assert re.search(r"left 10000 tales after 100 characters; the next answer began after \d", done.stdout)
    assert list(tmp_path.glob("relight-tales-*")) == []


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The handler's module, beside which it finds the network's."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield importlib.import_module("handler")
    for name in ("handler", "model"):
        sys.modules.pop(name, None)


@pytest.fixture
def answer(handler: ModuleType) -> Answer:
    """Ask the handler, with a network that has learned nothing; what it sends comes back, part by part."""
    torch.manual_seed(1)
    teller = handler.StorytellerHandler()
    teller.model = handler.BaseHandler._load_pickled_model(teller, str(EXAMPLE), "model.py", None)
    teller.device = "cpu"

    def ask(row: dict[str, Any], gone_after: int | None = None) -> list[str]:
        sent: list[str] = []
        context = Context("storyteller", str(EXAMPLE), None, 1, None)
        context.request_processor = [RequestProcessor({})]
        context.request_ids = {0: "id"}
        context.intermediate_sender = lambda parts, *_: sent.extend(parts)
        context.cancel_probe = lambda _: len(sent) == gone_after
        sent += teller.handle([row], context)
        return sent

    return ask


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"body": {"prompt": "A cat", "tales": 2, "seed": 5}}, id="JSON over HTTP"),
        pytest.param({"data": b'{"prompt": "A cat", "tales": 2, "seed": 5}'}, id="JSON over gRPC"),
        pytest.param({"prompt": b"A cat", "tales": b"2", "seed": b"5"}, id="named inputs"),
    ],
)
def test_the_same_wish_gets_the_same_tales(answer: Answer, row: dict[str, Any]) -> None:
    parts = answer(row)

    assert all(len(part) == 1 for part in parts)
    lines = "".join(parts).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("A cat") for line in lines)
    assert parts == answer({"body": {"prompt": "A cat", "tales": 2, "seed": 5}})


def test_a_text_is_a_prompt_and_nothing_is_none(answer: Answer) -> None:
    assert "".join(answer({"body": "Once"})).startswith("Once")
    assert answer({})[-1] == "\n"


def test_a_client_that_has_gone_is_not_written_for(answer: Answer) -> None:
    assert len(answer({"body": {"tales": 10_000, "seed": 1}}, gone_after=3)) == 4


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"promt": "Once"}, "unknown fields: promt"),
        ({"prompt": "Zoë"}, "never seen 'ë'"),
        ({"prompt": "x" * 256}, "shorter than 256"),
        ({"tales": 0}, "tales must be from 1"),
        ({"tales": "many"}, "not a request: invalid literal"),
        ({"temperature": "nan"}, "temperature must be"),
        ({"seed": 2**63}, "seed must be"),
    ],
)
def test_a_wish_that_cannot_be_is_the_clients_fault(answer: Answer, wish: dict[str, Any], reason: str) -> None:
    for row in ({"body": wish}, {"data": json.dumps(wish).encode()}):
        assert reason in _complaint(answer, row)


@pytest.mark.parametrize("body", [["Once"], "{Once", b"\xff"])
def test_what_is_no_wish_is_the_clients_fault(answer: Answer, body: Any) -> None:
    assert _complaint(answer, {"body": body}).startswith("not a request: ")


def _complaint(answer: Answer, row: dict[str, Any]) -> str:
    with pytest.raises(PredictionException) as caught:
        answer(row)
    assert caught.value.error_code == 400
    return caught.value.message


def test_remembering_changes_nothing(answer: Answer, handler: ModuleType) -> None:
    torch.manual_seed(2)
    network = sys.modules["model"].Storyteller()
    text = torch.randint(len(handler.CHARACTERS), (1, 40))
    memory: list[Any] = []
    with torch.inference_mode():
        at_once = network(text)
        first = network(text[:, :7], memory)
        steps = [network(text[:, place : place + 1], memory) for place in range(7, 40)]

    torch.testing.assert_close(torch.cat([first, *steps], dim=1), at_once)


def test_batches_are_refused_when_the_model_is_loaded(handler: ModuleType) -> None:
    with pytest.raises(ValueError, match="leave batch_size at 1"):
        handler.StorytellerHandler().initialize(Context("storyteller", str(EXAMPLE), None, 8, None))
