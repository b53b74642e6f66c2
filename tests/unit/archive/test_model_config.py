"""model-config.yaml: types, ranges, and TorchServe's warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from relight.archive.model_config import ModelConfig, TorchrunConfig, model_config_from, parse_model_config
from relight.errors import InvalidModelError

if TYPE_CHECKING:
    from pathlib import Path


def parse(text: str) -> tuple[ModelConfig, list[str]]:
    return model_config_from(yaml.safe_load(text))


def test_every_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "minWorkers: 1\nmaxWorkers: 2\nbatchSize: 3\nmaxBatchDelay: 4\nresponseTimeout: 5\nstartupTimeout: 6\n"
        "deviceType: GPU\ndeviceIds: [0, 1]\nparallelType: custom\nparallelLevel: 7\nmaxRetryTimeoutInSec: 8\n"
        "clientTimeoutInMills: 9\njobQueueSize: 10\nuseJobTicket: yes\nuseVenv: on\ncontinuousBatching: true\n"
        "sequenceBatching: true\nsequenceMaxIdleMSec: 11\nsequenceTimeoutMSec: 12\nmaxNumSequence: 13\n"
        "maxSequenceJobQueueSize: 14\nasyncCommunication: true\nbatchPolicy: fixed\nhandler: {profile: true}\n"
    )
    config, warnings = parse_model_config(path)
    assert warnings == []
    assert config == ModelConfig(
        min_workers=1,
        max_workers=2,
        batch_size=3,
        max_batch_delay=4,
        response_timeout=5,
        startup_timeout=6,
        device_type="gpu",
        device_ids=(0, 1),
        parallel_type="custom",
        parallel_level=7,
        max_retry_timeout_in_sec=8,
        client_timeout_in_mills=9,
        job_queue_size=10,
        use_job_ticket=True,
        use_venv=True,
        continuous_batching=True,
        sequence_batching=True,
        sequence_max_idle_msec=11,
        sequence_timeout_msec=12,
        max_num_sequence=13,
        max_sequence_job_queue_size=14,
        async_communication=True,
        batch_policy="fixed",
        raw=config.raw,
    )
    assert config.raw["handler"] == {"profile": True}
    assert config.workers == (1, 2)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_an_empty_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert parse_model_config(path) == (ModelConfig(), [])


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "text", "a: [", "a: !!python/object/apply:os.system [x]", "\x00", "? [a]\n: b\n"]
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InvalidModelError, match=r"^Failed to parse model config yaml file\.$"):
        parse_model_config(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"^Failed to parse model config yaml file\.$"):
        parse_model_config(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ('minWorkers: "2"', "Invalid minWorkers: 2, should be integer"),
        ("batchSize: 1.5", "Invalid batchSize: 1.5, should be integer"),
        ("batchSize: true", "Invalid batchSize: true, should be integer"),
        ("batchSize:", "Invalid batchSize: null, should be integer"),
        ("batchSize: 3000000000", "Invalid batchSize: 3000000000, should be integer"),
        ("batchSize: [1, x]", "Invalid batchSize: [1, x], should be integer"),
        ("batchSize: {a: 1, b: [1, x]}", "Invalid batchSize: {a=1, b=[1, x]}, should be integer"),
        ("maxBatchDelay: -1", "Invalid maxBatchDelay:-1"),
        ("responseTimeout: 0", "Invalid responseTimeout:0"),
        ("startupTimeout: x", "Invalid startupTimeout: x, should be integer"),
        ("deviceType: tpu", "Invalid DeviceType:tpu"),
        ("deviceType: 1", "Invalid deviceType: 1, should be cpu, or gpu"),
        ("deviceIds: 0", "Invalid deviceIds: 0, should be list of integer"),
        ("deviceIds: [0, a, b]", "Invalid deviceIds:a,"),
        ("parallelType: dp", "Invalid ParallelType:dp"),
        ("parallelType: 1", "Invalid parallelType: 1, should be pp, tp,or pptp"),
        ("parallelLevel: -1", "Invalid parallelLevel:-1, set as 0"),
        ("torchrun: 1", "Invalid torchrun: 1, should be Torchrun parameters"),
        ("clientTimeoutInMills: x", "Invalid clientTimeoutInMills: x, should be positive long"),
        ("jobQueueSize: x", "Invalid jobQueueSize: x, should be positive int"),
        ('useJobTicket: "true"', "Invalid useJobTicket: true, should be true or false"),
        ("sequenceMaxIdleMSec: x", "Invalid sequenceMaxIdleMSec: x, should be positive int"),
        ("batchPolicy: eager", "Invalid batchPolicy:eager"),
    ],
)
def test_a_wrong_value_is_ignored_with_torchserves_warning(text: str, warning: str) -> None:
    config, warnings = parse(text)
    assert warnings == [warning]
    assert config == ModelConfig(raw=config.raw)


def test_small_values_are_raised_in_silence() -> None:
    config, warnings = parse(
        "minWorkers: -3\nmaxWorkers: 4\nbatchSize: 0\nmaxRetryTimeoutInSec: -1\nclientTimeoutInMills: -1\n"
        "jobQueueSize: -1\nmaxNumSequence: 0\nmaxSequenceJobQueueSize: -4\nsequenceMaxIdleMSec: -1"
    )
    assert warnings == []
    assert (config.min_workers, config.batch_size, config.max_retry_timeout_in_sec) == (1, 1, 0)
    assert (config.client_timeout_in_mills, config.job_queue_size, config.sequence_max_idle_msec) == (0, 0, 0)
    assert (config.max_num_sequence, config.max_sequence_job_queue_size) == (1, 1)


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("minWorkers: 2", ["Invalid model config in mar, minWorkers:2, maxWorkers:0"]),
        ("minWorkers: 2\nmaxWorkers: 1", ["Invalid model config in mar, minWorkers:2, maxWorkers:1"]),
        ("maxWorkers: -1", ["Invalid maxWorkers:-1"]),
        ("batchSize: 2", []),
    ],
)
def test_workers_count_only_as_a_pair(text: str, warnings: list[str]) -> None:
    config, found = parse(text)
    assert config.workers is None
    assert found == warnings


def test_torchrun_sets_the_parallel_level() -> None:
    config, warnings = parse(
        "parallelType: PP\nparallelLevel: 2\ntorchrun:\n  nnodes: 2\n  nproc-per-node: 4\n  rdzv-backend: etcd\n"
        "  rdzv-endpoint: h:1\n  rdzv-conf: k=v\n  monitor-interval: 1\n  node-rank: 1\n  OMP_NUMBER_THREADS: 3\n"
    )
    assert warnings == []
    assert config.torchrun == TorchrunConfig(2, 4, "etcd", "h:1", "k=v", 1, 1, 3)
    assert config.parallel_level == 4


def test_bad_torchrun_values_get_their_defaults() -> None:
    config, warnings = parse(
        "torchrun: {nnodes: -2, nproc-per-node: x, rdzv-backend: 3, node-rank: '3', OMP_NUMBER_THREADS: 0, x: 1, 5: 1}"
    )
    assert config.torchrun == TorchrunConfig()
    assert warnings == [
        "Invalid torchrun.nnodes:-2, reset to 1",
        "Invalid torchrun.nproc-per-node:x, reset to 1",
        "Invalid torchrun.rdzv-backend:3, reset to c10d",
        "Invalid torchrun.node-rank:3, reset to 0",
        "Invalid OMP_NUMBER_THREADS:0, reset to 1",
        "unsupported parameter x",
        "unsupported parameter 5",
    ]


def test_unknown_keys_are_the_handlers_affair() -> None:
    document: dict[Any, Any] = {"stateful": True, 1: 2, "handler": {"x": 1}}
    assert model_config_from(document) == (ModelConfig(raw=document), [])
