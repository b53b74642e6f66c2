"""The life of a worker process: settle in, load the model, answer batches until the channel closes."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import logging
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from relight.runtime.channel import Channel
from relight.wire.messages import FAILED_TO_LOAD, Batch, Kind, Load, Loaded, LoadFailed
from relight.wire.progress import Phase, ProgressPage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from relight.runtime.handler_loader import EntryPoint
    from relight.runtime.service import Service

logger = logging.getLogger("relight.worker")

_PR_SET_PDEATHSIG = 1
_LIBRARY = Path(importlib.__file__).parent.parent
_FOREIGN_FILES = (
    f"{Path(__file__).parent}/",
    f"{_LIBRARY / 'importlib'}/",
    f"{_LIBRARY / 'asyncio'}/",
    "<frozen importlib",
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LoadError(Exception):
    """The model could not be loaded; the cause is chained.

    Args:
        phase: `import` or `initialize`.
    """

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the parent ends, even by SIGKILL.

    Args:
        parent: Pid of the parent; when it is gone already, this process exits at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(channel_fd: int, progress_fd: int | None, load: Load | None = None) -> NoReturn:
    """Run the worker and end the process.

    Args:
        channel_fd: Connected socket to the frontend.
        progress_fd: Memory shared with the frontend, if it is on this host.
        load: What to load, where another process has received that already.
    """
    code = 1
    try:
        code = _serve(channel_fd, progress_fd, load)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # noqa: BLE001 - the process boundary: its last words go to the model log
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Not sys.exit: the template's exit handlers and threads are not this process's.
        os._exit(code)


def _serve(channel_fd: int, progress_fd: int | None, load: Load | None) -> int:
    _configure_logging()
    progress = None if progress_fd is None else ProgressPage(progress_fd)
    channel = Channel(socket.socket(fileno=channel_fd))
    if load is None:
        frame = channel.receive()
        if frame is None:
            return 0
        load = msgspec.msgpack.decode(frame.meta, type=Load)
        if _shadows(load):
            _start_afresh(channel_fd, progress_fd, bytes(frame.meta))
    return _serve_model(load, channel, progress)


def _shadows(load: Load) -> bool:
    """Whether the archive brings its own version of modules that the template has imported already."""
    from relight.runtime.handler_loader import model_sys_path, shadowed_modules

    entries = model_sys_path(load.handler, Path(load.real_dir), load.extra_path, os.environ.get("PYTHONPATH"))
    shadowed = shadowed_modules(entries)
    if shadowed:
        logger.info("The archive shadows %s: the worker starts from a fresh interpreter", ", ".join(shadowed))
    return bool(shadowed)


def _start_afresh(channel_fd: int, progress_fd: int | None, load: bytes) -> NoReturn:
    """Replace this process by a new interpreter that goes on where this one is."""
    message = os.memfd_create("relight-load", 0)
    os.write(message, load)
    os.lseek(message, 0, os.SEEK_SET)
    os.set_inheritable(channel_fd, True)
    if progress_fd is not None:
        os.set_inheritable(progress_fd, True)
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    fds = [str(channel_fd), str(-1 if progress_fd is None else progress_fd), str(message)]
    os.execv(  # noqa: S606 - no shell is wanted
        sys.executable, [sys.executable, *safe, "-m", "relight.runtime.worker", *fds]
    )


def _main_afresh() -> NoReturn:
    channel_fd, progress_fd, message = map(int, sys.argv[1:])
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    with os.fdopen(message, "rb") as file:
        load = msgspec.msgpack.decode(file.read(), type=Load)
    os.set_inheritable(channel_fd, False)
    if progress_fd >= 0:
        os.set_inheritable(progress_fd, False)
    main(channel_fd, progress_fd if progress_fd >= 0 else None, load)


def _serve_model(load: Load, channel: Channel, progress: ProgressPage | None) -> int:
    _apply_environment(load)
    try:
        serve = _load(load, channel, progress)
    except LoadError as error:
        _report(channel, load, error)
        return 1
    _enter(progress, Phase.SERVE)
    channel.send(Kind.LOADED, Loaded(os.getpid()))
    serve()
    return 0


def _configure_logging() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _apply_environment(load: Load) -> None:
    pinned = any(os.environ.get(name) for name in _THREAD_VARIABLES)
    os.environ.update(load.environment)
    if load.threads <= 0 or pinned:
        return
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(load.threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Imported in the template already: it has read the variables.
        torch.set_num_threads(load.threads)


def _enter(progress: ProgressPage | None, phase: int) -> None:
    if progress is not None:
        progress.enter(phase)


def _load(load: Load, channel: Channel, progress: ProgressPage | None) -> Callable[[], None]:
    """Load the model; what then runs its batches, until the frontend closes the channel."""
    from relight.runtime.envelope import enclose
    from relight.runtime.handler_loader import enter_model_dir, resolve

    _enter(progress, Phase.IMPORT)
    try:
        enter_model_dir(load.handler, Path(load.real_dir), [Path(entry) for entry in load.extra_path])
        entry = resolve(load.handler, Path(load.model_dir))
        if load.envelope:
            if load.concurrent or entry.is_async:
                raise NotImplementedError(  # noqa: TRY301
                    f"service_envelope={load.envelope} does not work with an asynchronous handler"
                )
            entry = enclose(entry, load.envelope)
    except BaseException as error:
        raise LoadError("import") from error
    _enter(progress, Phase.INITIALIZE)
    try:
        return _initialize(entry, load, channel, progress)
    except BaseException as error:
        raise LoadError("initialize") from error


def _initialize(entry: EntryPoint, load: Load, channel: Channel, progress: ProgressPage | None) -> Callable[[], None]:
    from relight.runtime.loading import build_context
    from relight.runtime.service import Service

    context = build_context(load)
    if load.concurrent:
        # Imported for those who need it: asyncio is a third of what a worker without torch imports.
        from relight.runtime.async_service import AsyncService

        return AsyncService(entry, context, load, channel, progress).serve
    if entry.is_async or inspect.iscoroutinefunction(entry.initialize):
        from relight.runtime import event_loop

        entry = event_loop.one_at_a_time(entry, event_loop.initialize(entry, context))
    else:
        entry.initialize(context)
    return partial(_answer_batches, Service(entry, context, load, channel, progress), channel)


def _answer_batches(service: Service, channel: Channel) -> None:
    decode = msgspec.msgpack.Decoder(Batch).decode
    while True:
        frame = channel.receive()
        if frame is None:
            return
        service.run(decode(frame.meta), frame.payload)


def _report(channel: Channel, load: Load, error: LoadError) -> None:
    """Tell the model log and the frontend why the model could not be loaded."""
    cause = error.__cause__
    assert cause is not None
    text = "".join(traceback.format_exception(type(cause), cause, _own_frames(cause.__traceback__)))
    exhausted = isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and "CUDA" in str(cause))
    logger.error("%s%s, exception %s", FAILED_TO_LOAD, load.model_name, cause)
    for line in text.splitlines():
        logger.error("%s", line)
    channel.send(Kind.LOAD_FAILED, LoadFailed(error.phase, 507 if exhausted else 500, _one_line(cause), text))


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame that is neither relight's nor the import system's; all of it if none is."""
    first = trace
    while first is not None:
        file = first.tb_frame.f_code.co_filename
        if not file.startswith(_FOREIGN_FILES):
            return first
        first = first.tb_next
    return trace


def _one_line(error: BaseException) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()


if __name__ == "__main__":
    _main_afresh()
