"""The main job of a model server, from training to the answer: `make demo`.

Trains a small network on real scans of handwritten digits, packs it with torch-model-archiver, starts torchserve with
its default security, registers and scales the model over REST, sends 100 held-out scans as PNG files, and prints how
many were read correctly and how long that took. Folder and ports are its own, so it collides with no running server.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
MODEL = "digits"
IMAGES = 100
WARM_UP = 8
CLIENTS = 8
REQUIRED_ACCURACY = 0.95
STEPS = 7
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
LOG_TAIL_LINES = 40

_began = time.monotonic()


class DemoError(Exception):
    """Something went wrong; the message says what."""


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
            f"{self.label:<14}{images:>8}{self.right:>9}{self.right / images:>10.1%}{p50:>9.2f}{p99:>9.2f}"
            f"{images / self.seconds:>10.0f}"
        )


TABLE_HEAD = f"{'sent':<14}{'images':>8}{'correct':>9}{'accuracy':>10}{'p50 ms':>9}{'p99 ms':>9}{'images/s':>10}"


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def step(number: int, text: str) -> None:
    """Say what begins now."""
    print(f"[{number}/{STEPS}] {time.monotonic() - _began:5.1f} s  {text}", flush=True)


def note(text: str) -> None:
    """Say how it went."""
    print(f"      {text}", flush=True)


class Server:
    """A torchserve in a folder of its own.

    Args:
        folder: Where it keeps everything: model store, configuration, keys, logs, pid file, temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "model-store"
        self.store.mkdir()
        (folder / "tmp").mkdir()
        self.inference, self.management, metrics, grpc_inference, grpc_management = free_ports(5)
        (folder / "config.properties").write_text(
            f"inference_address=http://127.0.0.1:{self.inference}\n"
            f"management_address=http://127.0.0.1:{self.management}\n"
            f"metrics_address=http://127.0.0.1:{metrics}\n"
            f"grpc_inference_port={grpc_inference}\n"
            f"grpc_management_port={grpc_management}\n"
        )
        # Nothing of the caller's own server settings may reach this server: TS_CONFIG_FILE would go before --ts-config.
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("TS_")}
        self._env |= {"TMPDIR": str(folder / "tmp"), "TEMP": str(folder / "tmp")}
        self._env |= {"LOG_LOCATION": str(folder / "logs"), "METRICS_LOCATION": str(folder / "logs")}

    @property
    def log(self) -> Path:
        """What the server writes to its console."""
        return self.folder / "server.log"

    def start(self) -> None:
        """Start it and return once it serves.

        Raises:
            DemoError: it does not start.
        """
        command = [tool("torchserve"), "--start", "--ncs", "--enable-model-api"]
        command += ["--model-store", str(self.store), "--ts-config", "config.properties"]
        with self.log.open("wb") as log:
            done = run(command, self.folder, self._env, START_TIMEOUT_S, log)
        if done != 0:
            raise DemoError(f"torchserve --start ended with status {done}")

    def keys(self) -> dict[str, str]:
        """The tokens from key_file.json, by purpose: `management` and `inference`."""
        document = json.loads((self.folder / "key_file.json").read_text())
        return {purpose: entry["key"] for purpose, entry in document.items()}

    def stop(self) -> None:
        """End it in order.

        Raises:
            DemoError: it did not end.
        """
        pid = self._pid()
        with self.log.open("ab") as log:
            done = run([tool("torchserve"), "--stop", "--foreground"], self.folder, self._env, STOP_TIMEOUT_S + 10, log)
        if done != 0 or (pid and is_running(pid)):
            raise DemoError("the server did not stop")

    def end(self) -> None:
        """End it whatever its state is; harmless when it has ended."""
        pid = self._pid()
        if not pid or not is_running(pid):
            return
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
            os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while is_running(pid) and time.monotonic() < deadline:
                time.sleep(0.05)

    def _pid(self) -> int:
        try:
            return int((self.folder / "tmp" / ".model_server.pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in "ZX"


def free_ports(count: int) -> list[int]:
    """TCP ports on which nothing listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def tool(name: str) -> str:
    """The command of that name in this Python's environment."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise DemoError(f"{name} is not installed beside {sys.executable}; use `make demo`")
    return str(path)


def run(command: list[str], folder: Path, env: dict[str, str], timeout_s: float, output: Any = None) -> int:
    """Run a command to its end and return its exit status.

    Raises:
        DemoError: it takes too long.
    """
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise DemoError(f"{Path(command[0]).name} did not end within {timeout_s:.0f} s") from None


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


def pack(weights: Path, store: Path) -> Path:
    """Pack weights, network, handler and configuration into one archive in the model store."""
    command = [tool("torch-model-archiver"), "--model-name", MODEL, "--version", "1.0", "--export-path", str(store)]
    command += ["--serialized-file", str(weights), "--model-file", str(HERE / "model.py")]
    command += ["--handler", str(HERE / "handler.py"), "--config-file", str(HERE / "model-config.yaml")]
    done = run(command, store, dict(os.environ), 60)
    if done != 0:
        raise DemoError(f"torch-model-archiver ended with status {done}")
    return store / f"{MODEL}.mar"


def call(client: httpx.Client, method: str, path: str, **params: str | int) -> Any:
    """Call the management API and return its JSON answer.

    Raises:
        DemoError: the answer is not a success.
    """
    response = client.request(method, path, params=params)
    if not response.is_success:
        raise DemoError(f"{method} {path} was answered {response.status_code}: {response.text.strip()}")
    return response.json()


def predict(client: httpx.Client, scan: Scan) -> tuple[bool, float]:
    """Send one scan; whether it was read correctly, and the time in ms.

    Raises:
        DemoError: there was no answer.
    """
    start = time.perf_counter()
    response = client.post(f"/predictions/{MODEL}", content=scan.png, headers={"Content-Type": "image/png"})
    elapsed_ms = (time.perf_counter() - start) * 1000
    if response.status_code != 200:
        raise DemoError(f"a prediction was answered {response.status_code}: {response.text.strip()}")
    return response.json()["digit"] == scan.digit, elapsed_ms


def send_all(client: httpx.Client, scans: list[Scan], clients: int) -> Result:
    """Send each scan once, so many at a time."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda scan: predict(client, scan), scans))
    seconds = time.perf_counter() - start
    label = "one by one" if clients == 1 else f"{clients} at a time"
    return Result(label, sum(right for right, _ in answers), [ms for _, ms in answers], seconds)


def serve_and_query(server: Server, archive: Path, scans: list[Scan]) -> list[Result]:
    """Register the model, scale it, send the scans."""
    keys = server.keys()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{server.management}",
        headers={"Authorization": f"Bearer {keys['management']}"},
        timeout=120,
        trust_env=False,
    ) as management:
        step(5, "registering the model over REST, with the management token")
        note(call(management, "POST", "/models", url=archive.name, initial_workers=0)["status"])
        note(call(management, "PUT", f"/models/{MODEL}", min_worker=1, synchronous="true")["status"])
        (described,) = call(management, "GET", f"/models/{MODEL}")
        for worker in described["workers"]:
            note(f"worker {worker['id']}: {worker['status']}, batch size {described['batchSize']}")

    with httpx.Client(
        base_url=f"http://127.0.0.1:{server.inference}",
        headers={"Authorization": f"Bearer {keys['inference']}"},
        timeout=60,
        trust_env=False,
    ) as inference:
        step(6, f"sending {len(scans)} held-out scans as PNG files, with the inference token")
        # The worker's first batch costs more than all others; it would be the p99 of 100.
        send_all(inference, scans[:WARM_UP], 1)
        return [send_all(inference, scans, 1), send_all(inference, scans, CLIENTS)]


@contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary folder, kept when something goes wrong."""
    # Worker sockets lie in it, and their paths are limited to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="relight-demo-"))
    try:
        yield folder
    except BaseException:
        note(f"its files are kept in {folder}")
        raise
    shutil.rmtree(folder)


def demo(folder: Path) -> list[Result]:
    """All steps."""
    step(1, "training a network on scikit-learn's handwritten digits")
    scans = train_model(folder)
    server = Server(folder)
    try:
        step(2, "packing it with torch-model-archiver")
        archive = pack(folder / "digits.pt", server.store)
        note(f"{archive.name}, {archive.stat().st_size / 1024:.0f} KiB")
        step(3, "starting torchserve, token authorization on")
        server.start()
        note(f"inference on port {server.inference}, management on port {server.management}")
        step(4, "reading the tokens from key_file.json")
        note(", ".join(sorted(server.keys())))
        results = serve_and_query(server, archive, scans)
        step(7, "stopping the server")
        server.stop()
    except BaseException:
        server.end()
        if server.log.exists():
            lines = server.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            print("\n".join(["", "The end of the server's log:", *lines, ""]), flush=True)
        raise
    return results


def main() -> int:
    """Run the demo.

    Returns:
        0 when at least 95 % of the scans were read correctly in both passes, else 1.
    """
    # Ended from outside, it still ends its server.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with own_folder() as folder:
            results = demo(folder)
    except (DemoError, httpx.HTTPError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("\n".join(["", TABLE_HEAD, *(result.row() for result in results), ""]))
    enough = all(result.right >= REQUIRED_ACCURACY * IMAGES for result in results)
    print(f"{'Done' if enough else 'Too few were read correctly'} after {time.monotonic() - _began:.1f} s.")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
