"""Sequence batching over HTTP, and with it continuous batching (batching_and_llm.md §7 and §9)."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.archives import HANDLERS, contents, write_mar
from tests.support.expect import assert_error
from tests.support.raw import encode
from tests.support.server import is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.support.raw import RawResponse
    from tests.support.server import Server

REFUSAL = (
    "has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
ID, START, END = "ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"
INVENTED = r"ts-seq-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
DEFAULTS = {
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 4,
    "maxBatchDelay": 10,
    "sequenceBatching": "true",
    "sequenceMaxIdleMSec": 30000,
    "maxNumSequence": 4,
    "maxSequenceJobQueueSize": 10,
}


class Model:
    """A model with sequences."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.server = server
        self.path = f"/predictions/{name}"

    def call(self, sequence: str | None, body: object = 0, **headers: object) -> RawResponse:
        return self.server.inference.request("POST", self.path, self.fields(sequence, headers), str(body).encode())

    def fields(self, sequence: str | None, headers: dict[str, object]) -> dict[str, str]:
        fields = {} if sequence is None else {ID: sequence}
        for name, value in headers.items():
            fields[{"start": START, "end": END}.get(name, f"x-{name}")] = str(value)
        return fields

    def sum(self, sequence: str, body: object = 0, **headers: object) -> bytes:
        """Add to a sequence, successfully."""
        response = self.call(sequence, body, **headers)
        assert response.status == 200, response.body
        return response.body

    def refuses(self, response: RawResponse) -> None:
        assert_error(response, 503, "ServiceUnavailableException", f'Model "{self.name}" {REFUSAL}')


@pytest.fixture
def make_model(server: Server, request: pytest.FixtureRequest) -> Iterator[Callable[..., Model]]:
    """Register models with sequences for one test; keyword arguments change DEFAULTS."""
    made: list[str] = []

    def make(**config: object) -> Model:
        name = f"{re.sub('[^a-z]+', '-', request.node.name)}-{len(made)}"
        lines = "".join(f"{key}: {value}\n" for key, value in {**DEFAULTS, **config}.items())
        files = contents(name, "sequencer", config=lines) | {"gates.py": (HANDLERS / "gates.py").read_bytes()}
        write_mar(server.store / f"{name}.mar", files)
        made.append(name)
        response = server.register(f"{name}.mar")
        assert response.status == 200, response.body
        return Model(server, name)

    yield make
    for name in made:
        server.unregister(name)


@pytest.fixture
def model(make_model: Callable[..., Model]) -> Model:
    return make_model()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads of clients."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


def wait_done(futures: list[Future[RawResponse]], count: int) -> None:
    wait_for(f"{count} answers", lambda: sum(future.done() for future in futures) >= count)


# -- the requests of a sequence ----------------------------------------------------------------------------------


def test_sequences_have_state_of_their_own(model: Model) -> None:
    assert [model.sum("a", number) for number in (1, 2, 3)] == [b"a=1 ", b"a=3 ", b"a=6 "]
    assert model.sum("b", 5) == b"b=5 "
    assert model.sum("a", 1) == b"a=7 "


def test_an_ordinary_answer(model: Model) -> None:
    response = model.call("a", 1)

    assert (response.status, response.chunks, response.header("ts_stream_next")) == (200, None, None)
    assert response.header(ID) == "a"


def test_a_request_without_an_id_begins_a_sequence(model: Model) -> None:
    headers = model.call(None, show="headers").json()

    assert re.fullmatch(INVENTED, headers[ID])
    assert headers[START] == "true"
    assert END not in headers


def test_an_invented_id_can_be_used(model: Model) -> None:
    response = model.call(None, 1)
    sequence = response.header(ID)

    assert sequence is not None
    assert response.body.decode() == f"{sequence}=1 "
    assert model.sum(sequence, 2).decode() == f"{sequence}=3 "


def test_handlers_see_the_headers_as_they_were_sent(model: Model) -> None:
    plain = model.call("a", show="headers").json()
    asked = model.call("a", show="headers", start="True", end="yes").json()

    assert (plain[ID], START in plain, END in plain) == ("a", False, False)
    assert (asked[ID], asked[START], asked[END]) == ("a", "True", "yes")


