"""The fork server: a process that has imported what workers need, and forks them on request.

The standard library's fork server is one per process and re-imports the parent's main module in each child. relight
keeps two templates, one with torch and one without, so that a model without torch does not pay for it; learns how each
worker ended; and hands over descriptors. So it forks by itself:

    python -m relight.runtime.forkserver FD FILES [MODULE...]

FILES is the limit of open files, the MODULEs are imported for the workers. FD is a SOCK_SEQPACKET socket to the
frontend, one message per packet, MessagePack arrays:

    to the fork server     ["fork", token] with four descriptors: channel, stdout, stderr, progress page
    to the frontend        ["ready", pid]  ["forked", token, pid]  ["refused", token, reason]
                           ["exited", token, wait status, peak RSS in KiB]

It ends when the socket closes, and its workers with it.
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import NoReturn

import msgspec

_MAX_MESSAGE = 4096
_FDS = 4


def main() -> None:
    """Serve fork requests until the frontend closes the socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if not getattr(sys.flags, "safe_path", False):
        # The server's working directory is none of the handlers' business.
        sys.path.pop(0)
    # Collections during imports find nothing and cost a tenth of torch's import time.
    gc.disable()
    for module in sys.argv[3:]:
        _preload(module)
    from relight.runtime import handler_loader, loading, service, worker  # noqa: F401 - for the workers

    worker.die_with_parent(os.getppid())
    gc.collect()
    gc.enable()
    # What is there now lives as long as the workers: never visiting it again keeps its pages shared.
    gc.freeze()
    ForkServer(control).run()


def _preload(module: str) -> None:
    """Import a module into the template; a failure is the worker's to meet, where the model log has it."""
    try:
        importlib.import_module(module)
    except Exception:  # noqa: BLE001 - whatever an import does, workers must still start
        traceback.print_exc()


class ForkServer:
    """Forks workers and reports their ends.

    Args:
        control: Socket to the frontend.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        self._pid = os.getpid()
        self._wake_r, self._wake_w = os.pipe()

    def run(self) -> None:
        """Serve until the frontend is gone."""
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._send("ready", os.getpid())
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake_r], [], [])
            if self._wake_r in ready:
                self._drain_wakeups()
                self._reap()
            if self._control.fileno() in ready and not self._serve_one():
                return

    def _drain_wakeups(self) -> None:
        try:
            while os.read(self._wake_r, 4096):
                pass
        except BlockingIOError:
            pass

    def _serve_one(self) -> bool:
        fds = array.array("i")
        message, ancillary, _, _ = self._control.recvmsg(_MAX_MESSAGE, socket.CMSG_LEN(_FDS * fds.itemsize))
        if not message:
            return False
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        _, token = msgspec.msgpack.decode(message, type=tuple[str, int])
        try:
            pid = os.fork()
        except OSError as error:
            self._send("refused", token, str(error))
        else:
            if pid == 0:
                self._become_worker(*fds)
            self._children[pid] = token
            self._send("forked", token, pid)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _become_worker(self, channel: int, stdout: int, stderr: int, progress: int) -> NoReturn:
        from relight.runtime import worker

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        worker.die_with_parent(self._pid)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for fd in (stdout, stderr, self._wake_r, self._wake_w):
            os.close(fd)
        # Programs that a handler starts must not hold the channel open after the worker's end.
        os.set_inheritable(channel, False)
        os.set_inheritable(progress, False)
        self._control.close()
        worker.main(channel, progress)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            token = self._children.pop(pid, None)
            if token is not None:
                self._send("exited", token, status, usage.ru_maxrss)

    def _send(self, *message: object) -> None:
        try:
            self._control.send(msgspec.msgpack.encode(message))
        except OSError:
            sys.exit(0)


if __name__ == "__main__":
    main()
