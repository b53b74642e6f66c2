"""The snippets of docs/grpc.md run as they stand, but for the ports, each in a program that begins with the first."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.support.archives import manifest, write_mar

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.server import Server

pytestmark = pytest.mark.fix  # reflection, health, half-closed streams

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "grpc.md").read_text()
CERTIFICATE = """\
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout key.pem -out certificate.pem"""


def blocks(language: str, page: str = PAGE, title: str = "") -> list[str]:
    """Return the fenced blocks of a language, with a title or without one."""
    opening = rf'{language} title="{title}"' if title else language
    return re.findall(rf"^```{re.escape(opening)}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


SNIPPETS = blocks("python")


def names() -> list[str]:
    """Name each snippet by what it stands under."""
    found = []
    heading = ""
    for title, fence in re.findall(r"^## (.*)|^```(python)$", PAGE, re.MULTILINE):
        heading = title or heading
        found += [heading] if fence else []
    return found


def archive(folder: Path, name: str, handler: str, config: str | None = None) -> None:
    """Pack a handler that a page shows."""
    extra = {} if config is None else {"configFile": "model-config.yaml"}
    files = {f"{name}.py": handler.encode()}
    if config is not None:
        files["model-config.yaml"] = config.encode()
    files["MAR-INF/MANIFEST.json"] = json.dumps(manifest(name, name, **extra)).encode()
    write_mar(folder / f"{name}.mar", files)


def build(server: Server) -> Server:
    """Serve the models of the page."""
    for name, page in (("upper", "quickstart.md"), ("count", "streaming.md")):
        archive(server.store, name, blocks("python", (DOCS / page).read_text())[0])
    archive(server.store, "patient", blocks("python", title="patient.py")[0])
    archive(server.store, "total", blocks("python", title="total.py")[0], blocks("yaml", title="total.yaml")[0])
    headers = server.bearer("management")
    for name in ("upper", "count", "patient", "total"):
        answer = server.management.request("POST", f"/models?url={name}.mar&initial_workers=1", headers)
        assert answer.status == 200
    return server


def run(command: str, folder: Path) -> str:
    """Run a shell command with this interpreter as `python`; what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's command has generated the stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    (command,) = (block for block in blocks("console") if "grpc_tools" in block)
    lines = [line for line in command.splitlines() if not line.startswith("pip ")]
    run("\n".join(lines).replace("src/relight/protos", str(ROOT / "src/relight/protos")), folder)
    return folder


@pytest.fixture(scope="module")
def plain(make_server: ServerFactory) -> Server:
    """A server with tokens, as the page assumes it."""
    return build(make_server({"disable_token_authorization": "false"}))


@pytest.fixture(scope="module")
def secure(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> tuple[Server, Path]:
    """A server with the page's TLS settings, and the folder of the certificate."""
    folder = tmp_path_factory.mktemp("tls")
    run(CERTIFICATE, folder)
    (properties,) = blocks("properties")
    config = dict(line.split("=", 1) for line in properties.splitlines())
    config = {key: str(folder / value) if value.endswith(".pem") else value for key, value in config.items()}
    return build(make_server({"disable_token_authorization": "false", **config})), folder


def program(server: Server, snippet: str) -> str:
    """Return the first snippet and another one, with the server's ports."""
    text = f"{SNIPPETS[0]}\n{snippet}"
    for port, key in (("7070", "grpc_inference_port"), ("7071", "grpc_management_port")):
        text = text.replace(port, server.config[key])
    return text


EXPECTED = {
    "A prediction": "b'HELLO'",
    "Streams": "one \ntwo \nthree",
    "Sequences": "mine b'1'\nmine b'3'\nmine b'6'",
    "Deadlines and cancellation": "StatusCode.DEADLINE_EXCEEDED\nTrue",
    "Errors": "StatusCode.INTERNAL Model not found: nobody org.pytorch.serve.archive.model.ModelNotFoundException",
    "Managing models": 'Model "second" unregistered',
    "Health": "True",
    "Sizes, connections, compression": "5000000",
}


@pytest.mark.parametrize("name", [name for name in names() if name != "TLS"])
def test_snippet(name: str, plain: Server, stubs: Path) -> None:
    snippet = "" if name == "A prediction" else SNIPPETS[names().index(name)]
    (plain.root / "snippet.py").write_text(program(plain, snippet))
    assert EXPECTED[name] in run(f"PYTHONPATH={stubs} python -W error snippet.py", plain.root)


def test_tls_snippet(secure: tuple[Server, Path], stubs: Path) -> None:
    server, folder = secure
    # The first snippet's own call is made without TLS.
    first = SNIPPETS[0].split("request = ")[0]
    snippet = program(server, SNIPPETS[names().index("TLS")]).removeprefix(program(server, ""))
    (server.root / "snippet.py").write_text(first + snippet)
    (server.root / "certificate.pem").write_bytes((folder / "certificate.pem").read_bytes())
    assert run(f"PYTHONPATH={stubs} python snippet.py", server.root) == "b'HELLO'\n"


class _WithMetadata(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds metadata to each call, as grpcurl's `-H` does."""

    def __init__(self, metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Add it to a unary call."""
        return continuation(client_call_details._replace(metadata=[self._metadata]), request)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """Add it to a call with streams in both directions."""
        return continuation(client_call_details._replace(metadata=[self._metadata]), request_iterator)


def grpcurl_commands() -> list[list[str]]:
    (block,) = (block for block in blocks("console") if "grpcurl" in block)
    return [shlex.split(line) for line in block.replace("\\\n", "").splitlines() if line.startswith("grpcurl")]


@pytest.mark.parametrize("command", grpcurl_commands(), ids=" ".join)
def test_grpcurl(command: list[str], plain: Server) -> None:
    """What grpcurl does with these commands, by a client that knows nothing but what reflection tells it."""
    arguments = command[command.index("127.0.0.1:7070") + 1 :]
    metadata = ("authorization", plain.bearer("inference")["Authorization"])
    with grpc.insecure_channel(f"127.0.0.1:{plain.config['grpc_inference_port']}") as bare:
        channel = grpc.intercept_channel(bare, _WithMetadata(metadata))
        database = ProtoReflectionDescriptorDatabase(channel)
        if arguments == ["list"]:
            assert len(database.get_services()) == 4
            return
        service, _, method = arguments[-1].partition("/")
        described = DescriptorPool(database).FindServiceByName(service)
        if arguments[0] == "describe":
            assert described.methods_by_name
            return
        called = described.methods_by_name[method]
        request = json_format.Parse(command[command.index("-d") + 1], GetMessageClass(called.input_type)())
        answer = channel.unary_unary(
            f"/{arguments[-1]}", type(request).SerializeToString, GetMessageClass(called.output_type).FromString
        )(request)
        assert json_format.MessageToDict(answer) == {"prediction": "SEVMTE8="}
