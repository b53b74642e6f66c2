"""The main job of a model server, from training to the answer: `make demo`.

Trains a small network on real scans of handwritten digits, packs it with torch-model-archiver, starts torchserve with
its default security, registers and scales the model over REST, sends 100 held-out scans as PNG files, and prints how
many were read correctly and how long that took. Then the same over gRPC, where a second model reads all scans from one
strip and streams the digits. Folder and ports are its own, so it collides with no running server.
"""

from __future__ import annotations

import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from common.progress import DemoError, Progress, note, percentile
from common.server import end_in_order, own_folder, own_server, pack

from relight.client import Client, ClientError, ModelNotFound, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.server import Server

    Ask = Callable[[bytes], Any]

HERE = Path(__file__).resolve().parent
MODEL = "digits"
STRIP_MODEL = "strip"
IMAGES = 100
WARM_UP = 8
CLIENTS = 8
REQUIRED_ACCURACY = 0.95
STEPS = 10
CALL_TIMEOUT_S = 60

progress = Progress(STEPS)


class Scan(NamedTuple):
    """One held-out scan as a PNG file, and the digit that it shows."""

    png: bytes
    digit: int


class Result(NamedTuple):
    """What came of sending all scans."""

    label: str
    right: int
    latencies_ms: list[float]
    seconds: float

    def row(self) -> str:
        """The line of the table."""
        images = len(self.latencies_ms)
        p50, p99 = (percentile(self.latencies_ms, share) for share in (0.50, 0.99))
        return (
            f"{self.label:<20}{images:>8}{self.right:>9}{self.right / images:>10.1%}{p50:>9.2f}{p99:>9.2f}"
            f"{images / self.seconds:>10.0f}"
        )


TABLE_HEAD = f"{'sent':<20}{'images':>8}{'correct':>9}{'accuracy':>10}{'p50 ms':>9}{'p99 ms':>9}{'images/s':>10}"


def train_model(folder: Path) -> list[Scan]:
    """Train, write the weights to `folder`, and return scans that the network has not seen."""
    # Imported here: torch and scikit-learn take seconds, and the first line of the demo should not.
    import numpy as np
    import train
    from PIL import Image

    accuracy = train.train(folder)
    if accuracy < REQUIRED_ACCURACY:
        raise DemoError(f"the trained network reads only {accuracy:.1%} of the held-out scans")
    _, held_out = train.load()
    scans = []
    for image, label in zip(held_out.images[:IMAGES], held_out.labels[:IMAGES], strict=True):
        pixels = np.round(image[0].numpy() * 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="PNG")
        scans.append(Scan(file.getvalue(), int(label)))
    return scans


def call(client: httpx.Client, method: str, path: str, **params: str | int) -> Any:
    """Call the management API and return its JSON answer.

    Raises:
        DemoError: the answer is not a success.
    """
    response = client.request(method, path, params=params)
    if not response.is_success:
        raise DemoError(f"{method} {path} was answered {response.status_code}: {response.text.strip()}")
    return response.json()


def over_rest(client: httpx.Client, png: bytes) -> Any:
    """The answer to one scan.

    Raises:
        DemoError: there was none.
    """
    response = client.post(f"/predictions/{MODEL}", content=png, headers={"Content-Type": "image/png"})
    if response.status_code != 200:
        raise DemoError(f"a prediction was answered {response.status_code}: {response.text.strip()}")
    return response.json()


def over_grpc(client: Client, png: bytes) -> Any:
    """The answer to one scan."""
    return client.predict(MODEL, png).json()


def predict(ask: Ask, scan: Scan) -> tuple[bool, float]:
    """Send one scan; whether it was read correctly, and the time in ms."""
    start = time.perf_counter()
    answer = ask(scan.png)
    elapsed_ms = (time.perf_counter() - start) * 1000
    return answer["digit"] == scan.digit, elapsed_ms


def send_all(protocol: str, ask: Ask, scans: list[Scan], clients: int) -> Result:
    """Send each scan once, so many at a time."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(partial(predict, ask), scans))
    seconds = time.perf_counter() - start
    label = f"{protocol}, one by one" if clients == 1 else f"{protocol}, {clients} at a time"
    return Result(label, sum(right for right, _ in answers), [ms for _, ms in answers], seconds)


def send_twice(protocol: str, ask: Ask, scans: list[Scan]) -> list[Result]:
    """Send all scans one by one, and several at a time."""
    # The first calls cost more than all others; they would be the p99 of 100.
    send_all(protocol, ask, scans[:WARM_UP], 1)
    return [send_all(protocol, ask, scans, 1), send_all(protocol, ask, scans, CLIENTS)]


def rest_client(port: int, token: str) -> httpx.Client:
    """A client with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120, trust_env=False)