@pytest.mark.fix
def test_names_of_headers_ignore_case(model: Model) -> None:
    """TorchServe sees no id, and begins a sequence each time."""
    headers = {"Ts_Request_Sequence_Id": "a"}
    for total in (1, 2):
        response = model.server.inference.request("POST", model.path, headers, b"1")
        assert response.body == b"a=%d " % total


def test_one_request_of_a_sequence_at_a_time(model: Model, pool: ThreadPoolExecutor) -> None:
    gate = model.server.gate()
    first = pool.submit(model.call, "a", 1, gate=gate.name)
    gate.wait_arrived()
    others = [pool.submit(model.call, "a", 1, show="size") for _ in range(4)]
    gate.open()

    assert first.result().body == b"a=1 "
    assert [other.result().body for other in others] == [b"1 "] * 4
    assert model.sum("a", 0) == b"a=5 "


def test_different_sequences_share_a_batch(make_model: Callable[..., Model], pool: ThreadPoolExecutor) -> None:
    model = make_model(maxBatchDelay=2000)
    gate = model.server.gate()
    holds = pool.submit(model.call, "a", gate=gate.name)
    if not is_reference():  # its worker waits for more, so that one request alone is never in it
        gate.wait_arrived()
        others = [pool.submit(model.call, name, show="size") for name in "bcd"]
        model.server.wait_pending(model.name, 3)
        gate.open()
        assert [other.result().body for other in others] == [b"3 "] * 3
    else:
        gate.open()
        others = [pool.submit(model.call, name, show="size") for name in "bcd"]
        assert [other.result().body for other in others] == [b"4 "] * 3
    assert holds.result().status == 200


def test_a_sequence_stays_with_its_worker(make_model: Callable[..., Model], pool: ThreadPoolExecutor) -> None:
    model = make_model(minWorkers=2, maxWorkers=2, batchSize=2, maxNumSequence=4)
    model.server.wait_ready(model.name, 2)
    names = "abcd"
    pids = {name: {model.sum(name, show="pid")} for name in names}
    for name in names:
        pids[name] |= {future.result().body for future in [pool.submit(model.call, name, show="pid") for _ in range(3)]}

    assert {name: len(found) for name, found in pids.items()} == dict.fromkeys(names, 1)
    assert len(set.union(*pids.values())) == 2


def test_an_error_is_the_requests_own(model: Model) -> None:
    model.sum("a", 1)
    assert_error(model.call("a", op="raise"), 503, "InternalServerException", "Prediction failed")
    assert model.sum("a", 1) == b"a=2 "


def test_describe(model: Model) -> None:
    document = model.server.describe(model.name)

    assert document["stateful"] is True
    assert document["sequenceMaxIdleMSec"] == 30000
    assert document["sequenceTimeoutMSec"] == 0
    assert document["maxNumSequence"] == 4
    assert document["maxSequenceJobQueueSize"] == 10


@pytest.mark.fix
def test_a_customized_description(model: Model) -> None:
    model.sum("a", 1)
    (document,) = model.server.management.get(f"/models/{model.name}?customized=true").json()

    assert document["customizedMetadata"] == {"sums": {"a": 1}}


@pytest.mark.fix
def test_names_of_headers_can_be_configured(make_server: Callable[..., Server]) -> None:
    """TorchServe's workers do not know them."""
    server = make_server({f"ts_header_key_sequence_{key}": f"x-seq-{key}" for key in ("id", "start", "end")})
    lines = "".join(f"{key}: {value}\n" for key, value in {**DEFAULTS, "maxNumSequence": 1}.items())
    files = contents("named", "sequencer", config=lines) | {"gates.py": (HANDLERS / "gates.py").read_bytes()}
    write_mar(server.store / "named.mar", files)
    assert server.register("named.mar").status == 200
    model = Model(server, "named")

    for name in "ab":
        fields = {"x-seq-id": name, "x-seq-end": "true"}
        response = server.inference.request("POST", model.path, fields, b"1")
        assert (response.body, response.header("x-seq-id")) == (f"{name}=1 ".encode(), name)


# -- bounds ------------------------------------------------------------------------------------------------------


