"""A text generator that streams, from training to the first character: `make text-generator`.

Trains a small transformer to write tiny tales, packs it with torch-model-archiver, starts torchserve with its default
security, registers the model over gRPC, and has it tell the same tales to curl, to the gRPC stub and to relight.client.
Folder and ports are its own, so it collides with no running server.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
from common.progress import DemoError, Progress, note
from common.server import end_in_order, own_folder, own_server, pack
from google.protobuf.empty_pb2 import Empty

from relight.client import Client, ClientError
from relight.protos import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from common.server import Server

HERE = Path(__file__).resolve().parent
MODEL = "storyteller"
WISH = {"prompt": "One evening ", "tales": 3, "seed": 7}
ENDLESS = {"tales": 10_000}
ENOUGH = 100
QUICK_STEPS = 20
REQUIRED_KNOWN_WORDS = 0.95
STEPS = 7
CALL_TIMEOUT_S = 60

progress = Progress(STEPS)


class Telling(NamedTuple):
    """One streamed answer."""

    caller: str
    parts: list[bytes]
    first_ms: float
    seconds: float

    @property
    def text(self) -> str:
        """All that was told."""
        return b"".join(self.parts).decode()

    def row(self) -> str:
        """The line of the table."""
        characters = len(self.text)
        return (
            f"{self.caller:<26}{characters:>12}{len(self.parts):>8}{self.first_ms:>10.1f}{self.seconds * 1000:>9.0f}"
            f"{characters / self.seconds:>9.0f}"
        )


TABLE_HEAD = f"{'called with':<26}{'characters':>12}{'parts':>8}{'first ms':>10}{'all ms':>9}{'chars/s':>9}"


def listen(caller: str, begin: float, parts: Iterable[bytes]) -> Telling:
    """Read an answer to its end, and note when its first part came."""
    told = []
    first = 0.0
    for part in parts:
        first = first or time.perf_counter() - begin
        told.append(part)
    if not told:
        raise DemoError(f"{caller}: the answer is empty")
    return Telling(caller, told, first * 1000, time.perf_counter() - begin)


def with_curl(server: Server, token: str) -> Telling:
    """`curl -N`: what has come is shown at once."""
    begin = time.perf_counter()
    command = ["curl", "-sSN", "--fail", "--noproxy", "*", "-H", f"Authorization: Bearer {token}"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(WISH)]
    command += [f"http://127.0.0.1:{server.inference}/predictions/{MODEL}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        output = process.stdout
        assert output is not None
        telling = listen("curl -N", begin, iter(lambda: output.read(65536), b""))
    if process.returncode:
        raise DemoError(f"curl ended with status {process.returncode}")
    return telling


def with_stub(server: Server, token: str) -> Telling:
    """The stub that protoc generates, with named inputs."""
    request = inference_pb2.PredictionsRequest(
        model_name=MODEL, input={name: str(value).encode() for name, value in WISH.items()}
    )
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_inference}") as channel:
        stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
        stub.Ping(Empty(), metadata=metadata, timeout=CALL_TIMEOUT_S)  # connects
        begin = time.perf_counter()
        answers = stub.StreamPredictions(request, metadata=metadata, timeout=CALL_TIMEOUT_S)
        return listen("gRPC stub", begin, (answer.prediction for answer in answers))


def with_client(server: Server, protocol: str, port: int) -> Telling:
    """relight.client: the same call over either protocol."""
    with Client(f"{protocol}://127.0.0.1:{port}", key_file=server.key_file) as client:
        client.ping(timeout=CALL_TIMEOUT_S)  # connects
        begin = time.perf_counter()
        return listen(f"relight.client, {protocol}", begin, client.stream(MODEL, WISH, timeout=CALL_TIMEOUT_S))


def tell(server: Server) -> list[Telling]:
    """Have the same tales told to every caller.

    Raises:
        DemoError: they were told differently, or over gRPC not character by character.
    """
    token = server.keys()["inference"]
    # The worker's first answer takes longer than all others.
    with_stub(server, token)
    tellings = [with_stub(server, token)]
    if shutil.which("curl"):
        tellings.insert(0, with_curl(server, token))
    else:
        note("curl is not installed here, so it is left out")
    tellings += [with_client(server, "http", server.inference), with_client(server, "grpc", server.grpc_inference)]
    for telling in tellings:
        if telling.text != tellings[0].text:
            raise DemoError(f"{telling.caller} was told another tale: {telling.text!r} instead of {tellings[0].text!r}")
        if len(telling.parts) != len(telling.text) and ("gRPC" in telling.caller or "grpc" in telling.caller):
            raise DemoError(f"{telling.caller} got {len(telling.parts)} parts for {len(telling.text)} characters")
    return tellings


def hang_up(client: Client) -> None:
    """Leave a very long answer early. Its worker, the only one, must stop writing and be free for the next call."""
    with closing(client.stream(MODEL, ENDLESS)) as parts:
        heard = read_some(parts)
    begin = time.perf_counter()
    with closing(client.stream(MODEL, WISH, timeout=CALL_TIMEOUT_S)) as parts:
        next(parts)
    waited_ms = (time.perf_counter() - begin) * 1000
    note(f"left {ENDLESS['tales']} tales after {heard} characters; the next answer began after {waited_ms:.1f} ms")


def read_some(parts: Iterator[bytes]) -> int:
    """Read until that is enough, and return how much it was."""
    heard = 0
    for part in parts:
        heard += len(part)
        if heard >= ENOUGH:
            return heard
    raise DemoError(f"the endless answer ended after {heard} characters")


def known_words(text: str) -> float:
    """The share of words that the tales to learn from have."""
    from tales import tales

    known = set(re.findall(r"\w+", " ".join(tales(1000))))
    words = re.findall(r"\w+", text)
    return sum(word in known for word in words) / len(words)


def serve_and_call(server: Server) -> list[Telling]:
    """Register the model, call it in every way."""
    with Client(
        f"grpc://127.0.0.1:{server.grpc_inference}",
        management=f"grpc://127.0.0.1:{server.grpc_management}",
        key_file=server.key_file,
    ) as client:
        progress.step("registering the model over gRPC, with the management token")
        note(client.register(f"{MODEL}.mar", initial_workers=1, timeout=CALL_TIMEOUT_S))
        progress.step("listening to the same tales in each way, with the inference token")
        tellings = tell(server)
        print("\n" + tellings[0].text, flush=True)
        progress.step("hanging up in the middle of a long answer")
        hang_up(client)
    return tellings


def demo(folder: Path, quick: bool) -> list[Telling]:
    """All steps."""
    progress.step("training a transformer to write tiny tales, character by character")
    # Imported here: torch takes seconds, and the first line of the demo should not.
    import train

    train.train(folder, QUICK_STEPS if quick else train.STEPS)
    with own_server(folder) as server:
        progress.step("packing it with torch-model-archiver")
        files = {
            "serialized-file": folder / "storyteller.pt",
            "model-file": HERE / "model.py",
            "handler": HERE / "handler.py",
            "config-file": HERE / "model-config.yaml",
        }
        pack(server.store, MODEL, files)
        progress.step("starting torchserve, token authorization on")
        server.start()
        note(f"HTTP on port {server.inference}, gRPC on port {server.grpc_inference}")
        tellings = serve_and_call(server)
        progress.step("stopping the server")
        server.stop()
    return tellings


def main() -> int:
    """Run the demo.

    Returns:
        0 when every way of calling got the same tales, and they are made of words; else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="hardly train, and take whatever the network says")
    quick = parser.parse_args().quick
    end_in_order()
    try:
        with own_folder("relight-tales") as folder:
            tellings = demo(folder, quick)
    except (DemoError, ClientError, grpc.RpcError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("\n".join(["", TABLE_HEAD, *(telling.row() for telling in tellings), ""]))
    known = known_words(tellings[0].text)
    enough = quick or known >= REQUIRED_KNOWN_WORDS
    print(f"{'Done' if enough else 'Too few words are words'} after {progress.seconds:.1f} s; {known:.0%} known words.")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
