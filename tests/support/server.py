"""A real server process, started with the real command line, in a folder of its own on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
from tests.support.raw import RawConnection, RawResponse
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.support.raw import Address

START_S = 90.0
STOP_S = 60.0
_MARK = "RELIGHT_TEST_SERVER"
_GATES = "RELIGHT_TEST_GATES"
_PORTS = (10_000, 32_000)


def command_folder() -> Path:
    """Return the folder of the `torchserve` under test: RELIGHT_TEST_TORCHSERVE, else that of this interpreter."""
    return Path(os.environ.get("RELIGHT_TEST_TORCHSERVE") or Path(sys.executable).parent)


def is_reference() -> bool:
    """Return whether the server under test is not the one of this environment."""
    return "RELIGHT_TEST_TORCHSERVE" in os.environ


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, below those that the system hands to outgoing connections."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.randrange(*_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return list(ports)


class Gate:
    """Holds a handler in the middle of its work until the test opens it (tests/handlers)."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._open = folder / name
        self._folder = folder

    def arrivals(self) -> int:
        """Return how many handler calls have come to the gate."""
        return len(list(self._folder.glob(f"{self.name}.arrived.*")))

    def wait_arrived(self, count: int = 1) -> None:
        """Wait until that many handler calls have come to the gate."""
        wait_for(f"{count} arrivals at gate {self.name}", lambda: self.arrivals() >= count)

    def open(self) -> None:
        """Let everyone through, now and later."""
        self._open.touch()


