"""The fork server for real: processes are forked, watched, killed, and none is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from tests.unit.serving.support import on_loop, until, within

from relight.serving.launchers import forkserver
from relight.serving.launchers.base import ExitStatus, LaunchError
from relight.serving.launchers.forkserver import ForkedWorker, ForkServerLauncher
from relight.wire.frames import FrameDecoder, encode_head
from relight.wire.messages import Answer, Batch, Item, Kind, Load, Loaded, LoadFailed, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HANDLER = """
import os, sys, signal

def handle(data, context):
    if data is None:
        print("loading", os.environ.get("TEST_VARIABLE"))
        return
    text = bytes(data[0]["body"]).decode()
    if text.startswith("exit"):
        os._exit(int(text[4:]))
    if text.startswith("signal"):
        os.kill(os.getpid(), int(text[6:]))
    if text == "modules":
        return [" ".join(sorted(sys.modules))]
    if text == "fds":
        return [" ".join(os.listdir("/proc/self/fd"))]
    return [text.upper()]
"""


@contextlib.asynccontextmanager
async def launched() -> AsyncIterator[ForkServerLauncher]:
    """A launcher; no process of it is left at the end."""
    # Servers of other tests may run below this process.
    others = set(psutil.Process().children(recursive=True))
    launcher = ForkServerLauncher({**os.environ, "TEST_VARIABLE": "here"})
    try:
        yield launcher
    finally:
        await within(launcher.close(), 10)
    children = set(psutil.Process().children(recursive=True)) - others
    assert [child.cmdline() for child in children if _ours(child)] == []


def _ours(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("relight.runtime" in part for part in process.cmdline())
    return False


def gone(pid: int | None) -> bool:
    """Whether the process has ended; nobody may have waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Talk:
    """The frontend's end of a worker's channel."""

    def __init__(self, worker: ForkedWorker) -> None:
        self.worker = worker
        self._decoder = FrameDecoder(1 << 20)
        self._frames: list[tuple[int, bytes, bytes]] = []
        self._seq = 0

    async def send(self, kind: int, message: object, payload: bytes = b"") -> None:
        data = encode_head(kind, message, len(payload)) + payload
        await asyncio.get_running_loop().sock_sendall(self.worker.channel, data)

    async def receive(self) -> tuple[int, bytes, bytes]:
        while not self._frames:
            data = await asyncio.get_running_loop().sock_recv(self.worker.channel, 65536)
            if not data:
                raise EOFError
            self._frames += [(each.kind, bytes(each.meta), bytes(each.payload)) for each in self._decoder.feed(data)]
        return self._frames.pop(0)

    async def load(self, folder: Path, handler: str = "h.py") -> int:
        where = str(folder)
        order = Load("m", "1.0", handler, where, where, 1, [], {}, None, None, True, True, None, 1 << 20, 0, {})
        await self.send(Kind.LOAD, order)
        kind, meta, _ = await self.receive()
        assert kind == Kind.LOADED, meta
        return msgspec.msgpack.decode(meta, type=Loaded).pid

    async def ask(self, text: str) -> str:
        self._seq += 1
        item = Item("id", [], {}, [("body", "", len(text))])
        await self.send(Kind.BATCH, Batch(self._seq, [item]), text.encode())
        kind, meta, payload = await self.receive()
        assert kind == Kind.REPLY
        assert msgspec.msgpack.decode(meta, type=Reply) == Reply(self._seq, [Answer(len(payload))])
        return payload.decode()

    def close(self) -> None:
        self.worker.channel.close()
        assert self.worker.progress is not None
        self.worker.progress.close()
        for fd in (self.worker.stdout, self.worker.stderr):
            os.close(fd)


async def start(launcher: ForkServerLauncher, folder: Path) -> Talk:
    (folder / "h.py").write_text(HANDLER)
    talk = Talk(await within(launcher.launch(torch=False), 30))
    assert await within(talk.load(folder), 30) == talk.worker.pid
    return talk


@on_loop
async def test_a_worker(tmp_path: Path) -> None:
    async with launched() as launcher:
        talk = await start(launcher, tmp_path)
        worker = talk.worker

        assert await talk.ask("hello") == "HELLO"
        assert "torch" not in (await talk.ask("modules")).split()
        assert worker.progress is not None
        assert worker.progress.begun() == 2
        assert os.read(worker.stdout, 1000) == b"loading here\n"
        assert not worker.exited.done()
        worker.channel.close()
        status = await within(worker.exited)

        assert (status.code, status.signal) == (0, None)
        assert 1_000_000 < status.peak_memory < 10_000_000_000
        talk.close()


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ("exit0", ExitStatus(0, None)),
        ("exit3", ExitStatus(3, None)),
        ("exit137", ExitStatus(137, None)),
        ("signal11", ExitStatus(None, signal.SIGSEGV)),
        ("signal9", ExitStatus(None, signal.SIGKILL)),
        ("signal15", ExitStatus(None, signal.SIGTERM)),
    ],
)
@on_loop
async def test_the_end_of_a_worker(tmp_path: Path, order: str, status: ExitStatus) -> None:
    async with launched() as launcher:
        talk = await start(launcher, tmp_path)

        with pytest.raises((EOFError, ConnectionResetError)):
            await talk.ask(order)
        ended = await within(talk.worker.exited)

        assert (ended.code, ended.signal) == (status.code, status.signal)
        talk.close()


