"""The server process as the command sees it: its pid file, whether it lives, how it is started and told to end."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relight.command_line import SERVER_MARKER
from relight.readiness import READY_FD

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Outcome",
    "PidFile",
    "is_alive",
    "is_server",
    "server_command",
    "spawn",
    "wait_for_end",
    "wait_until_ready",
]

_POLL_MS = 100
_SILENT_END_S = 10.0
_LONGEST_REPORT = 65536


class Outcome(NamedTuple):
    """How a start ended; `error` is None when the server is ready, else one line that says why it is not."""

    error: str | None


class PidFile:
    """`.model_server.pid` in Python's temporary folder, where TorchServe keeps it too.

    Args:
        path: The file; by default in the folder that `tempfile.gettempdir()` returns.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(_temporary_folder(), ".model_server.pid")

    def read(self) -> int | None:
        """The pid in the file; 0 for content that is none, None when there is no file."""
        try:
            text = self.path.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    def write(self, pid: int) -> None:
        """Put a pid into the file, never through a link that somebody left in a shared folder."""
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(str(pid))
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, pid: int | None = None) -> None:
        """Remove the file; where a pid is given, only if it is the one in the file."""
        if pid is None or self.read() == pid:
            self.path.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether the process exists and has not ended; a zombie has."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not _is_zombie(pid)


def is_server(pid: int) -> bool:
    """Whether the process is a model server: it lives, and its argv holds `SERVER_MARKER`."""
    return is_alive(pid) and SERVER_MARKER in _argv(pid)


def server_command(arguments: Sequence[str]) -> list[str]:
    """The argv of the server process.

    Args:
        arguments: `CommandLine.server_argv()`.
    """
    # Without -P, `-m` would let modules in the working directory stand in for installed ones.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", "relight.main", *arguments]


def spawn(command: list[str]) -> tuple[int, int]:
    """Start the server in the background: same folder, output, session and group; no input.

    Args:
        command: Its argv.

    Returns:
        Its pid, and the end of the pipe on which it reports.

    Raises:
        OSError: It cannot be started.
    """
    reading, writing = os.pipe()
    _close_on_exec_above_stderr()
    os.set_inheritable(writing, True)
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            {**os.environ, READY_FD: str(writing)},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            # Python ignores these two; programs that the server starts must not inherit that.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return pid, reading


def wait_until_ready(pid: int, reading: int) -> Outcome:
    """Wait for the server's report, for as long as it lives.

    Args:
        pid: The server, a child of this process.
        reading: The pipe from `spawn`; it is closed.
    """
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    received = b""
    status: int | None = None
    try:
        while b"\n" not in received and len(received) < _LONGEST_REPORT:
            # A process that the server started may hold the pipe open: the end of the server ends the wait, too.
            if not poll.poll(_POLL_MS):
                status = _reap(pid)
                if status is not None and not poll.poll(0):
                    break
                continue
            chunk = os.read(reading, 4096)
            if not chunk:
                break
            received += chunk
    finally:
        os.close(reading)
    report = received.split(b"\n", 1)[0].decode(errors="replace").strip()
    if report == "ready":
        return Outcome(None)
    if report:
        return Outcome(report.removeprefix("error:").strip())
    return Outcome(_describe_end(pid, status))


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait until a process has ended, a child or not.

    Args:
        pid: The process.
        timeout_s: Longest wait in seconds.

    Returns:
        Whether it has ended.
    """
    deadline = time.monotonic() + timeout_s
    while is_alive(pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _describe_end(pid: int, status: int | None) -> str:
    deadline = time.monotonic() + _SILENT_END_S
    while status is None and time.monotonic() < deadline:
        status = _reap(pid)
        time.sleep(0.01)
    if status is None:
        return "the server process does not say whether it is ready"
    if status < 0:
        return f"the server process was ended by {signal.Signals(-status).name}"
    return f"the server process ended with status {status}"


def _reap(pid: int) -> int | None:
    """The exit status of a child that has ended, negative for a signal; None while it runs."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


def _is_zombie(pid: int) -> bool:
    try:
        # The name in parentheses may hold anything, so the state is what follows the last one.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return True
    except ProcessLookupError:
        return True
    import psutil  # slow, and needed only where there is no /proc

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        if Path("/proc/self/cmdline").exists():
            return []
    import psutil

    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def _temporary_folder() -> str:
    """What `tempfile.gettempdir()` returns. That module takes longer to import than the rest of this program."""
    variables = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    for folder in [*variables, "/tmp", "/var/tmp", "/usr/tmp"]:  # noqa: S108 - Python's own list
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):  # noqa: PTH112
            return os.path.abspath(folder)  # noqa: PTH100 - links stay unresolved, as in tempfile
    return os.getcwd()  # noqa: PTH109


def _close_on_exec_above_stderr() -> None:
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:
        return
    for descriptor in descriptors:
        if descriptor > 2:
            try:
                os.set_inheritable(descriptor, False)
            except OSError:
                continue
