"""relight.client: what is the same over HTTP and gRPC, waiting or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client import PROTOCOLS, Clients, addresses
from tests.support.server import free_ports

from relight.client import (
    Conflict,
    DeadlineExceeded,
    Forbidden,
    Inputs,
    ModelNotFound,
    ModelVersionNotFound,
    PredictionFailed,
    ServerError,
    Unauthorized,
    Unavailable,
    WorkerDied,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import ServerFactory
    from tests.support.server import Server

KINDS = [(protocol, kind) for protocol in PROTOCOLS for kind in ("sync", "async")]


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    param: tuple[str, str] = request.param
    return param


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


@pytest.fixture
def client(grpc_server: Server, clients: Clients, kind: tuple[str, str]) -> Any:
    protocol, way = kind
    return clients.make(way, **addresses(grpc_server, protocol))


@pytest.fixture(scope="module")
def streamer(grpc_server: Server) -> Iterator[str]:
    with grpc_server.registered("streamer.mar", "client_streamer", initial_workers=1) as name:
        yield name


def test_ping(client: Any) -> None:
    health = client.ping()
    assert (health.status, health.healthy) == ("Healthy", True)


def test_wait_healthy(client: Any) -> None:
    assert client.wait_healthy(5).healthy


def test_named_inputs(client: Any) -> None:
    seen = client.predict("m", Inputs(mode="see", text="grüße", number=3)).json()["row"]
    assert {name: (value["type"], value["text"]) for name, value in seen.items()} == {
        "mode": ("bytearray", "see"),
        "text": ("bytearray", "grüße"),
        "number": ("bytearray", "3"),
    }


def test_a_mapping_with_bytes_is_named_inputs(client: Any) -> None:
    seen = client.predict("m", {"mode": "see", "raw": b"\x01\x02"}).json()["row"]
    assert seen["raw"] == {"type": "bytearray", "text": "\x01\x02"}


def test_data_without_a_name(client: Any, kind: tuple[str, str]) -> None:
    row = client.predict("m", b"some bytes").json()["row"]
    assert row == {"data" if kind[0] == "grpc" else "body": {"type": "bytearray", "text": "some bytes"}}


@pytest.mark.parametrize(
    ("result", "content"),
    [("bytes", b"\x00\xffraw"), ("str", "grüße".encode()), ("dict", b'{\n  "\\u00fc": "\\u00fc"\n}'), ("empty", b"")],
)
def test_results(client: Any, result: str, content: bytes) -> None:
    prediction = client.predict("m", Inputs(mode="ret", kind=result))
    assert prediction.content == bytes(prediction) == content


def test_results_as_text_and_json(client: Any) -> None:
    assert client.predict("m", Inputs(mode="ret", kind="str")).text == "grüße"
    assert client.predict("m", Inputs(mode="ret", kind="dict")).json() == {"ü": "ü"}


def test_a_large_body(client: Any) -> None:
    size = 5_000_000
    prediction = client.predict("m", {"mode": "big", "size": str(size), "padding": bytes(1_000_000)})
    assert prediction.content == b"x" * size


def test_unknown_model(client: Any) -> None:
    with pytest.raises(ModelNotFound, match=r"^Model not found: nope$") as caught:
        client.predict("nope", b"x")
    assert caught.value.type == "ModelNotFoundException"


def test_unknown_version(client: Any) -> None:
    with pytest.raises(ModelVersionNotFound, match=r"^Model version: 9\.9 does not exist for model: m$"):
        client.predict("m", b"x", version="9.9")


def test_known_version(client: Any) -> None:
    assert client.predict("noop", b"x", version="1.0").content == b"ok"


def test_status_and_code_of_an_error(client: Any, kind: tuple[str, str]) -> None:
    with pytest.raises(PredictionFailed, match=r"^custom$") as caught:
        client.predict("m", Inputs(mode="predict", code="404"))
    found = (caught.value.status, caught.value.code, caught.value.type)
    assert found[:2] == ((404, None) if kind[0] == "http" else (None, "NOT_FOUND"))
    assert found[2] == "InternalServerException"


def test_failing_handler(client: Any) -> None:
    with pytest.raises(PredictionFailed, match=r"^Prediction failed$"):
        client.predict("m", Inputs(mode="raise"))


def test_dying_worker(client: Any) -> None:
    with pytest.raises(WorkerDied):
        client.predict("m", Inputs(mode="exit"))
    assert client.predict("m", Inputs(mode="ret", kind="int")).json() == 7


def test_timeout(client: Any, grpc_server: Server) -> None:
    gate = grpc_server.gate()
    try:
        with pytest.raises(DeadlineExceeded):
            client.predict("m", Inputs(mode="ret", kind="int", gate=gate.name), timeout=0.5)
    finally:
        gate.open()
    assert client.predict("m", Inputs(mode="ret", kind="int")).json() == 7


def test_stream(client: Any, streamer: str) -> None:
    parts = list(client.stream(streamer, Inputs(n=3)))
    assert parts == [b"part-0-0", b"part-0-1", b"part-0-2", b"final-0 batch=1"]


def test_parts_come_at_once(client: Any, grpc_server: Server, streamer: str) -> None:
    gate = grpc_server.gate()
    parts = client.stream(streamer, Inputs(n=2, at=1, gate=gate.name))
    assert next(parts) == b"part-0-0"
    gate.open()
    assert list(parts) == [b"part-0-1", b"final-0 batch=1"]


def test_stream_that_breaks_off(client: Any, streamer: str) -> None:
    parts = client.stream(streamer, Inputs(n=2, then="raise"))
    assert [next(parts), next(parts)] == [b"part-0-0", b"part-0-1"]
    with pytest.raises(PredictionFailed):
        next(parts)


def test_stream_that_fails_before_it_begins(client: Any, streamer: str) -> None:
    with pytest.raises(PredictionFailed, match=r"^Prediction failed$"):
        list(client.stream(streamer, Inputs(then="raise")))
    with pytest.raises(ModelNotFound):
        list(client.stream("nope", b""))


def test_stream_that_is_closed(client: Any, grpc_server: Server, streamer: str) -> None:
    gate = grpc_server.gate()
    parts = client.stream(streamer, Inputs(n=2, at=1, gate=gate.name))
    assert next(parts) == b"part-0-0"
    parts.close()
    gate.open()
    assert list(client.stream(streamer, Inputs(n=1))) == [b"part-0-0", b"final-0 batch=1"]


def test_stream_that_takes_too_long(client: Any, grpc_server: Server, streamer: str) -> None:
    gate = grpc_server.gate()
    try:
        with pytest.raises(DeadlineExceeded):
            list(client.stream(streamer, Inputs(n=2, at=1, gate=gate.name), timeout=0.5))
    finally:
        gate.open()


def test_life_of_a_model(client: Any, grpc_server: Server, kind: tuple[str, str]) -> None:
    name = "client_" + "_".join(kind)
    try:
        text = client.register("probe.mar", model_name=name, initial_workers=1, batch_size=3, max_batch_delay=7)
        assert text == f'Model "{name}" Version: 1.0 registered with 1 initial workers'
        assert client.predict(name, Inputs(mode="ret", kind="int")).json() == 7
        described = client.describe(name)
        assert (described.name, described.version, described.url) == (name, "1.0", "probe.mar")
        assert (described.batch_size, described.max_batch_delay) == (3, 7)
        assert [worker.ready for worker in described.workers] == [True]
        assert described.queue is not None
        assert described.document["runtime"] == "python"
        assert client.scale(name, 2) == f"Workers scaled to 2 for model: {name}"
        assert len(client.wait_ready(name, workers=2).ready_workers) == 2
        client.register("probe_v2.mar", model_name=name)
        assert {each.version for each in client.versions(name)} == {"1.0", "2.0"}
        client.set_default(name, "2.0")
        assert client.describe(name).version == "2.0"
        assert client.unregister(name, version="1.0") == f'Model "{name}" unregistered'
        assert name in [each.name for each in client.models()]
    finally:
        grpc_server.unregister(name)
    assert name not in [each.name for each in client.models()]


def test_more_models_than_a_page_holds(client: Any, grpc_server: Server, kind: tuple[str, str]) -> None:
    names = [f"page_{kind[0]}_{kind[1]}_{number:03}" for number in range(101)]
    try:
        for name in names:
            assert grpc_server.register("noop.mar", model_name=name).status == 200
        listed = [each.name for each in client.models()]
        assert [name for name in listed if name in names] == names
        assert len(set(listed)) == len(listed)
    finally:
        for name in names:
            grpc_server.management.request("DELETE", f"/models/{name}")


def test_no_worker(client: Any, grpc_server: Server) -> None:
    with grpc_server.registered("noop.mar", "idle"), pytest.raises(Unavailable, match="has no worker to serve"):
        client.predict("idle", b"x")


def test_missing_archive(client: Any) -> None:
    with pytest.raises(ModelNotFound, match=r"^Model not found at: missing\.mar$"):
        client.register("missing.mar")


def test_model_that_does_not_load(client: Any) -> None:
    with pytest.raises(ServerError, match=r"^Failed to start workers for model badve version: 1\.0"):
        client.register("badve.mar", initial_workers=1)


@pytest.mark.fix
def test_registered_twice(client: Any) -> None:
    with pytest.raises(Conflict, match=r"^Model version 1\.0 is already registered for model noop$"):
        client.register("noop.mar")


@pytest.mark.fix
def test_default_version_that_cannot_go(client: Any, grpc_server: Server) -> None:
    with grpc_server.registered("probe.mar", "two"):
        assert grpc_server.register("probe_v2.mar", model_name="two").status == 200
        with pytest.raises(Forbidden, match=r"^Cannot remove default version for model two$"):
            client.unregister("two")


def test_waiting_for_a_model(client: Any, grpc_server: Server) -> None:
    with grpc_server.registered("noop.mar", "late"):
        with pytest.raises(DeadlineExceeded, match="0 of 1 workers of 'late' are ready"):
            client.wait_ready("late", 0.2)
        client.scale("late", 1, synchronous=False)
        assert client.wait_ready("late").name == "late"
    with pytest.raises(ModelNotFound):
        client.wait_ready("late", 0.2)


def test_model_whose_name_needs_quoting(client: Any) -> None:
    name = "ä b?c%41"
    client.register("noop.mar", model_name=name, initial_workers=1)
    try:
        assert client.predict(name, b"x").content == b"ok"
        assert client.describe(name).name == name
    finally:
        client.unregister(name)


@pytest.fixture(scope="module")
def closed(make_server: ServerFactory) -> Server:
    """A server with tokens, and with the model API off."""
    return make_server(
        {"disable_token_authorization": "false", "enable_model_api": "false", "load_models": "noop.mar"},
    )


def test_tokens(closed: Server, clients: Clients, kind: tuple[str, str]) -> None:
    protocol, way = kind
    keys = closed.keys
    where = addresses(closed, protocol)
    key = keys["inference"]["key"]
    client = clients.make(way, **where, token=key, management_token=lambda: keys["management"]["key"])
    assert client.ping().healthy
    assert [each.name for each in client.models()] == ["noop"]
    swapped = clients.make(way, **where, token=keys["management"]["key"])
    for call in (swapped.ping, swapped.models):
        with pytest.raises(Unauthorized, match=r"^Token Authorization failed\."):
            call()
    with pytest.raises(Unauthorized):
        swapped.predict("noop", b"x")
    with pytest.raises(Unauthorized):
        list(swapped.stream("noop", b"x"))


def test_key_file(closed: Server, clients: Clients, kind: tuple[str, str]) -> None:
    protocol, way = kind
    client = clients.make(way, **addresses(closed, protocol), key_file=closed.root / "key_file.json")
    assert client.wait_ready("noop").name == "noop"
    other = clients.make("sync", **addresses(closed, "http"), key_file=closed.root / "key_file.json")
    for which in ("inference", "management"):
        before = closed.keys[which]["key"]
        other.renew_token(which)
        assert closed.keys[which]["key"] != before
    assert client.predict("noop", b"x").content == b"ok"
    assert client.describe("noop").name == "noop"


def test_model_api_off(closed: Server, clients: Clients, kind: tuple[str, str]) -> None:
    protocol, way = kind
    client = clients.make(way, **addresses(closed, protocol), key_file=closed.root / "key_file.json")
    with pytest.raises(Forbidden):
        client.register("noop.mar")
    with pytest.raises(Forbidden):
        client.unregister("noop")


def test_nobody_there(clients: Clients, kind: tuple[str, str]) -> None:
    protocol, way = kind
    (port,) = free_ports(1)
    client = clients.make(way, url=f"{protocol}://127.0.0.1:{port}")
    with pytest.raises(Unavailable):
        client.predict("m", b"x")
    with pytest.raises(Unavailable):
        client.wait_healthy(0.2)
