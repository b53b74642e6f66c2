"""The snippets of docs/client.md run as they stand, but for the ports; the models are those of the other pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import grpc_archives
from tests.support.archives import contents, manifest, write_mar
from tests.support.client import addresses

from relight.client import Client

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.server import Server

pytestmark = pytest.mark.fix  # raw tensors, and answers after the last request of a sequence

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "client.md").read_text()


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def headings() -> list[str]:
    """Name each snippet by what it stands under."""
    found = re.findall(r"^## (.*)|^```(python)$", PAGE, re.MULTILINE)
    names = []
    heading = "first"
    for title, fence in found:
        heading = title or heading
        names += [heading] if fence else []
    return names


def archive(folder: Path, name: str, page: str) -> None:
    """Pack the first handler that a page shows."""
    files = {f"{name}.py": snippets((DOCS / page).read_text())[0].encode()}
    files["MAR-INF/MANIFEST.json"] = json.dumps(manifest(name, name)).encode()
    write_mar(folder / f"{name}.mar", files)


@pytest.fixture(scope="module")
def documented(make_server: ServerFactory) -> Server:
    """A server as the page assumes it, in whose folder the key file lies."""
    server = make_server({"disable_token_authorization": "false", "ts_open_inference_protocol": "true"})
    archive(server.store, "upper", "quickstart.md")
    archive(server.store, "count", "streaming.md")
    write_mar(server.store / "double.mar", contents("double", "oip_numpy"))
    grpc_archives.build(server.store, "counter", "grpc_sequencer", grpc_archives.WIDE)
    with Client(**addresses(server, "http"), key_file=server.root / "key_file.json") as client:  # type: ignore[arg-type]
        for name in ("upper", "count", "double", "counter"):
            client.register(f"{name}.mar", initial_workers=1)
    return server


@pytest.mark.parametrize("snippet", snippets(PAGE), ids=headings())
def test_snippet(
    snippet: str, documented: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(documented.root)
    http, grpc = addresses(documented, "http"), addresses(documented, "grpc")
    for written, real in (
        ("http://127.0.0.1:8080", http["url"]),
        ("http://127.0.0.1:8081", http["management"]),
        ("grpc://127.0.0.1:7070", grpc["url"]),
        ("grpc://127.0.0.1:7071", grpc["management"]),
    ):
        snippet = snippet.replace(written, real)
    names: dict[str, Any] = {}
    exec("from relight.client import *", names)
    exec(compile(snippet, "docs/client.md", "exec"), names)
    if isinstance(names.get("client"), Client):
        names["client"].close()
    assert capsys.readouterr().out