def test_the_queue_of_a_sequence_is_full(make_model: Callable[..., Model], pool: ThreadPoolExecutor) -> None:
    model = make_model(maxSequenceJobQueueSize=3)
    gate = model.server.gate()
    first = pool.submit(model.call, "a", 1, gate=gate.name)
    gate.wait_arrived()
    others = [pool.submit(model.call, "a", 1) for _ in range(6)]
    wait_done(others, 3)
    for refused in [other.result() for other in others if other.done()]:
        model.refuses(refused)
    gate.open()

    assert first.result().body == b"a=1 "
    assert sorted(other.result().body for other in others if other.result().status == 200) == [
        b"a=2 ",
        b"a=3 ",
        b"a=4 ",
    ]


def test_too_many_sequences(make_model: Callable[..., Model]) -> None:
    model = make_model(maxNumSequence=2)
    for name in "ab":
        model.sum(name)

    model.refuses(model.call("c"))
    model.refuses(model.call(None))
    assert model.sum("a", 1) == b"a=1 "


def test_too_many_sequences_of_a_named_version(make_model: Callable[..., Model]) -> None:
    model = make_model(maxNumSequence=1)
    model.sum("a")
    response = model.server.inference.request("POST", f"{model.path}/1.0", {ID: "b"}, b"1")

    assert_error(response, 503, "ServiceUnavailableException", f'Model "{model.name}" Version 1.0" {REFUSAL}')


def test_an_idle_sequence_gives_its_place_up(make_model: Callable[..., Model]) -> None:
    model = make_model(sequenceMaxIdleMSec=500, maxNumSequence=1)
    model.sum("a", 1)

    wait_for("a place", lambda: model.call("b", 1).status == 200)
    # The handler is not told: its state is still there.
    wait_for("a place", lambda: model.call("a", 1).body == b"a=2 ")


def test_a_sequence_does_not_last_for_ever(make_model: Callable[..., Model]) -> None:
    """Its client keeps it busy."""
    model = make_model(sequenceTimeoutMSec=1000, maxNumSequence=1)
    model.sum("a", 1)

    def other_has_a_place() -> bool:
        return model.call("b", 1).status == 200 or model.call("a", 1).status not in {200, 503}

    wait_for("a place", other_has_a_place)
    model.refuses(model.call("a"))


@pytest.mark.fix
def test_the_last_request_gives_the_place_up(make_model: Callable[..., Model]) -> None:
    """TorchServe keeps it for the idle time."""
    model = make_model(maxNumSequence=1)
    for name in "abc":
        model.sum(name, 1)
        assert model.sum(name, 1, end="true") == f"{name}=2 ".encode()
    assert model.sum("d", 1, end="True", start="true") == b"d=1 "
    assert model.sum("e", 1) == b"e=1 "
    model.refuses(model.call("f"))


@pytest.mark.fix
def test_the_handler_ends_sequences(make_model: Callable[..., Model]) -> None:
    """TorchServe heeds that with continuous batching only."""
    model = make_model(maxNumSequence=3)
    for name in "abc":
        model.sum(name)

    response = model.call("a", close="a; c;unknown")

    assert response.header(END) == "a; c;unknown"
    for name in "de":
        model.sum(name)
    model.refuses(model.call("f"))


@pytest.mark.fix
def test_requests_behind_the_last_one_begin_a_new_sequence(model: Model, pool: ThreadPoolExecutor) -> None:
    gate = model.server.gate()
    last = pool.submit(model.call, "a", 1, gate=gate.name, end="true")
    gate.wait_arrived()
    later = pool.submit(model.call, "a", 1)
    model.server.wait_pending(model.name, 1)
    gate.open()

    assert (last.result().body, later.result().body) == (b"a=1 ", b"a=2 ")


@pytest.mark.fix
def test_without_an_idle_time_there_are_no_sequences(server: Server) -> None:
    """TorchServe answers each request with a NullPointerException."""
    files = contents("endless", "sequencer", config="sequenceBatching: true\n")
    write_mar(server.store / "endless.mar", files)
    response = server.register("endless.mar")

    assert (response.status, response.json()["type"]) == (400, "InvalidModelException")
    assert "sequenceMaxIdleMSec" in response.json()["message"]


# -- clients and workers end -------------------------------------------------------------------------------------


