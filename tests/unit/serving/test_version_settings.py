"""Which source decides a setting of a version (configuration.md §4.2, documented_promises.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relight.archive.manifest import Manifest
from relight.archive.model_config import ModelConfig
from relight.archive.store import Archive
from relight.errors import BadRequestError, InvalidModelError
from relight.serving.sequence import SequenceSettings
from relight.serving.version_settings import Registration, choose_settings
from relight.settings import Settings

if TYPE_CHECKING:
    from relight.serving.model import VersionSettings

Values = dict[str, Any]
FOLDER = Path("/nowhere")


def chosen(
    registration: Values | None = None,
    config: Values | None = None,
    listed: Values | None = None,
    settings: Values | None = None,
    *,
    manifest: Manifest | None = None,
    gpus: int = 0,
) -> VersionSettings:
    manifest = manifest or Manifest(model_name="m", handler="h")
    asked: Values = {"url": "m.mar", **(registration or {})}
    configured: Values = {"models": {"m": {"1.0": listed or {}}}, **(settings or {})}
    archive = Archive("m.mar", FOLDER, FOLDER, FOLDER, False, manifest, None, ())
    return choose_settings(Registration(**asked), archive, ModelConfig(**(config or {})), Settings(**configured), gpus)


@pytest.mark.parametrize(
    ("attribute", "registration", "config", "listed", "settings", "expected"),
    [
        ("batch_size", {}, {}, {}, {}, 1),
        ("batch_size", {}, {}, {"batchSize": 2}, {}, 2),
        ("batch_size", {}, {}, {"batchSize": "2"}, {}, 2),
        ("batch_size", {}, {}, {"batchSize": 0}, {}, 1),
        ("batch_size", {}, {}, {"batchSize": -1}, {}, 1),
        ("batch_size", {}, {}, {"batchSize": []}, {}, 1),
        ("batch_size", {}, {"batch_size": 3}, {"batchSize": 2}, {}, 3),
        ("batch_size", {"batch_size": 4}, {"batch_size": 3}, {"batchSize": 2}, {}, 4),
        ("max_batch_delay_ms", {}, {}, {}, {}, 100),
        ("max_batch_delay_ms", {}, {}, {"maxBatchDelay": 2}, {}, 2),
        ("max_batch_delay_ms", {}, {"max_batch_delay": 3}, {"maxBatchDelay": 2}, {}, 3),
        ("max_batch_delay_ms", {}, {"max_batch_delay": 0}, {"maxBatchDelay": 2}, {}, 2),
        ("max_batch_delay_ms", {"max_batch_delay": 0}, {"max_batch_delay": 3}, {}, {}, 0),
        ("response_timeout", {}, {}, {}, {}, 120),
        ("response_timeout", {}, {}, {}, {"default_response_timeout": 7}, 7),
        ("response_timeout", {}, {}, {"responseTimeout": 8}, {"default_response_timeout": 7}, 8),
        ("response_timeout", {}, {"response_timeout": 9}, {"responseTimeout": 8}, {}, 9),
        ("response_timeout", {"response_timeout": 3}, {"response_timeout": 9}, {"responseTimeout": 8}, {}, 3),
        # A configuration without timeouts hides nothing (FIX a).
        ("response_timeout", {"response_timeout": 3}, {"batch_size": 2}, {}, {"default_response_timeout": 7}, 3),
        ("response_timeout", {}, {"batch_size": 2}, {}, {"default_response_timeout": 7}, 7),
        ("startup_timeout", {}, {}, {}, {}, 120),
        ("startup_timeout", {}, {}, {}, {"default_startup_timeout": 7}, 7),
        ("startup_timeout", {}, {}, {"startupTimeout": 8}, {"default_startup_timeout": 7}, 8),
        ("startup_timeout", {}, {"startup_timeout": 9}, {"startupTimeout": 8}, {}, 9),
        ("startup_timeout", {"startup_timeout": 3}, {"startup_timeout": 9}, {}, {}, 3),
        ("queue_size", {}, {}, {}, {}, 100),
        ("queue_size", {}, {}, {}, {"job_queue_size": 7}, 7),
        ("queue_size", {}, {"job_queue_size": 8}, {}, {"job_queue_size": 7}, 8),
        ("queue_size", {}, {"job_queue_size": 0}, {}, {"job_queue_size": 7}, 7),
        ("max_retry_timeout", {}, {}, {}, {}, 300),
        ("max_retry_timeout", {}, {"max_retry_timeout_in_sec": 0}, {}, {}, 0),
        ("client_timeout_ms", {}, {}, {}, {}, 0),
        ("client_timeout_ms", {}, {"client_timeout_in_mills": 1500}, {}, {}, 1500),
        ("use_job_ticket", {}, {}, {}, {}, False),
        ("use_job_ticket", {}, {"use_job_ticket": True}, {}, {}, True),
        ("batch_policy", {}, {}, {}, {}, "adaptive"),
        ("batch_policy", {}, {"batch_policy": "fixed"}, {}, {}, "fixed"),
        ("runtime", {}, {}, {}, {}, "python"),
        ("runtime", {"runtime": "python3"}, {}, {}, {}, "python3"),
        ("runtime", {"runtime": "python"}, {}, {"runtimeType": "python3"}, {}, "python3"),
        ("handler", {}, {}, {}, {"default_service_handler": "d"}, "h"),
        ("handler", {"handler": "r"}, {}, {}, {}, "r"),
        ("name", {}, {}, {}, {}, "m"),
        ("name", {"model_name": "other"}, {}, {}, {}, "other"),
        ("loaded_at_startup", {"at_startup": True}, {}, {}, {}, True),
        ("envelope", {}, {}, {}, {"service_envelope": ""}, None),
    ],
)
def test_precedence(
    attribute: str, registration: Values, config: Values, listed: Values, settings: Values, expected: object
) -> None:
    assert getattr(chosen(registration, config, listed, settings), attribute) == expected


PAIR = {"min_workers": 2, "max_workers": 3}
LISTED = {"minWorkers": 4, "maxWorkers": 5}


@pytest.mark.parametrize(
    ("registration", "config", "listed", "settings", "expected"),
    [
        pytest.param({}, {}, {}, {}, (0, 0), id="nothing said"),
        pytest.param({}, {}, {}, {"default_workers_per_model": 6}, (6, 6), id="the default"),
        pytest.param({"initial_workers": 1}, {}, {}, {"default_workers_per_model": 6}, (1, 1), id="asked for"),
        pytest.param({"initial_workers": 0}, {}, {}, {"default_workers_per_model": 6}, (0, 0), id="none asked for"),
        pytest.param({"initial_workers": 1}, PAIR, {}, {}, (2, 3), id="the archive wins"),
        pytest.param({"initial_workers": 1}, {"min_workers": 2}, {}, {}, (1, 1), id="half a pair"),
        pytest.param(
            {"initial_workers": 1}, {"min_workers": 3, "max_workers": 2}, {}, {}, (1, 1), id="an impossible pair"
        ),
        pytest.param({}, {}, LISTED, {}, (0, 0), id="models= is for the start"),
        pytest.param({"at_startup": True}, {}, LISTED, {}, (4, 5), id="models= at the start"),
        pytest.param({"at_startup": True}, PAIR, LISTED, {}, (2, 3), id="the archive at the start"),
        pytest.param(
            {"at_startup": True}, {}, {"minWorkers": 4}, {"default_workers_per_model": 6}, (6, 6), id="half of models="
        ),
        pytest.param({"at_startup": True}, {}, {}, {"default_workers_per_model": 6}, (6, 6), id="default at the start"),
    ],
)
def test_workers(
    registration: Values, config: Values, listed: Values, settings: Values, expected: tuple[int, int]
) -> None:
    made = chosen(registration, config, listed, settings)

    assert (made.min_workers, made.max_workers) == expected


@pytest.mark.parametrize(("gpus", "cores", "expected"), [(0, 6, 6), (3, 6, 3)])
def test_workers_of_a_model_loaded_at_the_start(
    monkeypatch: pytest.MonkeyPatch, gpus: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))

    assert chosen({"at_startup": True}, gpus=gpus).min_workers == expected


@pytest.mark.parametrize(
    ("gpus", "config", "device_type", "device_ids"),
    [
        (0, {}, "cpu", []),
        (0, {"device_type": "gpu"}, "cpu", []),
        (2, {}, "gpu", []),
        (2, {"device_type": "gpu"}, "gpu", []),
        (2, {"device_type": "cpu"}, "cpu", []),
        (2, {"device_ids": (1, 0)}, "gpu", [1, 0]),
        (2, {"device_ids": (1, 2)}, "gpu", []),
        (2, {"device_ids": (-1,)}, "gpu", []),
        (0, {"device_ids": (0,)}, "cpu", []),
    ],
)
def test_devices(gpus: int, config: Values, device_type: str, device_ids: list[int]) -> None:
    made = chosen(config=config, gpus=gpus)

    assert (made.device_type, made.device_ids) == (device_type, device_ids)


def test_the_version_is_the_manifests() -> None:
    manifest = Manifest(model_name="m", model_version="2.5", handler="h")
    settings = {"models": {"m": {"2.5": {"batchSize": 3}, "1.0": {"batchSize": 9}}}}

    made = chosen(settings=settings, manifest=manifest)

    assert (made.version, made.batch_size) == ("2.5", 3)


def test_an_archive_without_a_manifest() -> None:
    archive = Archive("x", FOLDER, FOLDER, FOLDER, True, None, None, ())
    registration = Registration(url="x", default_name="folder")

    made = choose_settings(registration, archive, ModelConfig(), Settings(default_service_handler="d:handle"), 0)

    assert (made.name, made.version, made.handler, made.runtime) == ("folder", "1.0", "d:handle", "python")
    with pytest.raises(InvalidModelError, match="Model name is not defined"):
        choose_settings(Registration(url="x"), archive, ModelConfig(), Settings(), 0)


@pytest.mark.parametrize("source", ["registration", "listed"])
def test_unknown_runtimes(source: str) -> None:
    with pytest.raises(BadRequestError, match="Invalid RuntimeType value: perl"):
        chosen(
            {"runtime": "perl"} if source == "registration" else {},
            listed={"runtimeType": "perl"} if source == "listed" else {},
        )


def test_the_cpp_runtime() -> None:
    with pytest.raises(InvalidModelError, match="Runtime LSP is not supported"):
        chosen(manifest=Manifest(model_name="m", handler="h", runtime="LSP"))


def test_what_describe_reports() -> None:
    plain = chosen(config={"parallel_level": 4}).described
    parallel = chosen(config={"parallel_type": "tp", "parallel_level": 4}).described

    assert plain == {"parallelType": "", "parallelLevel": 0, "useVenv": False}
    assert parallel == plain | {"parallelType": "tp", "parallelLevel": 4}


def test_sequences() -> None:
    made = chosen(
        config={
            "sequence_batching": True,
            "sequence_max_idle_msec": 5,
            "sequence_timeout_msec": 6,
            "max_num_sequence": 7,
        },
        settings={"ts_header_key_sequence_end": "x-end"},
    )

    assert made.sequence_batching
    assert made.sequences == SequenceSettings(5, 6, 7, 1, end_header="x-end")


def test_without_an_idle_time_no_other_bound_of_sequences_counts() -> None:
    made = chosen(config={"sequence_timeout_msec": 6, "max_num_sequence": 7, "max_sequence_job_queue_size": 8})

    assert not made.sequence_batching
    assert made.sequences == SequenceSettings()


def test_sequence_batching_needs_an_idle_time() -> None:
    with pytest.raises(InvalidModelError, match="sequenceMaxIdleMSec"):
        chosen(config={"sequence_batching": True})


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("continuousBatching", {"continuous_batching": True}),
        ("sequenceBatching", {"sequence_batching": True, "sequence_max_idle_msec": 5}),
    ],
)
def test_ways_of_batching_that_contradict_each_other(key: str, config: Values) -> None:
    with pytest.raises(InvalidModelError, match=f"{key}.*asyncCommunication"):
        chosen(config=config | {"async_communication": True})


def test_the_environment_of_workers() -> None:
    assert chosen(settings={"decode_input_request": False, "ts_header_key_sequence_id": "s"}).environment == {
        "TS_DECODE_INPUT_REQUEST": "false",
        "TS_IPEX_ENABLE": "false",
        "TS_IPEX_GPU_ENABLE": "false",
        "TS_REQUEST_SEQUENCE_ID": "s",
        "TS_REQUEST_SEQUENCE_START": "ts_request_sequence_start",
        "TS_REQUEST_SEQUENCE_END": "ts_request_sequence_end",
    }
