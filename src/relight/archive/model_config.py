"""model-config.yaml: the keys that the server reads (configuration.md §4.1), typed and in range.

A key of the wrong type is ignored with a warning, as TorchServe does: existing archives carry such mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from relight.errors import InvalidModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAX_BYTES = 16 * 1024 * 1024
_INT32 = 2**31

PARALLEL_TYPES = ("pp", "tp", "pptp", "custom")
"""Values of `parallelType`."""

BATCH_POLICIES = ("adaptive", "fixed")
"""Values of relight's own key `batchPolicy`: never wait for nothing, or wait the whole `maxBatchDelay`."""


@dataclass(frozen=True)
class TorchrunConfig:
    """The `torchrun` mapping: arguments of torchrun for models of several processes."""

    nnodes: int = 1
    nproc_per_node: int = 1
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str | None = None
    rdzv_conf: str | None = None
    monitor_interval: int = 5
    node_rank: int = 0
    omp_number_threads: int = 1


@dataclass(frozen=True)
class ModelConfig:
    """The server's part of a model's YAML; None means that the key is absent or was ignored.

    Attributes:
        min_workers: At least 1.
        max_workers: At least 0.
        batch_size: At least 1.
        max_batch_delay: Milliseconds; TorchServe takes 0 as unset.
        response_timeout: Seconds, at least 1.
        startup_timeout: Seconds, at least 1.
        device_type: `cpu` or `gpu`.
        device_ids: Devices to use.
        parallel_type: One of `PARALLEL_TYPES`.
        parallel_level: Processes, or devices, of one worker; with `torchrun` its `nproc-per-node`.
        torchrun: Arguments of torchrun.
        max_retry_timeout_in_sec: Seconds for which failing workers are restarted.
        client_timeout_in_mills: Milliseconds after which nobody waits for a request; 0 for never.
        job_queue_size: Requests that may wait; 0 for the server's default.
        use_job_ticket: Accept a request only while a worker is idle.
        use_venv: Give the model an environment of its own.
        continuous_batching: Requests join and leave a running batch.
        sequence_batching: Requests of one sequence go to one worker, in order.
        sequence_max_idle_msec: Milliseconds after which an idle sequence ends.
        sequence_timeout_msec: Milliseconds that a sequence may last in all; 0 for no limit.
        max_num_sequence: Sequences at once, at least 1.
        max_sequence_job_queue_size: Requests that may wait in one sequence, at least 1.
        async_communication: The handler works asynchronously.
        batch_policy: One of `BATCH_POLICIES`.
        raw: The whole document, as handlers see it in `context.model_yaml_config`.
    """

    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    device_type: str | None = None
    device_ids: tuple[int, ...] | None = None
    parallel_type: str | None = None
    parallel_level: int | None = None
    torchrun: TorchrunConfig | None = None
    max_retry_timeout_in_sec: int | None = None
    client_timeout_in_mills: int | None = None
    job_queue_size: int | None = None
    use_job_ticket: bool | None = None
    use_venv: bool | None = None
    continuous_batching: bool | None = None
    sequence_batching: bool | None = None
    sequence_max_idle_msec: int | None = None
    sequence_timeout_msec: int | None = None
    max_num_sequence: int | None = None
    max_sequence_job_queue_size: int | None = None
    async_communication: bool | None = None
    batch_policy: str | None = None
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> tuple[int, int] | None:
        """Minimum and maximum of workers; None unless both are given and fit, for they count only as a pair."""
        if self.min_workers is None or self.max_workers is None or self.max_workers < self.min_workers:
            return None
        return self.min_workers, self.max_workers


def parse_model_config(path: Path) -> tuple[ModelConfig, list[str]]:
    """Read a model's YAML file (YAML 1.1, no tags).

    Args:
        path: The file. An empty one counts as an empty mapping.

    Returns:
        The configuration, and warnings about keys that were ignored, in TorchServe's words.

    Raises:
        InvalidModelError: `Failed to parse model config yaml file.`: missing, no YAML, or not a mapping.
    """
    # Imported here: torch-model-archiver shares this package, and starts without it.
    import yaml

    failure = InvalidModelError("Failed to parse model config yaml file.")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        document = yaml.safe_load(data) if len(data) <= _MAX_BYTES else []
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise failure from error
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise failure
    return model_config_from(document)


def model_config_from(document: dict[Any, Any]) -> tuple[ModelConfig, list[str]]:
    """As `parse_model_config`, for a document that is parsed already."""
    warnings: list[str] = []
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key in _READERS:
            name, read = _READERS[key]
            values[name] = read(key, value, warnings.append)
    config = ModelConfig(**values, raw=document)
    if config.torchrun is not None:
        config = replace(config, parallel_level=config.torchrun.nproc_per_node)
    if config.workers is None and (config.min_workers is not None or config.max_workers is not None):
        low, high = config.min_workers or 0, config.max_workers or 0
        warnings.append(f"Invalid model config in mar, minWorkers:{low}, maxWorkers:{high}")
    return config, warnings


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT32 <= value < _INT32