@pytest.mark.fix
def test_a_client_that_leaves_gives_its_place_in_the_queue_up(model: Model, pool: ThreadPoolExecutor) -> None:
    gate = model.server.gate()
    first = pool.submit(model.call, "a", 1, gate=gate.name)
    gate.wait_arrived()
    with model.server.inference.connect() as gone:
        gone.send(encode("POST", model.path, {ID: "a"}, b"100"))
        model.server.wait_pending(model.name, 1)
    model.server.wait_pending(model.name, 0)
    gate.open()

    assert first.result().body == b"a=1 "
    assert model.sum("a", 1) == b"a=2 "


@pytest.mark.fix
def test_a_worker_dies(make_model: Callable[..., Model], pool: ThreadPoolExecutor) -> None:
    """Its sequences end with it, and their places are free. TorchServe's worker never comes back."""
    model = make_model(maxNumSequence=2)
    gate = model.server.gate()
    model.sum("idle", 1)
    running = pool.submit(model.call, "a", 1, gate=gate.name, op="exit")
    gate.wait_arrived()
    waiting = pool.submit(model.call, "a", 1)
    model.server.wait_pending(model.name, 1)
    gate.open()

    assert_error(running.result(), 500, "InternalServerException", "Worker died.")
    model.refuses(waiting.result())
    assert [model.sum(name, 1) for name in "ab"] == [b"a=1 ", b"b=1 "]


# -- with continuous batching ------------------------------------------------------------------------------------


@pytest.fixture
def stepping(make_model: Callable[..., Model]) -> Model:
    """A model whose requests take steps; its batch size is 2."""
    return make_model(continuousBatching="true", batchSize=2)


def test_requests_of_a_sequence_take_steps(stepping: Model) -> None:
    response = stepping.call("a", 5, n=3)

    assert response.chunks == [b"a=5 ", b"a=5 ", b"a=5 "]
    assert response.header(ID) == "a"
    assert stepping.call("a", 1, n=2).chunks == [b"a=6 ", b"a=6 "]


def test_an_ordinary_answer_among_steps(stepping: Model) -> None:
    assert stepping.call("a", 5, n=2).chunks == [b"a=5 ", b"a=5 "]
    response = stepping.call("a", 1)
    assert (response.body, response.chunks) == (b"a=6 ", None)


def test_a_request_ends_another_of_its_sequence(stepping: Model) -> None:
    with stepping.server.inference.connect() as stream:
        stream.send(encode("POST", stepping.path, {ID: "a", "x-n": "1000000"}, b"5"))
        stream.read_head()
        assert stream.read_chunk() == b"a=5 "
        assert stepping.sum("a", 1, cancel="yes") == b"a=6 "
        while chunk := stream.read_chunk():
            assert chunk in {b"a=5 ", b"a=6 "}


def test_each_sequence_may_have_two_requests_in_a_step(stepping: Model) -> None:
    """So a step has twice the batch size."""
    with stepping.server.inference.connect() as one, stepping.server.inference.connect() as two:
        streams = {"a": one, "b": two}
        for name, stream in streams.items():
            stream.send(encode("POST", stepping.path, {ID: name, "x-n": "1000000"}, b"5"))
            stream.read_head()
        for name in streams:
            assert int(stepping.sum(name, show="size", cancel="yes")) in {2, 3, 4}
        for stream in streams.values():
            while stream.read_chunk():
                pass


def test_the_handler_ends_a_sequence(make_model: Callable[..., Model]) -> None:
    model = make_model(continuousBatching="true", maxNumSequence=1)
    for name in "abc":
        assert model.call(name, 1, n=2).chunks == [f"{name}=1 ".encode()] * 2
        response = model.call(name, 1, close=name)
        assert (response.body, response.header(END)) == (f"{name}=2 ".encode(), name)


def test_describe_of_both(stepping: Model) -> None:
    document = stepping.server.describe(stepping.name)

    assert (document["stateful"], document["continuousBatching"]) == (True, True)


def test_ids_of_steps(stepping: Model) -> None:
    headers = [json.loads(chunk) for chunk in stepping.call("a", n=2, show="headers").chunks or ()]

    assert [each[ID] for each in headers] == ["a", "a"]
    assert headers[0] == headers[1]
