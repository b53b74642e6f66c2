"""A torchserve in a folder and on ports of its own, so that it collides with no other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.progress import DemoError, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
PACK_TIMEOUT_S = 60
LOG_TAIL_LINES = 40


class Server:
    """A torchserve with its default security.

    Args:
        folder: Where it keeps everything: model store, configuration, keys, logs, pid file, temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "model-store"
        self.store.mkdir()
        (folder / "tmp").mkdir()
        self.inference, self.management, metrics, self.grpc_inference, self.grpc_management = free_ports(5)
        (folder / "config.properties").write_text(
            f"inference_address=http://127.0.0.1:{self.inference}\n"
            f"management_address=http://127.0.0.1:{self.management}\n"
            f"metrics_address=http://127.0.0.1:{metrics}\n"
            f"grpc_inference_port={self.grpc_inference}\n"
            f"grpc_management_port={self.grpc_management}\n"
        )
        # Nothing of the caller's own server settings may reach this server: TS_CONFIG_FILE would go before --ts-config.
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("TS_")}
        self._env |= {"TMPDIR": str(folder / "tmp"), "TEMP": str(folder / "tmp")}
        self._env |= {"LOG_LOCATION": str(folder / "logs"), "METRICS_LOCATION": str(folder / "logs")}

    @property
    def log(self) -> Path:
        """What the server writes to its console."""
        return self.folder / "server.log"

    @property
    def key_file(self) -> Path:
        """Where the server writes its tokens."""
        return self.folder / "key_file.json"

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
        """The tokens by purpose: `management` and `inference`."""
        document = json.loads(self.key_file.read_text())
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


@contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """A temporary folder, kept when something goes wrong."""
    # Worker sockets lie in it, and their paths are limited to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    try:
        yield folder
    except BaseException:
        note(f"its files are kept in {folder}")
        raise
    shutil.rmtree(folder)


@contextmanager
def own_server(folder: Path) -> Iterator[Server]:
    """A server that is yet to be started. When something goes wrong it is ended, and its last words are printed."""
    server = Server(folder)
    try:
        yield server
    except BaseException:
        server.end()
        if server.log.exists():
            lines = server.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            print("\n".join(["", "The end of the server's log:", *lines, ""]), flush=True)
        raise


def end_in_order() -> None:
    """Ended from outside, a demo still ends its server."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def pack(store: Path, model: str, options: Mapping[str, Path]) -> None:
    """Pack an archive into the model store with torch-model-archiver.

    Args:
        store: The model store.
        model: The model's name.
        options: More options of the command, and the file for each.

    Raises:
        DemoError: it did not work.
    """
    command = [tool("torch-model-archiver"), "--model-name", model, "--version", "1.0", "--export-path", str(store)]
    for option, file in options.items():
        command += [f"--{option}", str(file)]
    done = run(command, store, dict(os.environ), PACK_TIMEOUT_S)
    if done != 0:
        raise DemoError(f"torch-model-archiver ended with status {done}")
    archive = store / f"{model}.mar"
    note(f"{archive.name}, {archive.stat().st_size / 1024:.0f} KiB")


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
        raise DemoError(f"{name} is not installed beside {sys.executable}; use make")
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
