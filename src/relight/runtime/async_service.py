"""A loaded model whose handler is asynchronous (`asyncCommunication`): its batches run concurrently, on one event loop.

Each batch has a task, a context and an answer of its own. The loop reads the channel between the steps of the tasks, so
there is no other thread; sending blocks, but the frontend never stops reading from a concurrent worker.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from relight.runtime.context_views import ContextViews
from relight.runtime.event_loop import initialize
from relight.runtime.inputs import decode_rows
from relight.runtime.pace import Gate, Paced
from relight.runtime.service import Service, failure_of
from relight.wire.messages import Batch, Failure, Kind, Notice, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.runtime.channel import Channel
    from relight.runtime.handler_loader import EntryPoint
    from relight.sdk.context import Context
    from relight.wire.frames import Frame
    from relight.wire.messages import Load
    from relight.wire.progress import ProgressPage

logger = logging.getLogger("relight.worker")

_running: ContextVar[_Call | None] = ContextVar("relight_running", default=None)
_decode_batch: Callable[[bytes | memoryview], Batch] = msgspec.msgpack.Decoder(Batch).decode
_decode_notice: Callable[[bytes | memoryview], Notice] = msgspec.msgpack.Decoder(Notice).decode


class AsyncService:
    """Runs batches through one asynchronous handler.

    Args:
        entry: The handler; it is initialized here.
        context: The context that lives as long as the worker.
        load: What the frontend asked to load.
        channel: Connected to the frontend.
        progress: The page shared with the frontend, where there is one.

    Raises:
        BaseException: Whatever the handler raises when it is initialized, unchanged.
    """

    def __init__(
        self, entry: EntryPoint, context: Context, load: Load, channel: Channel, progress: ProgressPage | None
    ) -> None:
        self._entry = entry
        self._views = ContextViews(context)
        self._load = load
        self._channel = channel
        self._outlet = _Outlet(channel)
        self._progress = progress
        self._calls: dict[int, _Call] = {}
        self._error: BaseException | None = None
        # A handler may ask the context that it kept from `initialize`: it means the batch that it is asking from.
        context.intermediate_sender = _send_for_current
        context.cancel_probe = _current_is_cancelled
        self.loop = initialize(entry, context)

    def serve(self) -> None:
        """Run batches until the frontend closes the channel.

        Raises:
            WireError: The frontend does not speak this protocol.
            OSError: The channel broke.
            SystemExit: A handler ended the worker.
        """
        descriptor = self._channel.fileno()
        self.loop.add_reader(descriptor, self.read)
        try:
            self.loop.run_forever()
        finally:
            self.loop.remove_reader(descriptor)
        if self._error is not None:
            raise self._error

    def read(self) -> None:
        """Begin the batches that have come, and heed what is said of those under way."""
        try:
            frames = self._channel.poll()
            for frame in frames or ():
                self._receive(frame)
        except Exception as error:  # noqa: BLE001 - the boundary to the loop, which would log it and go on
            self._end(error)
        else:
            if frames is None:
                self._end(None)

    def _receive(self, frame: Frame) -> None:
        if frame.kind == Kind.BATCH:
            self._begin(_decode_batch(frame.meta), frame.payload)
            return
        notice = _decode_notice(frame.meta)
        call = self._calls.get(notice.seq)
        if call is not None:
            call.heed(frame.kind, notice)

    def _begin(self, batch: Batch, payload: bytes | memoryview) -> None:
        call = _Call(batch.seq, self._entry, self._views.make(), self._load, self._outlet, self)
        self._calls[batch.seq] = call
        call.task = self.loop.create_task(call.answer(batch, payload))
        call.task.add_done_callback(lambda task: self._ended(batch.seq, task))

    def begun(self, seq: int) -> None:
        """A batch begins; they begin in the order in which they came."""
        if self._progress is not None:
            self._progress.begin(seq)

    def _ended(self, seq: int, task: asyncio.Task[None]) -> None:
        del self._calls[seq]
        if not task.cancelled() and task.exception() is not None:
            self._end(task.exception())

    def _end(self, error: BaseException | None) -> None:
        self._error = self._error or error
        self.loop.stop()


class _Outlet:
    """The channel, for senders in any thread.

    Args:
        channel: The channel.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self.thread = threading.get_ident()
        """The thread of the event loop."""

    def send(self, kind: int, message: Any, bodies: list[bytes | bytearray] | None = None, length: int = 0) -> None:
        """Send a frame, not mixed with another one."""
        with self._lock:
            self._channel.send(kind, message, bodies, length)

    def let_frontend_run(self) -> None:
        """See `Channel.let_frontend_run`."""
        self._channel.let_frontend_run()