@on_loop
async def test_killing(tmp_path: Path) -> None:
    async with launched() as launcher:
        talk = await start(launcher, tmp_path)

        talk.worker.kill()
        status = await within(talk.worker.exited)
        talk.worker.kill()

        assert status.killed
        talk.close()


@on_loop
async def test_many_workers_from_one_template(tmp_path: Path) -> None:
    async with launched() as launcher:
        talks = [Talk(worker) for worker in await asyncio.gather(*(launcher.launch(torch=False) for _ in range(8)))]

        pids = {talk.worker.pid for talk in talks}
        assert len(pids) == 8
        parents = {psutil.Process(pid).ppid() for pid in pids}
        assert len(parents) == 1
        for talk in talks[1:]:
            talk.worker.kill()
        await within(asyncio.gather(*(talk.worker.exited for talk in talks[1:])))
        assert not talks[0].worker.exited.done()
        for talk in talks:
            talk.close()


@on_loop
async def test_the_death_of_the_template(tmp_path: Path) -> None:
    async with launched() as launcher:
        talk = await start(launcher, tmp_path)
        assert talk.worker.pid is not None
        template = psutil.Process(talk.worker.pid).parent()
        assert template is not None

        template.kill()
        status = await within(talk.worker.exited)
        assert status == ExitStatus(None, None)
        await until(lambda: gone(talk.worker.pid))
        talk.close()

        fresh = await start(launcher, tmp_path)
        assert await fresh.ask("again") == "AGAIN"
        fresh.close()


@on_loop
async def test_a_template_that_cannot_start() -> None:
    launcher = ForkServerLauncher({"PYTHONHOME": "/nowhere"})

    with pytest.raises(LaunchError, match="the fork server cannot start a worker"):
        await within(launcher.launch(torch=False), 20)

    await launcher.close()


@on_loop
async def test_a_template_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "_FORK_TIMEOUT", 0.05)
    async with launched() as launcher:
        launcher.prepare(torch=False)
        os.kill(launcher._templates[False].process.pid, signal.SIGSTOP)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one list to count

        with pytest.raises(LaunchError, match=r"has not answered for 0\.05 s"):
            await launcher.launch(torch=False)

        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        os.kill(launcher._templates[False].process.pid, signal.SIGCONT)


@on_loop
async def test_closing_ends_workers_too(tmp_path: Path) -> None:
    async with launched() as launcher:
        talk = await start(launcher, tmp_path)

    await until(lambda: gone(talk.worker.pid))
    talk.close()


@on_loop
async def test_a_worker_has_no_descriptor_of_another(tmp_path: Path) -> None:
    async with launched() as launcher:
        first = await start(launcher, tmp_path)
        alone = set((await first.ask("fds")).split())
        talks = [await start(launcher, tmp_path) for _ in range(3)]

        assert {frozenset((await talk.ask("fds")).split()) for talk in talks} == {frozenset(alone)}
        first.worker.channel.close()
        await within(first.worker.exited)
        for talk in (first, *talks):
            talk.close()


@on_loop
async def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text("def handle(data, context):\n    raise ValueError('no weights')\n")
    async with launched() as launcher:
        talk = Talk(await launcher.launch(torch=False))
        with pytest.raises(AssertionError):
            await talk.load(tmp_path)
        status = await within(talk.worker.exited)

        assert status.code == 1
        assert b"ValueError: no weights" in os.read(talk.worker.stdout, 100_000)
        talk.close()


@on_loop
async def test_what_a_worker_reports_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text("import nothing_of_that_name\n")
    where = str(tmp_path)
    async with launched() as launcher:
        talk = Talk(await launcher.launch(torch=False))
        await talk.send(
            Kind.LOAD, Load("m", "1.0", "h.py", where, where, 1, [], {}, None, None, True, True, None, 1000, 0, {})
        )
        kind, meta, _ = await within(talk.receive(), 20)

        assert kind == Kind.LOAD_FAILED
        failed = msgspec.msgpack.decode(meta, type=LoadFailed)
        assert (failed.phase, failed.status) == ("import", 500)
        assert failed.message == "ModuleNotFoundError: No module named 'nothing_of_that_name'"
        assert "h.py" in failed.traceback
        await within(talk.worker.exited)
        talk.close()
