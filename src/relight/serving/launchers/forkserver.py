"""Launches workers by forking a template that has imported what they need (`relight.runtime.forkserver`)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from relight.serving.launchers.base import ExitStatus, LaunchError
from relight.wire.progress import ProgressPage

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("relight.launcher")

_MAX_MESSAGE = 4096
_FORK_TIMEOUT = 120.0
"""Seconds; the template may still be importing torch from a slow disk."""
_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []


@dataclass(slots=True)
class ForkedWorker:
    """A worker that a template has forked."""

    channel: socket.socket
    pid: int | None
    stdout: int
    stderr: int
    progress: ProgressPage | None
    exited: asyncio.Future[ExitStatus]

    def kill(self) -> None:
        """End the process at once. Its pid is not reused before the template has reported its end."""
        if self.pid is not None and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Template:
    """One fork server process, as the frontend sees it.

    Args:
        modules: Modules that it imports for its workers.
        files: Limit of open files that it and its workers run with.
        environment: Environment of the process and of its workers.
        python: Interpreter.
    """

    def __init__(
        self, modules: list[str], files: int, environment: Mapping[str, str], python: str = sys.executable
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [python, *_SAFE_PATH, "-m", "relight.runtime.forkserver", str(theirs.fileno()), str(files), *modules],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # A session of its own: the terminal's Ctrl-C is the frontend's to handle.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        self._tokens = 0
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._exits: dict[int, asyncio.Future[ExitStatus]] = {}
        self._listening = False
        self.alive = True

    async def fork(self) -> ForkedWorker:
        """Fork a worker; waits while the template is still importing.

        Raises:
            LaunchError: the template has ended or cannot fork.
        """
        loop = asyncio.get_running_loop()
        if not self._listening:
            self._listening = True
            loop.add_reader(self._control.fileno(), self._read)
        self._tokens += 1
        token = self._tokens
        with ExitStack() as ours, ExitStack() as theirs:
            # Ours are closed where no worker comes to use them, theirs in any case.
            channel, their_channel = socket.socketpair()
            ours.callback(channel.close)
            theirs.callback(their_channel.close)
            stdout, their_stdout = _pipe(ours, theirs)
            stderr, their_stderr = _pipe(ours, theirs)
            page = ProgressPage.create()
            theirs.callback(os.close, page)
            progress = ProgressPage(page)
            ours.callback(progress.close)
            fds = array.array("i", [their_channel.fileno(), their_stdout, their_stderr, page])
            forked: asyncio.Future[int] = loop.create_future()
            exited: asyncio.Future[ExitStatus] = loop.create_future()
            self._forks[token], self._exits[token] = forked, exited
            ours.callback(self._forget, token)
            try:
                self._control.sendmsg(
                    [msgspec.msgpack.encode(("fork", token))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
                )
                pid = await _answered(forked)
            except (OSError, LaunchError) as error:
                raise LaunchError(f"the fork server cannot start a worker: {error}") from error
            ours.pop_all()
        channel.setblocking(False)
        return ForkedWorker(channel, pid, stdout, stderr, progress, exited)

    def _forget(self, token: int) -> None:
        self._forks.pop(token, None)
        self._exits.pop(token, None)

    def _read(self) -> None:
        while True:
            try:
                message = self._control.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._lost()
                return
            self._handle(*msgspec.msgpack.decode(message))

    def _handle(self, kind: str, token: int, *values: Any) -> None:
        if kind == "forked":
            forked = self._forks.pop(token, None)
            if forked is not None and not forked.done():
                forked.set_result(values[0])
        elif kind == "refused":
            self._exits.pop(token, None)
            refused = self._forks.pop(token, None)
            if refused is not None and not refused.done():
                refused.set_exception(LaunchError(values[0]))
        elif kind == "exited":
            exited = self._exits.pop(token, None)
            if exited is not None and not exited.done():
                exited.set_result(ExitStatus.from_wait(values[0], values[1] * 1024))

    def _lost(self) -> None:
        """The process is gone, and by the parent-death signal its workers are too."""
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        code = self.process.wait()
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(LaunchError(f"the fork server ended with code {code}"))
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(ExitStatus(None, None))
        self._forks.clear()
        self._exits.clear()

    async def close(self) -> None:
        """End the process; it ends when its socket closes, or else is killed."""
        if self.alive:
            self.alive = False
            if self._listening:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
        try:
            await asyncio.to_thread(self.process.wait, 2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """A pipe: the end to read from, which is closed with `ours`, and the end to write to, closed with `theirs`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


async def _answered(forked: asyncio.Future[int]) -> int:
    """The pid of a worker that was asked for.

    Raises:
        LaunchError: the template does not answer, or refuses.
    """
    await asyncio.wait([forked], timeout=_FORK_TIMEOUT)
    if not forked.done():
        raise LaunchError(f"it has not answered for {_FORK_TIMEOUT:g} s")
    return forked.result()


class ForkServerLauncher:
    """Keeps two templates, one with torch and one without, each started when it is first needed.

    Args:
        environment: Environment of the workers.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        # Asked now, as the frontend raises its own: programs that use select() cannot handle descriptors beyond 1,024.
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._templates: dict[bool, Template] = {}

    def prepare(self, *, torch: bool) -> None:
        """Start the template now, so that its imports run while the frontend starts. Needs no event loop."""
        if torch not in self._templates:
            self._templates[torch] = Template(["torch"] if torch else [], self._files, self._environment)

    async def launch(self, *, torch: bool) -> ForkedWorker:
        """Start a worker.

        Raises:
            LaunchError: it cannot be started.
        """
        template = self._templates.get(torch)
        if template is None or not template.alive:
            self._templates.pop(torch, None)
            self.prepare(torch=torch)
        return await self._templates[torch].fork()

    async def close(self) -> None:
        """End the templates."""
        await asyncio.gather(*(template.close() for template in self._templates.values()))
        self._templates.clear()
