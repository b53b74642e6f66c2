"""What becomes of a batch: answers, failures, streams (rest_api.md §3.11)."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from relight.errors import InternalServerError
from relight.runtime.handler_loader import EntryPoint
from relight.runtime.service import Service
from relight.sdk.context import Context
from relight.sdk.errors import PredictionException
from relight.wire.messages import Answer, Batch, Failure, Item, Kind, Load, Reply
from relight.wire.progress import ProgressPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Handle = Callable[[list[Any], Context], Any]

LOAD = Load("m", "1.0", "h", "/m", "/m", 4, [], {}, None, None, True, True, None, 100, 0, {})


class FakeChannel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Reply, bytes]] = []

    def send(self, kind: int, message: Reply, bodies: list[bytes] | None = None, length: int = 0) -> None:
        whole = b"".join(bodies or [])
        assert len(whole) == length
        self.sent.append((kind, message, whole))

    def let_frontend_run(self) -> None:
        """Nobody else wants to run here."""


class Rig:
    """A service and its channel."""

    def __init__(self, handle: Handle, page: ProgressPage | None = None, load: Load = LOAD) -> None:
        self.context = Context("m", "/m", {}, 4, None, "0.12.0", metrics=SimpleNamespace(set_request_ids=self._ids))
        self.channel = FakeChannel()
        self.ids: list[object] = []
        self.service = Service(EntryPoint(lambda _: None, handle, False), self.context, load, self.channel, page)  # type: ignore[arg-type]

    def _ids(self, ids: object) -> None:
        self.ids.append(ids)

    def run(self, *bodies: bytes, seq: int = 1, kind: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        items = [
            Item(f"id-{index}", list(headers), {}, [("body", kind, len(body))]) for index, body in enumerate(bodies)
        ]
        self.service.run(Batch(seq, items), b"".join(bodies))

    @property
    def reply(self) -> Reply:
        ((kind, reply, _),) = self.channel.sent
        assert kind == Kind.REPLY
        return reply


def raising(error: BaseException) -> Handle:
    def handle(data: list[Any], context: Context) -> NoReturn:
        raise error

    return handle


def returning(result: object) -> Handle:
    return lambda _data, _context: result


async def _coroutine() -> None:
    """Never awaited."""


def _generator() -> Iterator[str]:
    yield "x"


def test_answers_in_order() -> None:
    rig = Rig(lambda data, _: [bytes(row["body"]).upper() for row in data])

    rig.run(b"a", b"", b"ccc", seq=9)

    assert rig.channel.sent == [(Kind.REPLY, Reply(9, [Answer(1), Answer(0), Answer(3)]), b"ACCC")]


@pytest.mark.parametrize(
    ("handle", "status", "message"),
    [
        (raising(RuntimeError("boom")), 503, "Prediction failed"),
        (raising(KeyError("x")), 503, "Prediction failed"),
        (raising(RuntimeError("CUDA out of memory")), 507, "Out of resources"),
        (raising(RuntimeError("cuda")), 503, "Prediction failed"),
        (raising(MemoryError()), 507, "Out of resources"),
        (raising(PredictionException("mine")), 500, "mine"),
        (raising(PredictionException("mine", 513)), 513, "mine"),
        (raising(PredictionException("CUDA", 413)), 413, "CUDA"),
        (returning(None), 503, "Invalid model predict output"),
        (returning("text"), 503, "Invalid model predict output"),
        (returning(("a", "b")), 503, "Invalid model predict output"),
        (returning({"a": 1}), 503, "Invalid model predict output"),
        (returning([]), 503, "number of batch response mismatched"),
        (returning(["a"]), 503, "number of batch response mismatched"),
        (returning(["a"] * 3), 503, "number of batch response mismatched"),
        (returning(["a", {1}]), 503, "Unsupported model output data type."),
    ],
)
def test_failures_concern_the_whole_batch(handle: Handle, status: int, message: str) -> None:
    rig = Rig(handle)

    rig.run(b"1", b"2")

    assert rig.reply == Reply(1, [], Failure(status, message))


@pytest.mark.parametrize("make", [_coroutine, _generator])
def test_what_has_to_be_run_first_is_no_result(make: Callable[[], object]) -> None:
    rig = Rig(lambda _data, _context: make())

    rig.run(b"1")
    gc.collect()  # a coroutine that was neither awaited nor closed would warn

    assert rig.reply.failure == Failure(503, "Invalid model predict output")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_may_end_the_worker(error: BaseException) -> None:
    rig = Rig(raising(error))

    with pytest.raises(type(error)):
        rig.run(b"1")


class Unprintable(Exception):  # noqa: N818 - what handlers raise
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error",
    [
        PredictionException(ValueError("no text"), 500),  # type: ignore[arg-type]
        PredictionException("mine", "418"),  # type: ignore[arg-type]
        PredictionException("mine", 0),
        PredictionException("mine", -1),
        PredictionException("mine", 100),
        PredictionException("mine", 12345),
        Unprintable(),
    ],
    ids=["message", "text as code", "0", "-1", "100", "12345", "unprintable"],
)
def test_an_error_that_is_wrong_itself_fails_its_batch_alone(error: Exception) -> None:
    rig = Rig(raising(error))

    rig.run(b"1")

    failure = rig.reply.failure
    assert failure is not None
    assert isinstance(failure.message, str)
    # Any number, for gRPC; what HTTP clients see of it is a status of theirs.
    assert 200 <= InternalServerError(failure.message, failure.status).status <= 999


def test_one_request_too_large_concerns_it_alone() -> None:
    rig = Rig(returning(["x" * 101, "ok"]))

    rig.run(b"1", b"2")

    ((_, reply, body),) = rig.channel.sent
    text = b"Response of 101 bytes exceeds max_response_size 100."
    assert reply.answers == [Answer(len(text), 500, error=True), Answer(2)]
    assert body == text + b"ok"


def test_status_and_headers_of_single_requests() -> None:
    def handle(data: list[Any], context: Context) -> list[str]:
        context.set_response_status(201, "Made", 0)
        context.set_response_header(1, "A", "b")
        context.set_response_status(-5, "", 2)
        return ["x"] * len(data)

    rig = Rig(handle)
    rig.run(b"1", b"2", b"3", b"4")

    answers = rig.reply.answers
    assert answers[:2] == [Answer(1, 201, "Made"), Answer(1, headers={"A": "b"})]
    assert answers[2].error
    assert answers[3] == Answer(1)


def test_a_batch_knows_nothing_of_the_one_before() -> None:
    def handle(data: list[Any], context: Context) -> list[str]:
        if context.get_request_header(0, "set"):
            context.set_response_status(418, "x", 0)
            context.set_response_header(0, "A", "b")
        return ["x"] * len(data)

    rig = Rig(handle)
    rig.run(b"1", headers=((b"set", b"1"),))
    rig.run(b"1", seq=2)

    assert [reply.answers for _, reply, _ in rig.channel.sent] == [[Answer(1, 418, "x", {"A": "b"})], [Answer(1)]]


def test_the_context_of_a_batch() -> None:
    seen: list[object] = []

    def handle(data: list[Any], context: Context) -> list[str]:
        seen.extend([context.request_ids, context.get_request_id(1), context.get_request_header(0, "A"), data])
        return ["x"] * len(data)

    rig = Rig(handle)
    rig.run(b"1", b"2", kind="text/plain", headers=((b"A", b"b"),))

    ids = {0: "id-0", 1: "id-1"}
    assert seen == [ids, "id-1", "b", [{"body": "1"}, {"body": "2"}]]
    assert rig.ids == [ids]


def test_decoding_can_be_off() -> None:
    load = Load("m", "1.0", "h", "/m", "/m", 4, [], {}, None, None, True, False, None, 100, 0, {})
    rig = Rig(lambda data, _: [type(data[0]["body"]).__name__], load=load)

    rig.run(b"1", kind="application/json")

    assert rig.channel.sent[0][2] == b"bytearray"


def test_a_handler_can_ask_who_is_gone() -> None:
    import os

    fd = ProgressPage.create()
    page, frontend = ProgressPage(fd), ProgressPage(fd)
    os.close(fd)
    seen: list[object] = []

    def handle(data: list[Any], context: Context) -> list[str]:
        seen.append(frontend.begun())
        frontend.cancel(5, 1)
        assert context.cancel_probe is not None
        seen.append([context.cancel_probe(index) for index in range(3)])
        return ["x"] * len(data)

    Rig(handle, page).run(b"1", b"2", b"3", seq=5)

    assert seen == [5, [False, True, False]]
    page.close()
    frontend.close()


# -- streams -----------------------------------------------------------------------------------------------------


def test_a_stream() -> None:
    def handle(data: list[Any], context: Context) -> list[str]:
        assert context.intermediate_sender is not None
        context.set_response_content_type(0, "text/event-stream")
        context.intermediate_sender(["1a", b"2a"], 200, "Intermediate")
        context.intermediate_sender(["1b", ""], 200, "Intermediate")
        return ["1c", "2c"]

    rig = Rig(handle)
    rig.run(b"1", b"2", seq=3)

    typed = {"content-type": "text/event-stream"}
    assert rig.channel.sent == [
        (Kind.CHUNK, Reply(3, [Answer(2, headers=typed), Answer(2)]), b"1a2a"),
        (Kind.CHUNK, Reply(3, [Answer(2, headers=typed), Answer(0)]), b"1b"),
        (Kind.REPLY, Reply(3, [Answer(2, headers=typed), Answer(2)]), b"1c2c"),
    ]


def test_a_stream_with_an_error_code() -> None:
    rig = Rig(returning(["x"]))
    rig.run(b"1")
    rig.channel.sent.clear()

    rig.service.send_intermediate([], 513, "no more")

    assert rig.channel.sent == [(Kind.CHUNK, Reply(1, [], Failure(513, "no more")), b"")]


@pytest.mark.parametrize("result", [["one"], ["1", "2", "3"], ("1", "2"), "12", None])
def test_an_intermediate_result_that_does_not_fit(result: Any) -> None:
    rig = Rig(returning(["x", "x"]))
    rig.run(b"1", b"2")

    with pytest.raises(ValueError, match="a list of 2 items"):
        rig.service.send_intermediate(result, 200, "")


# -- continuous batching -----------------------------------------------------------------------------------------

CONTINUOUS = msgspec.structs.replace(LOAD, continuous=True)


def stepping(*criteria: Any) -> Handle:
    def handle(data: list[Any], context: Context) -> list[str]:
        context.stopping_criteria = list(criteria)
        return ["part"] * len(data)

    return handle


def test_the_criteria_say_who_goes_on() -> None:
    seen = []

    def note(result: Any) -> bool:
        seen.append(result)
        return False

    rig = Rig(stepping(note, lambda _: True, lambda _: None, None), load=CONTINUOUS)
    rig.run(b"a", b"b", b"c", b"d")

    assert [answer.more for answer in rig.reply.answers] == [True, False, False, False]
    assert seen == ["part"]


def test_without_continuous_batching_nobody_goes_on() -> None:
    rig = Rig(stepping(lambda _: False))
    rig.run(b"a")

    assert rig.reply.answers == [Answer(4)]


def test_without_criteria_nobody_goes_on() -> None:
    rig = Rig(returning(["part"]), load=CONTINUOUS)
    rig.run(b"a")

    assert rig.reply.answers == [Answer(4)]


@pytest.mark.parametrize("criteria", [[], [lambda result: result[99]], [5]])
def test_criteria_that_fail(criteria: list[Any]) -> None:
    rig = Rig(stepping(*criteria), load=CONTINUOUS)
    rig.run(b"a")

    assert rig.reply.failure == Failure(503, "Prediction failed")


def test_an_answer_that_is_refused_is_the_last() -> None:
    rig = Rig(lambda data, context: stepping(lambda _: False)(data, context) and ["x" * 200], load=CONTINUOUS)
    rig.run(b"a")

    (answer,) = rig.reply.answers
    assert (answer.error, answer.more) == (True, False)


def test_a_description_has_no_criteria() -> None:
    rig = Rig(stepping(lambda _: False), load=CONTINUOUS)
    rig.service.run(Batch(1, [Item("id", [], {"describe": "True"}, [])]), b"")

    assert rig.reply.answers == [Answer(4)]


def test_requests_that_were_cancelled_before_their_batch_began_are_not_handled() -> None:
    fd = ProgressPage.create()
    page = ProgressPage(fd)
    seen: list[object] = []

    def handle(data: list[Any], context: Context) -> list[str]:
        seen.append((data, dict(context.request_ids or {}), context.is_cancelled(0), context.is_cancelled(1)))
        page.cancel(1, 2)
        seen.append((context.is_cancelled(0), context.is_cancelled(1)))
        rig.service.send_intermediate(["p", "q"], 200, "")
        return ["end", ""]

    rig = Rig(handle, page)
    page.cancel(1, 0)
    page.cancel(1, 1)

    rig.run(b"one", b"two", b"three", b"", seq=1)

    rows: list[dict[str, bytearray]] = [{"body": bytearray(b"three")}, {"body": bytearray()}]
    assert seen == [(rows, {0: "id-2", 1: "id-3"}, False, False), (True, False)]
    ((_, chunk, _), (_, reply, body)) = rig.channel.sent
    assert [answer.length for answer in chunk.answers] == [0, 0, 1, 1]
    assert [answer.length for answer in reply.answers] == [0, 0, 3, 0]
    assert body == b"end"


def test_a_batch_that_nobody_waits_for_is_not_handled() -> None:
    fd = ProgressPage.create()
    page = ProgressPage(fd)
    rig = Rig(raising(AssertionError("handled")), page)
    page.cancel(7, 0)
    page.cancel(7, 1)

    rig.run(b"one", b"two", seq=7)

    assert [answer.length for answer in rig.reply.answers] == [0, 0]
    assert page.begun() == 7