def use_rest(server: Server, scans: list[Scan]) -> list[Result]:
    """Register the model, scale it, send the scans."""
    keys = server.keys()
    progress.step("registering the model over REST, with the management token")
    with rest_client(server.management, keys["management"]) as management:
        note(call(management, "POST", "/models", url=f"{MODEL}.mar", initial_workers=0)["status"])
        note(call(management, "PUT", f"/models/{MODEL}", min_worker=1, synchronous="true")["status"])
        (described,) = call(management, "GET", f"/models/{MODEL}")
        for worker in described["workers"]:
            note(f"worker {worker['id']}: {worker['status']}, batch size {described['batchSize']}")
    progress.step(f"sending {len(scans)} held-out scans as PNG files, with the inference token")
    with rest_client(server.inference, keys["inference"]) as inference:
        return send_twice("REST", partial(over_rest, inference), scans)


def use_grpc(server: Server, scans: list[Scan]) -> list[Result]:
    """Register a second model, send the scans to the first and a strip to the second, and unregister that one again.

    Raises:
        DemoError: the model is still there.
    """
    inference, management = (f"grpc://127.0.0.1:{port}" for port in (server.grpc_inference, server.grpc_management))
    refuses_without_token(inference)
    with Client(inference, management=management, key_file=server.key_file, timeout=CALL_TIMEOUT_S) as client:
        progress.step("registering a model that reads strips, over gRPC, with the management token")
        note(client.register(f"{STRIP_MODEL}.mar", initial_workers=1, timeout=CALL_TIMEOUT_S))
        progress.step("sending the same scans over gRPC, and then all of them as one strip")
        results = send_twice("gRPC", partial(over_grpc, client), scans)
        stream_strip(client, scans[:WARM_UP])
        results.append(stream_strip(client, scans))
        times_ms = results[-1].latencies_ms
        note(f"the strip's first digit came after {times_ms[0]:.1f} ms, the last one after {times_ms[-1]:.1f} ms")
        progress.step("unregistering the model that reads strips, over gRPC")
        note(client.unregister(STRIP_MODEL))
        with suppress(ModelNotFound):
            client.describe(STRIP_MODEL)
            raise DemoError("the model is still there")
    return results


def refuses_without_token(address: str) -> None:
    """Make a call that must be refused.

    Raises:
        DemoError: it was not.
    """
    with suppress(Unauthorized), Client(address, timeout=CALL_TIMEOUT_S) as stranger:
        stranger.predict(MODEL, b"")
        raise DemoError("a call without a token was answered")


def stream_strip(client: Client, scans: list[Scan]) -> Result:
    """Send all scans as one strip, and read the digits as they come.

    Raises:
        DemoError: they did not come one by one.
    """
    strip = side_by_side(scans)
    start = time.perf_counter()
    read: list[int] = []
    came_ms: list[float] = []
    for part in client.stream(STRIP_MODEL, strip, timeout=CALL_TIMEOUT_S):
        read.append(json.loads(part)["digit"])
        came_ms.append((time.perf_counter() - start) * 1000)
    if len(read) != len(scans):
        raise DemoError(f"{len(scans)} scans on a strip were answered with {len(read)} parts")
    right = sum(digit == scan.digit for digit, scan in zip(read, scans, strict=True))
    return Result("gRPC, streamed", right, came_ms, came_ms[-1] / 1000)


def side_by_side(scans: list[Scan]) -> bytes:
    """All scans on one strip, as a PNG file."""
    from PIL import Image

    images = [Image.open(io.BytesIO(scan.png)) for scan in scans]
    side = images[0].height
    strip = Image.new("L", (side * len(images), side))
    for place, image in enumerate(images):
        strip.paste(image, (side * place, 0))
    file = io.BytesIO()
    strip.save(file, format="PNG")
    return file.getvalue()


def demo(folder: Path) -> list[Result]:
    """All steps."""
    progress.step("training a network on scikit-learn's handwritten digits")
    scans = train_model(folder)
    with own_server(folder) as server:
        progress.step("packing it with torch-model-archiver, twice: to read digits, and to read strips of digits")
        files = {"serialized-file": folder / "digits.pt", "model-file": HERE / "model.py"}
        handler, strip_handler = HERE / "handler.py", HERE / "strip_handler.py"
        pack(server.store, MODEL, {**files, "handler": handler, "config-file": HERE / "model-config.yaml"})
        pack(server.store, STRIP_MODEL, {**files, "handler": strip_handler, "extra-files": handler})
        progress.step("starting torchserve, token authorization on")
        server.start()
        note(f"REST on ports {server.inference} (inference) and {server.management} (management)")
        note(f"gRPC on ports {server.grpc_inference} (inference) and {server.grpc_management} (management)")
        progress.step("reading the tokens from key_file.json")
        note(", ".join(sorted(server.keys())))
        results = use_rest(server, scans) + use_grpc(server, scans)
        progress.step("stopping the server")
        server.stop()
    return results


def main() -> int:
    """Run the demo.

    Returns:
        0 when at least 95 % of the scans were read correctly each time, else 1.
    """
    end_in_order()
    try:
        with own_folder("relight-demo") as folder:
            results = demo(folder)
    except (DemoError, ClientError, httpx.HTTPError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("\n".join(["", TABLE_HEAD, *(result.row() for result in results), ""]))
    enough = all(result.right >= REQUIRED_ACCURACY * IMAGES for result in results)
    print(f"{'Done' if enough else 'Too few were read correctly'} after {progress.seconds:.1f} s.")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