class _Call(Service):
    """One batch."""

    def __init__(
        self, seq: int, entry: EntryPoint, context: Context, load: Load, outlet: _Outlet, service: AsyncService
    ) -> None:
        super().__init__(entry, context, load, outlet, None)  # type: ignore[arg-type]  # as much of a channel as it needs
        self.task: asyncio.Task[None] | None = None
        self._seq = seq
        self._outlet = outlet
        self._service = service
        self._gate = Gate()
        self._gone: set[int] = set()
        self._closed = False
        context.cancel_probe = self.is_cancelled

    async def answer(self, batch: Batch, payload: bytes | memoryview) -> None:
        """Have the handler handle the batch, and send its reply."""
        _running.set(self)
        self._service.begun(batch.seq)
        self._bind(batch.items)
        try:
            result = await self._handled(decode_rows(batch.items, payload, self._decode))
            answers, bodies = self._answers(result, len(batch.items))
        except Exception as error:  # noqa: BLE001 - the boundary to the handler's code
            self._close(Reply(batch.seq, [], failure_of(error)))
        except asyncio.CancelledError as error:
            if not self._closed:
                # Nobody here has cancelled it: something that the handler waited for was cancelled.
                self._close(Reply(batch.seq, [], failure_of(RuntimeError(f"cancelled: {error!r}"))))
        else:
            self._close(Reply(batch.seq, answers), bodies)
        finally:
            self._gate.open()

    async def _handled(self, rows: list[dict[str, Any]]) -> Any:
        result = self._handle(rows, self._context)
        if inspect.iscoroutine(result):
            return await Paced(result, self._gate)
        if inspect.isawaitable(result):
            return await result
        raise TypeError("asyncCommunication needs an `async def handle`; this one is not")

    def _close(self, reply: Reply, bodies: list[bytes | bytearray] | None = None) -> None:
        """Send the reply, unless the batch was stopped."""
        if not self._closed:
            self._closed = True
            self._outlet.send(Kind.REPLY, reply, bodies, sum(map(len, bodies or ())))

    def send_intermediate(self, result: list[Any], code: int, message: str) -> None:
        """Send one intermediate result per request of this batch; nothing when its answer is complete.

        Raises:
            ValueError: `result` is not a list with one item per request.
        """
        if threading.get_ident() != self._outlet.thread:
            self._gate.wait_in_thread()
        if self._closed:
            logger.warning("An intermediate result came after the end of its request: it is dropped.")
            return
        super().send_intermediate(result, code, message)

    def is_cancelled(self, index: int) -> bool:
        """Whether nobody waits for a request any more."""
        if threading.get_ident() == self._outlet.thread:
            # The loop cannot read while the handler keeps it.
            self._service.read()
        return index in self._gone or self._closed

    def heed(self, kind: int, notice: Notice) -> None:
        """What the frontend says of the batch."""
        if kind == Kind.CANCEL:
            self._gone.add(notice.index)
        elif kind == Kind.HOLD:
            self._gate.close()
        elif kind == Kind.RELEASE:
            self._gate.open()
        elif kind == Kind.STOP:
            self._close(Reply(self._seq, [], Failure(500, "stopped")))
            self._gate.open()
            if self.task is not None:
                self.task.cancel()


def _send_for_current(result: list[Any], code: int, message: str) -> None:
    call = _running.get()
    if call is None:
        raise RuntimeError("an intermediate result needs the context that `handle` was given, outside of its task")
    call.send_intermediate(result, code, message)


def _current_is_cancelled(index: int) -> bool:
    call = _running.get()
    return call is not None and call.is_cancelled(index)
