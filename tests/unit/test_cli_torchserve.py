"""The torchserve command: what needs no server runs as the real console script, the rest against a stand-in process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from relight.cli import process
from relight.command_line import SERVER_MARKER, CommandLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TORCHSERVE = Path(sysconfig.get_path("scripts"), "torchserve")
DEADLINE_S = 30.0

# The command with another program in the place of the server's; its argv is what the real server would get.
COMMAND = """
import sys
from relight.cli import process, torchserve
torchserve._FAILED_END_S = 0.5
process.server_command = lambda arguments: [sys.executable, {server!r}, *arguments]
sys.exit(torchserve.main())
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


class Place:
    """A working directory with a model store, and the environment of a command that runs there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "tmp"
        self.pid_file = self.temp / ".model_server.pid"
        self.server = folder / "server.py"
        self.temp.mkdir()
        (folder / "store").mkdir()
        keep = {"PATH", "HOME", "LANG", "VIRTUAL_ENV"}
        self.env = {key: value for key, value in os.environ.items() if key in keep}
        self.env["TMPDIR"] = str(self.temp)

    def run(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [TORCHSERVE, *arguments],
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr

    def serve(self, body: str) -> None:
        self.server.write_text("import os, signal, sys, time\n" + body)

    def popen(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND.format(server=str(self.server)), *arguments],
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self, *arguments: str, **env: str) -> tuple[int, str]:
        """Run the command until its output is closed, by the server as well."""
        with self.popen(*arguments, **env) as command:
            output, _ = command.communicate(timeout=DEADLINE_S)
            return command.returncode, output

    def pid(self) -> int:
        return int(self.pid_file.read_text())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    pids = [place.pid()] if place.pid_file.is_file() and place.pid_file.read_text().isdigit() else []
    for pid in pids:
        if process.is_server(pid):
            os.kill(pid, signal.SIGKILL)


READY = "os.write(int(os.environ['RELIGHT_READY_FD']), b'ready\\n'); os.close(int(os.environ['RELIGHT_READY_FD']))\n"
QUIET = "os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2)\n"
FOREVER = "while True: signal.pause()\n"


def test_version(place: Place) -> None:
    assert place.run("--version") == (0, "TorchServe Version is 0.12.0\n", "")
    assert place.run("-v", "--model-store", "/does/not/exist") == (0, "TorchServe Version is 0.12.0\n", "")


def test_help(place: Place) -> None:
    code, output, errors = place.run("--help")
    assert (code, errors) == (0, "")
    assert output.startswith("usage: torchserve ")
    assert "\nTorchserve\n" in output
    options = set(re.findall(r"(?<!\S)--?[a-z][\w-]*", output))
    assert options >= {"-h", "--help", "-v", "--version", "--start", "--stop", "--ts-config", "--model-store"}
    assert options >= {"--workflow-store", "--models", "--log-config", "--cpp-log-config", "--foreground"}
    assert options >= {"--no-config-snapshots", "--ncs", "--plugins-path", "--ppath", "--enable-model-api"}
    assert options >= {"--disable-token-auth", "--dt"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--start", "--stop"], "argument --stop: not allowed with argument --start"),
        (["--stop", "--version"], "argument -v/--version: not allowed with argument --stop"),
        (["--models"], "argument --models: expected at least one argument"),
        (["--model", "x"], "ambiguous option: --model could match --model-store, --models"),
        (["--port", "1"], "unrecognized arguments: --port 1"),
        (["--model-store"], "argument --model-store: expected one argument"),
        (["stray"], "unrecognized arguments: stray"),
    ],
)
def test_usage_errors(place: Place, arguments: list[str], error: str) -> None:
    code, output, errors = place.run(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("usage: torchserve ")
    assert errors.endswith(f"\ntorchserve: error: {error}\n")


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ([], {}, "Missing mandatory parameter --model-store"),
        (["--start"], {}, "Missing mandatory parameter --model-store"),
        (["--model-store", "nowhere"], {}, "--model-store directory not found: nowhere"),
        (["--model-s", "nowhere"], {}, "--model-store directory not found: nowhere"),
        (["--model-store", "store", "--workflow-store", "w"], {}, "--workflow-store directory not found: w"),
        (["--model-store", "store", "--log-config", "l.xml"], {}, "--log-config file not found: {folder}/l.xml"),
        (["--model-store", "store", "--cpp-log-config", "c"], {}, "--cpp-log-config file not found: {folder}/c"),
        (["--model-store", "store", "--ts-config", "t"], {}, "--ts-config file not found: t"),
        (["--ts-config", "server.py"], {"TS_CONFIG_FILE": "env"}, "--ts-config file not found: env"),
        (["--model-store", "x"], {"TEMP": "no"}, "Invalid temp directory: no, please check TEMP environment variable."),
        (["--log-config", "l", "--ts-config", "t"], {"TEMP": "no"}, "--log-config file not found: {folder}/l"),
        (["--ts-config", "t"], {"TEMP": "no"}, "Invalid temp directory: no, please check TEMP environment variable."),
    ],
)
def test_checks_before_a_start(place: Place, arguments: list[str], env: dict[str, str], message: str) -> None:
    assert place.run(*arguments, **env) == (1, message.format(folder=place.folder) + "\n", "")
    assert not place.pid_file.exists()


@pytest.mark.parametrize(
    ("text", "env", "output"),
    [
        ("model_store=gone", {}, "--model-store directory not found: gone\n"),
        ("model_store : gone\\\n  2", {}, "--model-store directory not found: gone2\n"),
        ("model_store=$$STORE$$", {"STORE": "gone"}, "--model-store directory not found: gone\n"),
        ("enable_envvars_config=true", {"TS_MODEL_STORE": "gone"}, "--model-store directory not found: gone\n"),
        ("", {"TS_MODEL_STORE": "gone"}, "Missing mandatory parameter --model-store\n"),
        (
            "model_store=$$STORE$$",
            {},
            (
                "Invalid configuration: Invalid Environment Variable STORE (model_store, config.properties:1): "
                "it is not set\n"
            ),
        ),
        (
            "vmargs=-Xmx1g\nplugins_path=p",
            {},
            (
                "Warning: TorchServe is using non-default JVM parameters: -Xmx1g\n"
                "Warning: Java plugins cannot be loaded without a JVM, ignoring: p\n"
                "Missing mandatory parameter --model-store\n"
            ),
        ),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_the_properties_file_counts_in_the_checks(
    place: Place, text: str, env: dict[str, str], output: str, named: bool
) -> None:
    (place.folder / "config.properties").write_text(text)
    arguments = ["--ts-config", "config.properties"] if named else []
    assert place.run(*arguments, **env) == (1, output, "")


def test_stop_without_a_server(place: Place) -> None:
    assert place.run("--stop") == (0, "TorchServe is not currently running.\n", "")
    assert place.run("--stop", "--foreground") == (0, "TorchServe is not currently running.\n", "")


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("content", ["", "abc", "-5", "0", "999999999999999999999", "12 13", "dead"])
@pytest.mark.parametrize("option", ["--version", "--stop", "--start"])
def test_an_orphan_pid_file_is_removed(place: Place, content: str, option: str) -> None:
    place.pid_file.write_text(str(dead_pid()) if content == "dead" else content)
    _, output, errors = place.run(option)
    assert output.startswith("Removing orphan pid file.\n")
    assert errors == ""
    assert not place.pid_file.exists()


def test_the_pid_of_another_program_is_no_server(place: Place) -> None:
    place.pid_file.write_text(str(os.getpid()))
    assert place.run("--stop") == (0, "TorchServe is not currently running.\n", "")
    assert place.pid() == os.getpid()
    place.serve(READY + QUIET + FOREVER)
    assert place.start("--model-store", "store") == (0, "")
    assert place.pid() != os.getpid()


def test_a_background_start_returns_when_the_server_is_ready(place: Place) -> None:
    place.serve(
        "while not os.path.exists('go'): time.sleep(0.005)\n"
        "print(os.getcwd(), os.read(0, 1), sys.argv[1:], flush=True)\n" + READY + QUIET + FOREVER
    )
    with place.popen("--model-store", "store", "--models", "a.mar", "n=b.mar", "--ncs") as command:
        until(place.pid_file.exists)
        assert command.poll() is None
        (place.folder / "go").touch()
        output, _ = command.communicate(timeout=DEADLINE_S)
        assert command.returncode == 0
    arguments = [SERVER_MARKER, "--model-store=store", "--models=a.mar,n=b.mar", "--no-config-snapshots"]
    assert output == f"{place.folder} b'' {arguments}\n"
    assert process.is_server(place.pid())

    message = "TorchServe is already running, please use torchserve --stop to stop TorchServe.\n"
    assert place.run("--model-store", "store") == (1, message, "")
    pid = place.pid()
    assert place.run("--stop") == (0, "TorchServe has stopped.\n", "")
    assert not place.pid_file.exists()
    until(lambda: not process.is_alive(pid))


def test_descriptors_of_the_caller_are_not_kept_open(place: Place) -> None:
    place.serve(READY + QUIET + FOREVER)
    reading, writing = os.pipe()
    code = COMMAND.format(server=str(place.server))
    done = subprocess.run(
        [sys.executable, "-c", code, "--model-store", "store"],
        cwd=place.folder,
        env=place.env,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[writing],
    )
    os.close(writing)
    assert done.returncode == 0
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_stop_in_the_foreground_waits_for_the_end(place: Place) -> None:
    place.serve(
        "def end(*_):\n    while not os.path.exists('go'): time.sleep(0.005)\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n" + READY + QUIET + FOREVER
    )
    assert place.start("--model-store", "store") == (0, "")
    pid = place.pid()
    with place.popen("--stop", "--foreground") as command:
        until(lambda: not place.pid_file.exists())
        assert process.is_server(pid)
        assert command.poll() is None
        (place.folder / "go").touch()
        output, _ = command.communicate(timeout=DEADLINE_S)
    assert (command.returncode, output) == (0, "")
    assert not process.is_alive(pid)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "os.write(int(os.environ['RELIGHT_READY_FD']), b'error: port 8080 is taken\\n'); sys.exit(1)",
            "port 8080 is taken",
        ),
        ("os.write(int(os.environ['RELIGHT_READY_FD']), b'error: it hangs\\n');" + QUIET + FOREVER, "it hangs"),
        ("sys.exit(3)", "the server process ended with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the server process was ended by SIGKILL"),
        (
            (
                "if os.fork(): os._exit(4)\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2)\n"
                "while not os.path.exists('go'): time.sleep(0.005)\n"
            ),
            "the server process ended with status 4",
        ),
    ],
    ids=["error", "error, but it lives on", "exit", "killed", "exit while a child holds the pipe"],
)
def test_a_start_that_fails_says_why(place: Place, body: str, message: str) -> None:
    place.serve(body)
    try:
        assert place.start("--model-store", "store") == (1, f"TorchServe did not start: {message}\n")
    finally:
        (place.folder / "go").touch()
    assert not place.pid_file.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_cancelling_a_start_ends_the_server(place: Place, number: signal.Signals) -> None:
    place.serve("open('up', 'w')\n" + FOREVER)
    with place.popen("--model-store", "store") as command:
        until((place.folder / "up").exists)
        pid = place.pid()
        command.send_signal(number)
        output, _ = command.communicate(timeout=DEADLINE_S)
    assert (command.returncode, output) == (128 + number, "")
    assert not process.is_alive(pid)
    assert not place.pid_file.exists()


def test_in_the_foreground_the_command_becomes_the_server(place: Place) -> None:
    place.serve("assert 'RELIGHT_READY_FD' not in os.environ\nprint(os.getpid(), flush=True)\n" + FOREVER)
    with place.popen("--model-store", "store", "--foreground", RELIGHT_READY_FD="1") as command:
        assert command.stdout is not None
        assert int(command.stdout.readline()) == command.pid == place.pid()
        assert process.is_server(command.pid)
        command.send_signal(signal.SIGTERM)
        assert command.wait(DEADLINE_S) == -signal.SIGTERM


def test_in_the_foreground_the_exit_status_is_the_servers(place: Place) -> None:
    place.serve("sys.exit(7)")
    assert place.start("--model-store", "store", "--foreground") == (7, "")


def test_the_real_server_command_carries_the_marker() -> None:
    command = process.server_command(CommandLine(model_store="s").server_argv())
    assert command[0] == sys.executable
    assert command[-4:] == ["-m", "relight.main", SERVER_MARKER, "--model-store=s"]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--model-store", "a b", "--models", "x=-y", "all", "--ts-config", "c", "--ncs"],
        ["--models=-x", "--workflow-store=w", "--log-config=l", "--cpp-log-config=c", "--ppath=p"],
        ["--dt", "--enable-model-api", "--start", "--foreground"],
    ],
)
def test_the_servers_arguments_parse_back(argv: list[str]) -> None:
    parsed = CommandLine.parse(argv)
    assert CommandLine.parse(parsed.server_argv()) == parsed._replace(start=False, foreground=False)


def test_the_pid_file_is_where_python_puts_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value in (str(tmp_path), str(tmp_path / "missing"), ""):
        monkeypatch.setenv("TMPDIR", value)
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert process.PidFile().path == Path(tempfile.gettempdir(), ".model_server.pid")


def test_the_pid_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "pid").symlink_to(victim)
    process.PidFile(tmp_path / "pid").write(5)
    assert victim.read_text() == "precious"
    assert (tmp_path / "pid").read_text() == "5"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid", "victim"]


def test_a_pid_file_is_removed_only_by_its_owner(tmp_path: Path) -> None:
    pid_file = process.PidFile(tmp_path / "pid")
    pid_file.write(5)
    pid_file.remove(6)
    assert pid_file.read() == 5
    pid_file.remove(5)
    assert pid_file.read() is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: not process.is_alive(child.pid))
    assert child.wait() == 0


def test_a_folder_that_cannot_hold_the_pid_file_is_named(place: Place) -> None:
    place.pid_file.mkdir()
    assert place.run("--start") == (1, f"torchserve: Is a directory: {place.pid_file}\n", "")
