"""One loaded model: calls the handler with a batch and turns the outcome into a reply."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from relight.runtime.inputs import decode_rows, headers_of
from relight.runtime.outputs import UnsupportedOutputError, build_answer, encode_item
from relight.runtime.withdrawn import without_withdrawn
from relight.sdk.context import Context, RequestProcessor
from relight.sdk.errors import PredictionException
from relight.wire.messages import Answer, Failure, Kind, Reply

if TYPE_CHECKING:
    from relight.runtime.channel import Channel
    from relight.runtime.handler_loader import EntryPoint
    from relight.runtime.withdrawn import Remaining
    from relight.wire.messages import Batch, Item, Load
    from relight.wire.progress import ProgressPage

logger = logging.getLogger("relight.worker")

_OUT_OF_RESOURCES = Failure(507, "Out of resources")


class Service:
    """Runs batches through one handler.

    Args:
        entry: The handler.
        context: The context that lives as long as the worker.
        load: What the frontend asked to load.
        channel: Where replies go.
        progress: The page shared with the frontend, where there is one.
    """

    def __init__(
        self, entry: EntryPoint, context: Context, load: Load, channel: Channel, progress: ProgressPage | None
    ) -> None:
        self._handle = entry.handle
        self._context = context
        self._decode = load.decode_input
        self._continuous = load.continuous
        self._limit = load.max_response_size
        self._channel = channel
        self._progress = progress
        self._seq = 0
        self._remaining: Remaining | None = None
        self._processors: list[RequestProcessor] = []
        context.intermediate_sender = self.send_intermediate
        if progress is not None:
            context.cancel_probe = self._is_cancelled

    def run(self, batch: Batch, payload: bytes | memoryview) -> None:
        """Handle one batch and send its reply."""
        self._seq = batch.seq
        self._remaining = None
        items = batch.items
        progress = self._progress
        if progress is not None:
            progress.begin(batch.seq)
            if progress.any_cancelled(batch.seq):
                self._remaining = without_withdrawn(items, payload, partial(progress.cancelled, batch.seq))
                items, payload = self._remaining.items, self._remaining.payload
                if not items:
                    self._send(Kind.REPLY, [], [])
                    return
        self._bind(items)
        try:
            result = self._handle(decode_rows(items, payload, self._decode), self._context)
            answers, bodies = self._answers(result, len(items))
            if self._continuous:
                self._mark_unfinished(items, result, answers)
        except Exception as error:  # noqa: BLE001 - the boundary to the handler's code
            self._fail(failure_of(error))
        else:
            self._send(Kind.REPLY, answers, bodies)

    def _send(self, kind: int, answers: list[Answer], bodies: list[bytes | bytearray]) -> None:
        if self._remaining is not None:
            answers = self._remaining.spread(answers)
        self._channel.send(kind, Reply(self._seq, answers), bodies, sum(map(len, bodies)))

    def _is_cancelled(self, index: int) -> bool:
        remaining = self._remaining
        if remaining is not None and 0 <= index < len(remaining.positions):
            index = remaining.positions[index]
        return self._progress is not None and self._progress.cancelled(self._seq, index)

    def send_intermediate(self, result: list[Any], code: int, message: str) -> None:
        """Send one intermediate result per request of the running batch (`send_intermediate_predict_response`).

        Raises:
            ValueError: `result` is not a list with one item per request.
        """
        if not 200 <= code < 300:
            self._channel.send(Kind.CHUNK, Reply(self._seq, [], _failure(code, message)))
            return
        if not isinstance(result, list) or len(result) != len(self._processors):
            raise ValueError(f"an intermediate result must be a list of {len(self._processors)} items, one per request")
        answers, bodies = self._encode(result)
        self._send(Kind.CHUNK, answers, bodies)
        self._channel.let_frontend_run()

    def _bind(self, items: list[Item]) -> None:
        context = self._context
        self._processors = [RequestProcessor(partial(headers_of, item)) for item in items]
        ids = {index: item.request_id for index, item in enumerate(items)}
        context.request_ids = ids
        context.request_processor = self._processors
        if context.metrics is not None:
            context.metrics.set_request_ids(ids)

    def _answers(self, result: Any, count: int) -> tuple[list[Answer], list[bytes | bytearray]]:
        if not isinstance(result, list):
            close = getattr(result, "close", None)
            if close is not None and hasattr(result, "cr_frame"):
                close()
            raise _BadResultError("Invalid model predict output")
        if len(result) != count:
            raise _BadResultError("number of batch response mismatched")
        return self._encode(result)

    def _mark_unfinished(self, items: list[Item], result: list[Any], answers: list[Answer]) -> None:
        """Ask the handler's criteria which requests go on (archives_and_handlers.md §6.6).

        One criterion per request, called with its result: False means that there is more to come.
        """
        criteria = self._context.stopping_criteria
        if criteria is None or "describe" in items[0].added:
            return
        for index, answer in enumerate(answers):
            criterion = criteria[index]
            if criterion is not None and not answer.error:
                stop = criterion(result[index])
                answer.more = stop is not None and not stop

    def _encode(self, result: list[Any]) -> tuple[list[Answer], list[bytes | bytearray]]:
        answers, bodies = [], []
        for item, processor in zip(result, self._processors, strict=True):
            try:
                answer, body = build_answer(encode_item(item), processor, self._limit)
            except UnsupportedOutputError as error:
                logger.warning("Unsupported model output data type: %s", error)
                raise _BadResultError("Unsupported model output data type.") from error
            if answer.error:
                logger.warning("%s", bytes(body).decode())
            answers.append(answer)
            if body:
                bodies.append(body)
        return answers, bodies

    def _fail(self, failure: Failure) -> None:
        self._channel.send(Kind.REPLY, Reply(self._seq, [], failure))


def failure_of(error: Exception) -> Failure:
    """What the clients of a batch are told of the exception that ended it; the log gets all of it."""
    if isinstance(error, _BadResultError):
        return Failure(503, str(error))
    if isinstance(error, MemoryError):
        logger.error("System out of memory", exc_info=error)
        return _OUT_OF_RESOURCES
    if isinstance(error, PredictionException):
        logger.error("Prediction error", exc_info=error)
        return _failure(error.error_code, error.message)
    logger.error("Invoking custom service failed.", exc_info=error)
    # "CUDA" in the text is upstream's test for an exhausted device; clients know the 507 it leads to.
    return _OUT_OF_RESOURCES if "CUDA" in _text(error) else Failure(503, "Prediction failed")


def _failure(code: Any, message: Any) -> Failure:
    """What a handler says of its failure; a code that is no number counts as 500."""
    valid = isinstance(code, int) and abs(code) < 1 << 31
    return Failure(int(code) if valid else 500, _text(message))


def _text(value: Any) -> str:
    """The text of a handler's object, whose own code may fail."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the boundary to the handler's code
        return ""


class _BadResultError(Exception):
    """The handler returned something that is no answer to its batch."""
