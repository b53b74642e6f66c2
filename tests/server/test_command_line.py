"""The real command with the real server: start, stop, signals, the process tree (configuration.md §1)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest
from tests.support.archives import contents, write_mar
from tests.support.server import command_folder, free_ports, is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = "org.pytorch.serve.ModelServer"
RUNNING = "TorchServe is already running, please use torchserve --stop to stop TorchServe.\n"
DEADLINE_S = 90.0
_MARK = "RELIGHT_TEST_SERVER"

pytestmark = pytest.mark.skipif(is_reference(), reason="TorchServe answers before it is up, and exits with 0 always")


class Operator:
    """Somebody with a shell: a folder, an environment, and commands typed one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "tmp"
        self.pid_file = self.temp / ".model_server.pid"
        self.key_file = folder / "key_file.json"
        for path in (self.temp, folder / "store"):
            path.mkdir()
        write_mar(folder / "store" / "noop.mar", contents("noop", "noop"))
        self.ports = free_ports(5)
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("TS_", "AWS_", "LOG_"))},
            "PATH": f"{command_folder()}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self.temp),
            "TEMP": str(self.temp),
            _MARK: self._mark.partition("=")[2],
        }
        self.configure()

    def configure(self, **config: str) -> None:
        """Write config.properties: the ports, and these lines."""
        inference, management, metrics, grpc_inference, grpc_management = self.ports
        lines = {
            "inference_address": f"http://127.0.0.1:{inference}",
            "management_address": f"http://127.0.0.1:{management}",
            "metrics_address": f"http://127.0.0.1:{metrics}",
            "grpc_inference_port": str(grpc_inference),
            "grpc_management_port": str(grpc_management),
            **config,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        (self.folder / "config.properties").write_text(text)

    def run(self, *arguments: str, **env: str) -> tuple[int, str]:
        """Run the command to its end; its exit status, and what it and the server wrote until then."""
        output = self.folder / f"output-{uuid.uuid4().hex}"
        with output.open("wb") as file:
            # A file and not a pipe: the server in the background keeps it open.
            status = subprocess.run(
                ["torchserve", *arguments],
                cwd=self.folder,
                env=self.env | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=DEADLINE_S,
            ).returncode
        return status, output.read_text()

    def start(self, *arguments: str, **env: str) -> tuple[int, str]:
        return self.run("--start", "--ncs", "--model-store", "store", *arguments, **env)

    def foreground(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start in the foreground, and wait until it is up."""
        with (self.folder / "console").open("wb") as console:
            process = subprocess.Popen(
                ["torchserve", "--start", "--foreground", "--ncs", "--model-store", "store", *arguments],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for("the server", lambda: b"Model server started." in (self.folder / "console").read_bytes(), DEADLINE_S)
        return process

    def ping(self) -> int:
        return httpx.get(f"http://127.0.0.1:{self.ports[0]}/ping", headers=self.token()).status_code

    def token(self) -> dict[str, str]:
        if not self.key_file.exists():
            return {}
        return {"Authorization": f"Bearer {json.loads(self.key_file.read_text())['inference']['key']}"}

    def pid(self) -> int:
        return int(self.pid_file.read_text())

    def processes(self) -> dict[int, list[str]]:
        """The argv of each live process that came from here."""
        found = {}
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return found

    def wait_gone(self) -> None:
        wait_for("the end of all processes", lambda: not self.processes(), DEADLINE_S)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(tmp_path)
    yield operator
    for pid in operator.processes():
        # What a test left: its own assertion has said so already.
        os.kill(pid, signal.SIGKILL)


def test_background_start_and_stop(operator: Operator) -> None:
    status, output = operator.start("--models", "noop=noop.mar")
    assert status == 0
    assert output.splitlines().count("Model server started.") == 1
    assert operator.ping() == 200

    # The server's argv holds the marker that process managers look for, and no other process does.
    argvs = operator.processes()
    assert [pid for pid, argv in argvs.items() if MARKER in argv] == [operator.pid()]
    server = psutil.Process(operator.pid())
    assert server.cwd() == str(operator.folder)
    assert wait_for("fork server and worker", lambda: len(operator.processes()) >= 3)
    assert {pid for pid in operator.processes() if pid != server.pid} == {
        child.pid for child in server.children(recursive=True)
    }
    assert os.getsid(server.pid) == os.getsid(0)

    assert stat.S_IMODE(operator.key_file.stat().st_mode) == 0o600
    assert list(json.loads(operator.key_file.read_text())) == ["management", "inference", "API"]

    assert operator.start() == (1, RUNNING)
    assert operator.ping() == 200

    assert operator.run("--stop") == (0, "TorchServe has stopped.\n")
    assert not operator.pid_file.exists()
    operator.wait_gone()
    assert not operator.key_file.exists()
    assert operator.run("--stop") == (0, "TorchServe is not currently running.\n")


def test_stop_in_the_foreground_waits(operator: Operator) -> None:
    assert operator.start("--disable-token-auth")[0] == 0
    assert not operator.key_file.exists()
    pid = operator.pid()

    assert operator.run("--stop", "--foreground") == (0, "")

    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    operator.wait_gone()


def test_a_stopped_server_can_be_started_again_at_once(operator: Operator) -> None:
    for _ in range(2):
        assert operator.start("--disable-token-auth")[0] == 0
        assert operator.ping() == 200
        assert operator.run("--stop", "--foreground")[0] == 0


def test_log_files(operator: Operator) -> None:
    assert operator.start("--disable-token-auth", "--models", "noop=noop.mar")[0] == 0
    operator.ping()
    assert operator.run("--stop", "--foreground")[0] == 0

    logs = operator.folder / "logs"
    assert {path.name for path in logs.iterdir() if path.is_file()} == {
        "access_log.log",
        "model_log.log",
        "model_metrics.log",
        "ts_log.log",
        "ts_metrics.log",
    }
    assert '"GET /ping HTTP/1.1" 200 ' in (logs / "access_log.log").read_text()


def test_log_folders(operator: Operator) -> None:
    folders = {"LOG_LOCATION": str(operator.folder / "a"), "METRICS_LOCATION": str(operator.folder / "b")}
    assert operator.start("--disable-token-auth", **folders)[0] == 0
    assert operator.run("--stop", "--foreground")[0] == 0

    assert sorted(path.name for path in (operator.folder / "a").iterdir()) == [
        "access_log.log",
        "model_log.log",
        "ts_log.log",
    ]
    assert sorted(path.name for path in (operator.folder / "b").iterdir()) == ["model_metrics.log", "ts_metrics.log"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_busy_port(operator: Operator, which: int) -> None:
    with socket.create_server(("127.0.0.1", operator.ports[which])):
        status, output = operator.start()

    role = ("Inference", "Management", "Metrics")[which]
    reason = f"Failed to bind to address: http://127.0.0.1:{operator.ports[which]} ({role} API): Address already in use"
    assert status == 1
    assert output.splitlines()[-1] == f"TorchServe did not start: {reason}"
    assert "Traceback" not in output
    assert "Model server started." not in output
    assert not operator.pid_file.exists()
    assert not operator.key_file.exists()
    operator.wait_gone()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"job_queue_size": "many"}, "job_queue_size=many is not valid"),
        ({"inference_address": "nonsense"}, "Invalid binding address: nonsense"),
        ({"models": "{"}, "models"),
    ],
)
def test_a_bad_configuration(operator: Operator, config: dict[str, str], reason: str) -> None:
    operator.configure(**config)

    status, output = operator.start()

    assert status == 1
    assert output.startswith("Invalid configuration: ")
    assert output.splitlines()[-1].startswith("TorchServe did not start: Invalid configuration: ")
    assert reason in output
    assert "Traceback" not in output
    assert not operator.pid_file.exists()
    operator.wait_gone()


def test_logs_that_cannot_be_written(operator: Operator) -> None:
    (operator.folder / "file").write_text("")

    status, output = operator.start(LOG_LOCATION=str(operator.folder / "file"))

    assert status == 1
    assert "Cannot write the logs: " in output.splitlines()[-1]
    assert "Traceback" not in output
    operator.wait_gone()


def test_an_orphan_pid_file(operator: Operator) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    operator.pid_file.write_text(str(ended.pid))

    status, output = operator.start("--disable-token-auth")

    assert status == 0
    assert output.startswith("Removing orphan pid file.\n")
    assert operator.pid() != ended.pid
    assert operator.run("--stop", "--foreground")[0] == 0


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
    ids=["TERM", "INT", "HUP"],
)
def test_foreground(operator: Operator, number: signal.Signals, status: int) -> None:
    process = operator.foreground("--models", "noop=noop.mar")
    assert operator.pid() == process.pid
    assert operator.ping() == 200
    assert operator.key_file.exists()

    process.send_signal(number)

    assert process.wait(DEADLINE_S) == status
    operator.wait_gone()
    assert not operator.key_file.exists()
    assert "Traceback" not in (operator.folder / "console").read_text()


def test_ctrl_c_reaches_the_whole_group(operator: Operator) -> None:
    process = operator.foreground("--models", "noop=noop.mar")
    wait_for("fork server and worker", lambda: len(operator.processes()) >= 3)

    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(DEADLINE_S) == 130
    operator.wait_gone()
    assert "Traceback" not in (operator.folder / "console").read_text()


def test_a_killed_server_leaves_no_process(operator: Operator) -> None:
    assert operator.start("--disable-token-auth", "--models", "noop=noop.mar")[0] == 0
    wait_for("fork server and worker", lambda: len(operator.processes()) >= 3)

    os.kill(operator.pid(), signal.SIGKILL)

    operator.wait_gone()
    status, output = operator.run("--stop")
    assert (status, output) == (0, "Removing orphan pid file.\nTorchServe is not currently running.\n")


def test_the_command_as_a_module(operator: Operator) -> None:
    done = subprocess.run(
        [Path(command_folder(), "python"), "-m", "ts.model_server", "--version"],
        cwd=operator.folder,
        env=operator.env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "TorchServe Version is 0.12.0\n", "")


def test_modules_in_the_working_directory_are_no_part_of_the_server(operator: Operator) -> None:
    for name in ("json", "relight", "logging", "asyncio"):
        (operator.folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")

    assert operator.start("--disable-token-auth", "--models", "noop=noop.mar")[0] == 0

    assert operator.ping() == 200
    assert operator.run("--stop", "--foreground")[0] == 0


def test_the_server_runs_in_the_interpreter_of_the_command(operator: Operator) -> None:
    assert operator.start("--disable-token-auth")[0] == 0

    assert Path(psutil.Process(operator.pid()).cmdline()[0]).parent == command_folder()
    assert operator.run("--stop", "--foreground")[0] == 0