def _shown(value: object) -> str:
    """A value as TorchServe's log shows it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}={_shown(item)}" for key, item in value.items()) + "}"
    return str(value)


def _clamped(lowest: int, kind: str = "integer") -> Callable[[str, Any, Callable[[str], None]], int | None]:
    """An integer that is raised to `lowest` in silence."""

    def read(key: str, value: Any, warn: Callable[[str], None]) -> int | None:
        if _is_int(value):
            return max(lowest, int(value))
        warn(f"Invalid {key}: {_shown(value)}, should be {kind}")
        return None

    return read


def _at_least(lowest: int, note: str = "") -> Callable[[str, Any, Callable[[str], None]], int | None]:
    """An integer that is ignored below `lowest`."""

    def read(key: str, value: Any, warn: Callable[[str], None]) -> int | None:
        if not _is_int(value):
            warn(f"Invalid {key}: {_shown(value)}, should be integer")
        elif value < lowest:
            warn(f"Invalid {key}:{value}{note}")
        else:
            return int(value)
        return None

    return read


def _flag(key: str, value: Any, warn: Callable[[str], None]) -> bool | None:
    if isinstance(value, bool):
        return value
    warn(f"Invalid {key}: {_shown(value)}, should be true or false")
    return None


def _choice(choices: tuple[str, ...], kind: str, label: str) -> Callable[[str, Any, Callable[[str], None]], str | None]:
    def read(key: str, value: Any, warn: Callable[[str], None]) -> str | None:
        if not isinstance(value, str):
            warn(f"Invalid {key}: {_shown(value)}, should be {kind}")
        elif value.lower() not in choices:
            warn(f"Invalid {label}:{value}")
        else:
            return value.lower()
        return None

    return read


def _device_ids(key: str, value: Any, warn: Callable[[str], None]) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        warn(f"Invalid {key}: {_shown(value)}, should be list of integer")
        return None
    for item in value:
        if not _is_int(item):
            warn(f"Invalid {key}:{_shown(item)},")
            return None
    return tuple(value)


def _torchrun(key: str, value: Any, warn: Callable[[str], None]) -> TorchrunConfig | None:
    if not isinstance(value, dict):
        warn(f"Invalid {key}: {_shown(value)}, should be Torchrun parameters")
        return None
    values: dict[str, Any] = {}
    for name, item in value.items():
        if name not in _TORCHRUN:
            warn(f"unsupported parameter {_shown(name)}")
            continue
        attribute, lowest = _TORCHRUN[name]
        default = getattr(TorchrunConfig, attribute)
        if isinstance(item, str) if lowest is None else _is_int(item) and item >= lowest:
            values[attribute] = item
        else:
            label = name if name.isupper() else f"torchrun.{name}"
            warn(f"Invalid {label}:{_shown(item)}, reset to {_shown(default)}")
    return TorchrunConfig(**values)


# Key: attribute and lowest value; None for texts.
_TORCHRUN: dict[Any, tuple[str, int | None]] = {
    "nnodes": ("nnodes", 1),
    "nproc-per-node": ("nproc_per_node", 1),
    "rdzv-backend": ("rdzv_backend", None),
    "rdzv-endpoint": ("rdzv_endpoint", None),
    "rdzv-conf": ("rdzv_conf", None),
    "monitor-interval": ("monitor_interval", 1),
    "node-rank": ("node_rank", 0),
    "OMP_NUMBER_THREADS": ("omp_number_threads", 1),
}

_READERS: dict[Any, tuple[str, Callable[[str, Any, Callable[[str], None]], Any]]] = {
    "minWorkers": ("min_workers", _clamped(1)),
    "maxWorkers": ("max_workers", _at_least(0)),
    "batchSize": ("batch_size", _clamped(1)),
    "maxBatchDelay": ("max_batch_delay", _at_least(0)),
    "responseTimeout": ("response_timeout", _at_least(1)),
    "startupTimeout": ("startup_timeout", _at_least(1)),
    "deviceType": ("device_type", _choice(("cpu", "gpu"), "cpu, or gpu", "DeviceType")),
    "deviceIds": ("device_ids", _device_ids),
    "parallelType": ("parallel_type", _choice(PARALLEL_TYPES, "pp, tp,or pptp", "ParallelType")),
    "parallelLevel": ("parallel_level", _at_least(0, ", set as 0")),
    "torchrun": ("torchrun", _torchrun),
    "maxRetryTimeoutInSec": ("max_retry_timeout_in_sec", _clamped(0)),
    "clientTimeoutInMills": ("client_timeout_in_mills", _clamped(0, "positive long")),
    "jobQueueSize": ("job_queue_size", _clamped(0, "positive int")),
    "useJobTicket": ("use_job_ticket", _flag),
    "useVenv": ("use_venv", _flag),
    "continuousBatching": ("continuous_batching", _flag),
    "sequenceBatching": ("sequence_batching", _flag),
    "sequenceMaxIdleMSec": ("sequence_max_idle_msec", _clamped(0, "positive int")),
    "sequenceTimeoutMSec": ("sequence_timeout_msec", _clamped(0, "positive int")),
    "maxNumSequence": ("max_num_sequence", _clamped(1, "positive int")),
    "maxSequenceJobQueueSize": ("max_sequence_job_queue_size", _clamped(1, "positive int")),
    "asyncCommunication": ("async_communication", _flag),
    "batchPolicy": ("batch_policy", _choice(BATCH_POLICIES, "adaptive or fixed", "batchPolicy")),
}