class Listener:
    """One HTTP address of the server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = f"unix:{address}" if isinstance(address, str) else f"http://{address[0]}:{address[1]}"
        transport = httpx.HTTPTransport(uds=address) if isinstance(address, str) else None
        base_url = "http://test" if isinstance(address, str) else self.url
        self.client = httpx.Client(base_url=base_url, transport=transport, timeout=60.0, trust_env=False)

    def connect(self, timeout: float = 60.0) -> RawConnection:
        return RawConnection(self.address, timeout)

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
    ) -> RawResponse:
        """Send one request over a connection of its own."""
        with self.connect() as connection:
            return connection.request(method, target, headers, body)

    def get(self, target: str, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> RawResponse:
        return self.request("GET", target, headers)


class Server:
    """A server process and its listeners.

    Args:
        root: An empty folder for everything of this server.
        archives: What to copy into its model store.
        config: Lines of config.properties, over the defaults: free ports, token authorization off, model API on.
        args: More command line arguments.
        env: More environment variables; None removes one.
    """

    def __init__(
        self,
        root: Path,
        archives: Iterable[Path] = (),
        config: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        self.root = root
        self.store = root / "store"
        self.gates = root / "gates"
        self.temp = root / "tmp"
        self.logs = root / "logs"
        for folder in (self.store, self.gates, self.temp, self.logs):
            folder.mkdir(parents=True)
        for archive in archives:
            (shutil.copytree if archive.is_dir() else shutil.copy)(archive, self.store / archive.name)
        inference, management, metrics, grpc_inference, grpc_management = free_ports(5)
        self.config = {
            "inference_address": f"http://127.0.0.1:{inference}",
            "management_address": f"http://127.0.0.1:{management}",
            "metrics_address": f"http://127.0.0.1:{metrics}",
            "grpc_inference_port": str(grpc_inference),
            "grpc_management_port": str(grpc_management),
            "disable_token_authorization": "true",
            "enable_model_api": "true",
            **(config or {}),
        }
        self._args = list(args)
        self._mark = uuid.uuid4().hex
        self._env = self._environment(env or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.inference = Listener(_address(self.config["inference_address"]))
        self.management = Listener(_address(self.config["management_address"]))
        self.metrics = Listener(_address(self.config["metrics_address"]))

    def start(self) -> Server:
        """Start the process and wait until it says that it is up.

        Raises:
            RuntimeError: It ended instead; the console text is in the message.
            TimeoutError: Neither happened in time.
        """
        config_file = self.root / "config.properties"
        config_file.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        command = [str(command_folder() / "torchserve"), "--start", "--foreground", "--ncs"]
        command += ["--model-store", str(self.store), "--ts-config", str(config_file), *self._args]
        before = len(self.log)
        with self._console.open("ab") as console:
            self.process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for("Model server started.", lambda: self._is_up(before), START_S)
        return self

    def stop(self) -> None:
        """End the process orderly (SIGTERM), by force only after a deadline, and see that nothing of it is left.

        Raises:
            AssertionError: It had to be killed, or left processes behind.
        """
        for listener in (self.inference, self.management, self.metrics):
            listener.client.close()
        if self.process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            wait_for("the end of the server", lambda: not self.processes(), STOP_S)
        except TimeoutError:
            left = self.processes()
            commands = [_command(pid) for pid in left]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            raise AssertionError(f"left after SIGTERM: {commands}\n{self.log[-3000:]}") from None
        self._reap()

    def restart(self) -> Server:
        """Stop it, and start it again with the same configuration."""
        self.stop()
        self.inference = Listener(self.inference.address)
        self.management = Listener(self.management.address)
        self.metrics = Listener(self.metrics.address)
        return self.start()

    def signal(self, number: int) -> None:
        """Send a signal to the server process itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        """The server's own process id, as its pid file says."""
        assert self.process is not None
        pid_file = self.temp / ".model_server.pid"
        return int(pid_file.read_text()) if pid_file.exists() else self.process.pid

    def processes(self) -> list[int]:
        """Return the ids of all live processes of this server, wherever they have moved."""
        if self.process is not None:
            self.process.poll()
        mark = f"{_MARK}={self._mark}".encode()
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)]

    @property
    def log(self) -> str:
        """What the server has written to its console."""
        return self._console.read_text(errors="replace") if self._console.exists() else ""

    @property
    def keys(self) -> dict[str, Any]:
        """The key file's content."""
        document: dict[str, Any] = json.loads((self.root / "key_file.json").read_text())
        return document

    def bearer(self, key: str) -> dict[str, str]:
        """Return the header with the current key: `inference`, `management` or `API`."""
        return {"Authorization": f"Bearer {self.keys[key]['key']}"}

    def gate(self, name: str | None = None) -> Gate:
        """Return a closed gate."""
        return Gate(self.gates, name or f"gate-{uuid.uuid4().hex}")

    def register(self, url: str, **params: object) -> RawResponse:
        """Register a model with these query parameters."""
        return self.management.request("POST", f"/models?{urlencode({'url': url, **params})}")

    @contextlib.contextmanager
    def registered(self, url: str, name: str, **params: object) -> Iterator[str]:
        """Have a model registered under that name for the length of the block."""
        response = self.register(url, model_name=name, **params)
        assert response.status < 300, response.body
        try:
            yield name
        finally:
            self.unregister(name)

    def unregister(self, name: str) -> None:
        """Remove every version of the model, if it is there."""
        response = self.management.get(f"/models/{name}/all")
        versions = [model["modelVersion"] for model in response.json()] if response.status == 200 else []
        default = self.describe(name)["modelVersion"] if versions else ""
        for version in sorted(versions, key=lambda each: each == default):
            assert self.management.request("DELETE", f"/models/{name}/{version}").status == 200

    def describe(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the description of one version of the model."""
        response = self.management.get(f"/models/{name}/{version}" if version else f"/models/{name}")
        assert response.status == 200, response.body
        (document,) = response.json()
        assert isinstance(document, dict)
        return document

    def ready_workers(self, name: str) -> list[dict[str, Any]]:
        """Return the model's workers that can serve."""
        return [worker for worker in self.describe(name)["workers"] if worker["status"] == "READY"]

    def wait_ready(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until that many workers can serve."""
        return wait_for(
            f"{count} ready workers of {name}",
            lambda: workers if len(workers := self.ready_workers(name)) >= count else None,
        )

    def wait_pending(self, name: str, count: int) -> None:
        """Wait until that many requests lie in the model's queue."""
        wait_for(
            f"{count} pending requests of {name}",
            lambda: self.describe(name)["jobQueueStatus"]["pendingRequests"] == count,
        )

    @property
    def _console(self) -> Path:
        return self.root / "console.log"

    def _is_up(self, before: int) -> bool:
        assert self.process is not None
        if "Model server started." in self.log[before:]:
            return True
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log[before:][-3000:]}")
        return False

    def _reap(self) -> None:
        assert self.process is not None
        self.process.wait(timeout=STOP_S)
        self.process = None

    def _environment(self, extra: Mapping[str, str | None]) -> dict[str, str]:
        env: dict[str, str | None] = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("TS_", "AWS_"))},
            "PATH": f"{command_folder()}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self.temp),
            "TEMP": str(self.temp),
            "LOG_LOCATION": str(self.logs),
            "METRICS_LOCATION": str(self.logs),
            _MARK: self._mark,
            _GATES: str(self.gates),
            **extra,
        }
        return {key: value for key, value in env.items() if value is not None}


def _address(text: str) -> Address:
    if text.startswith("unix:"):
        return text.removeprefix("unix:")
    host, _, port = text.rpartition("//")[2].rpartition(":")
    return host, int(port)


def _has(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"{pid} (gone)"
