"""Starts, asks, freezes and stops the ``torchserve`` command of a virtual environment."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchError
from benchmarks.procs import Tree

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_PORTS = 48  # five listeners, the rest for worker ids
_PORT_RANGE = (18000, 30000)  # below the ports that the kernel gives to outgoing connections

_IDENTIFY = """
from importlib.metadata import entry_points
found = [e for e in entry_points(group="console_scripts") if e.name == "torchserve"]
print(found[0].dist.name, found[0].dist.version)
"""


@dataclass(frozen=True)
class Installation:
    """A virtual environment with a ``torchserve`` command.

    Args:
        venv: The environment's folder.
        role: ``subject`` or ``reference``.
        name: The distribution that brings the command.
        version: Its version.
    """

    venv: Path
    role: str
    name: str
    version: str

    @property
    def label(self) -> str:
        """Name and version, as shown to people."""
        return f"{self.name} {self.version}"


def find_installation(venv: Path, role: str) -> Installation:
    """Look up which distribution gives the environment its ``torchserve``.

    Raises:
        BenchError: There is no such command.
    """
    if not (venv / "bin" / "torchserve").is_file():
        raise BenchError(f"no torchserve command in {venv}/bin")
    command = [str(venv / "bin" / "python"), "-c", _IDENTIFY]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    name, _, version = found.stdout.strip().partition(" ")
    return Installation(venv, role, name or "torchserve", version or "(unknown version)")


def _free_ports(count: int) -> int:
    """First of ``count`` neighbouring ports that are free now."""
    for _ in range(200):
        first = random.randrange(*_PORT_RANGE)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise BenchError(f"found no {count} free ports in a row")


class Server:
    """One running server with one model and one worker, in a folder and on ports of its own.

    A context manager: entering starts the process and returns at once, leaving ends every process of its tree and
    removes the folder.

    Args:
        installation: What to run.
        store: Folder with the archives.
        model: The archive to serve, without ``.mar``.
    """

    def __init__(self, installation: Installation, store: Path, model: str) -> None:
        self.installation = installation
        self.model = model
        self._store = store
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.started = 0.0
        self.tree = Tree(0)

    @property
    def port(self) -> int:
        """Port of the inference listener."""
        return self._port

    @property
    def grpc_port(self) -> int:
        """Port of the gRPC inference listener."""
        return self._port + 3

    @property
    def path(self) -> str:
        """Path of the model's prediction endpoint."""
        return f"/predictions/{self.model}"

    def __enter__(self) -> Self:
        # A short path: unix sockets below it must stay under 108 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        (self._folder / "tmp").mkdir()
        self._port = _free_ports(_PORTS)
        config = self._folder / "config.properties"
        config.write_text(self._config())
        command = [str(self.installation.venv / "bin" / "torchserve"), "--start", "--foreground", "--ncs"]
        command += ["--model-store", str(self._store), "--models", f"{self.model}={self.model}.mar"]
        command += ["--ts-config", str(config)]
        with (self._folder / "stdout.txt").open("wb") as out:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.tree = Tree(self._process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.thaw()
            self.tree.send(signal.SIGTERM)
            # The leader is our child: until it is waited for, it stays a zombie and would keep its number.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            if not self.tree.wait_gone(_STOP_SECONDS):
                self.tree.send(signal.SIGKILL)
                self.tree.wait_gone(_STOP_SECONDS)
            self._process.wait(_STOP_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _config(self) -> str:
        at = "http://127.0.0.1:"
        return "\n".join(
            (
                f"inference_address={at}{self._port}",
                f"management_address={at}{self._port + 1}",
                f"metrics_address={at}{self._port + 2}",
                f"grpc_inference_port={self.grpc_port}",
                f"grpc_management_port={self._port + 4}",
                f"initial_worker_port={self._port + 5}",
                "disable_token_authorization=true",
                "enable_model_api=true",
                "job_queue_size=1000",
                "default_workers_per_model=1",
                "",
            )
        )

    def _environment(self) -> dict[str, str]:
        dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LOG_LOCATION", "METRICS_LOCATION")
        kept = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("TS_")}
        own = str(self._folder / "tmp")
        path = f"{self.installation.venv / 'bin'}:{kept.get('PATH', '')}"
        return {**kept, "PATH": path, "TMPDIR": own, "TEMP": own, "TMP": own}

    def _fail(self, what: str) -> BenchError:
        lines = (self._folder / "stdout.txt").read_text(errors="replace").splitlines()
        return BenchError("\n  ".join([f"{self.installation.label}: {what}; its last lines:", *lines[-15:]]))

    def predict(self, timeout: float = 30.0) -> int | None:
        """Send one prediction; its status, or None while nothing listens or the connection broke."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)
        try:
            connection.request("POST", self.path, body=b"x", headers={"Content-Type": "text/plain"})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return None
        else:
            return response.status
        finally:
            connection.close()

    def wait_predicts(self, interval: float, limit: float = READY_SECONDS) -> list[int | None]:
        """Send predictions, ``interval`` seconds apart, until one answers 200.

        Returns:
            The outcomes of all that were sent, the 200 last.

        Raises:
            BenchError: The process ended, or ``limit`` seconds passed.
        """
        deadline = time.monotonic() + limit
        outcomes: list[int | None] = []
        while True:
            outcomes.append(self.predict())
            if outcomes[-1] == http.HTTPStatus.OK:
                return outcomes
            if self._process is not None and self._process.poll() is not None:
                raise self._fail(f"ended with exit code {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self._fail(f"no successful prediction within {limit:.0f} s")
            time.sleep(interval)

    def manage(self, method: str, path: str, timeout: float = 120.0) -> str:
        """Send a management request.

        Returns:
            The body of the answer.

        Raises:
            BenchError: No answer, or one whose status is not 2xx.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port + 1, timeout=timeout)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._fail(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise self._fail(f"{method} {path}: {response.status} {text}")
        return text

    def worker_pids(self) -> list[int]:
        """Process ids of the model's ready workers, as the describe API tells them."""
        description = json.loads(self.manage("GET", f"/models/{self.model}"))
        workers = description[0]["workers"]
        return [int(worker["pid"]) for worker in workers if worker["status"] == "READY"]

    def freeze(self) -> None:
        """Stop the whole tree (SIGSTOP): it keeps its memory and its warm code and uses no CPU."""
        self.tree.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen tree go on."""
        self.tree.send(signal.SIGCONT)
