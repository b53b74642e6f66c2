"""Which value a setting of a version gets: registration, model configuration, server (configuration.md §4.2)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relight.errors import BadRequestError, InvalidModelError
from relight.serving.model import VersionSettings
from relight.serving.sequence import SequenceSettings

if TYPE_CHECKING:
    from relight.archive.manifest import Manifest
    from relight.archive.model_config import ModelConfig
    from relight.archive.store import Archive
    from relight.settings import Settings

MOST_WORKERS = 4096
"""Workers of one version; a number beyond it is a mistake that would take the host down."""
RUNTIMES = ("python", "python3", "LSP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a client, or the operator at start, asks for; None where nothing was said.

    Attributes:
        url: Where the archive is.
        model_name: Name to register under.
        handler: Handler instead of the archive's.
        runtime: Runtime instead of the archive's.
        batch_size: Most requests in a batch.
        max_batch_delay: Milliseconds that a request may wait for others.
        initial_workers: Workers to start.
        response_timeout: Seconds that a worker may take to answer.
        startup_timeout: Seconds that a worker may take to load the model.
        synchronous: Whether to wait until the workers have loaded.
        s3_sse_kms: Whether the download is signed for AWS.
        at_startup: Whether it is the operator who asks, at start.
        default_name: Name for an archive that has none; only at start.
    """

    url: str
    model_name: str | None = None
    handler: str | None = None
    runtime: str | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    initial_workers: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    synchronous: bool = True
    s3_sse_kms: bool = False
    at_startup: bool = False
    default_name: str | None = None


def choose_settings(
    registration: Registration, archive: Archive, config: ModelConfig, settings: Settings, gpus: int
) -> VersionSettings:
    """The settings of a new version.

    Raises:
        InvalidModelError: the archive names no model, a runtime that there is not, or ways of batching that contradict
            each other.
        BadRequestError: the registration names a runtime that there is not.
    """
    manifest = archive.manifest
    name = registration.model_name or (manifest.model_name if manifest else None) or registration.default_name
    if not name:
        raise InvalidModelError("Model name is not defined.")
    version = manifest.model_version if manifest else "1.0"
    listed: dict[str, Any] = settings.models.get(name, {}).get(version, {})
    minimum, maximum = _workers(registration, config, listed, settings, gpus)
    if minimum > MOST_WORKERS:
        raise BadRequestError(f"{minimum} workers are asked for; a model may have {MOST_WORKERS} at most.")
    _check_batching(config)
    handler = registration.handler
    if handler is None:
        handler = (manifest.handler if manifest else None) or settings.default_service_handler or ""
    return VersionSettings(
        name=name,
        version=version,
        url=registration.url,
        handler=handler,
        runtime=_runtime(registration, manifest, listed),
        min_workers=minimum,
        max_workers=maximum,
        batch_size=_first(registration.batch_size, config.batch_size, _positive(listed, "batchSize"), 1),
        max_batch_delay_ms=_first(
            registration.max_batch_delay, config.max_batch_delay or None, _positive(listed, "maxBatchDelay"), 100
        ),
        # Concurrent workers are never busy, so that batches form only where requests wait for each other.
        batch_policy=config.batch_policy or ("fixed" if config.async_communication else "adaptive"),
        response_timeout=_first(
            registration.response_timeout,
            config.response_timeout,
            _positive(listed, "responseTimeout"),
            settings.default_response_timeout,
        ),
        startup_timeout=_first(
            registration.startup_timeout,
            config.startup_timeout,
            _positive(listed, "startupTimeout"),
            settings.default_startup_timeout,
        ),
        max_retry_timeout=_first(config.max_retry_timeout_in_sec, 300),
        client_timeout_ms=_first(config.client_timeout_in_mills, 0),
        queue_size=config.job_queue_size or settings.job_queue_size,
        use_job_ticket=bool(config.use_job_ticket),
        async_communication=bool(config.async_communication),
        device_type="gpu" if gpus and config.device_type != "cpu" else "cpu",
        device_ids=_device_ids(config, gpus),
        loaded_at_startup=registration.at_startup,
        config=config.raw,
        continuous_batching=bool(config.continuous_batching),
        sequence_batching=bool(config.sequence_batching),
        sequences=_sequences(config, settings),
        described=_described(config),
        environment=_environment(settings),
        envelope=settings.service_envelope or None,
        limit_max_image_pixels=settings.limit_max_image_pixels,
        decode_input=settings.decode_input_request,
        metrics_config=None if settings.metrics_config is None else str(settings.metrics_config),
        max_response_size=settings.max_response_size,
    )


def _check_batching(config: ModelConfig) -> None:
    if config.sequence_batching and not config.sequence_max_idle_msec:
        raise InvalidModelError(
            "sequenceBatching needs sequenceMaxIdleMSec: the milliseconds without a request after which a sequence is "
            "forgotten."
        )
    for key, wanted in (
        ("continuousBatching", config.continuous_batching),
        ("sequenceBatching", config.sequence_batching),
    ):
        if wanted and config.async_communication:
            raise InvalidModelError(
                f"{key} is for handlers that answer one batch after the other: it does not go with asyncCommunication."
            )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _positive(listed: dict[str, Any], key: str) -> int | None:
    """An entry of `models=`; what is not a positive number counts as absent."""
    try:
        value = int(listed.get(key, 0))
    except (TypeError, ValueError):
        return None
    return value if value > 0 else None


def _workers(
    registration: Registration, config: ModelConfig, listed: dict[str, Any], settings: Settings, gpus: int
) -> tuple[int, int]:
    minimum, maximum = config.min_workers, config.max_workers
    if minimum and maximum and maximum >= minimum:
        return minimum, maximum
    if registration.at_startup:
        minimum, maximum = _positive(listed, "minWorkers"), _positive(listed, "maxWorkers")
        if minimum and maximum and maximum >= minimum:
            return minimum, maximum
        count = settings.default_workers_per_model or gpus or len(os.sched_getaffinity(0))
    elif registration.initial_workers is not None:
        count = registration.initial_workers
    else:
        count = settings.default_workers_per_model
    return max(0, count), max(0, count)


def _runtime(registration: Registration, manifest: Manifest | None, listed: dict[str, Any]) -> str:
    runtime = listed.get("runtimeType") or registration.runtime or (manifest.runtime if manifest else "python")
    if runtime not in RUNTIMES:
        raise BadRequestError(f"Invalid RuntimeType value: {runtime}")
    if runtime == "LSP":
        raise InvalidModelError(
            "Runtime LSP is not supported: there is no C++ backend. Repack the model with runtime python."
        )
    return str(runtime)


def _device_ids(config: ModelConfig, gpus: int) -> list[int]:
    wanted = config.device_ids or ()
    return list(wanted) if all(0 <= device < gpus for device in wanted) else []


def _described(config: ModelConfig) -> dict[str, Any]:
    return {
        "parallelType": config.parallel_type or "",
        "parallelLevel": (config.parallel_level or 0) if config.parallel_type else 0,
        "useVenv": bool(config.use_venv),
    }


def _sequences(config: ModelConfig, settings: Settings) -> SequenceSettings:
    """Bounds of sequences; TorchServe reads none of them without an idle time, and describe shows that."""
    idle = config.sequence_max_idle_msec or 0
    return SequenceSettings(
        max_idle_ms=idle,
        timeout_ms=(config.sequence_timeout_msec or 0) if idle else 0,
        max_sequences=(config.max_num_sequence or 1) if idle else 0,
        queue_size=(config.max_sequence_job_queue_size or 1) if idle else 0,
        id_header=settings.ts_header_key_sequence_id,
        start_header=settings.ts_header_key_sequence_start,
        end_header=settings.ts_header_key_sequence_end,
    )


def _environment(settings: Settings) -> dict[str, str]:
    """What workers find in their environment beyond the server's own (archives_and_handlers.md §2.2)."""
    return {
        "TS_DECODE_INPUT_REQUEST": str(settings.decode_input_request).lower(),
        "TS_IPEX_ENABLE": str(settings.ipex_enable).lower(),
        "TS_IPEX_GPU_ENABLE": str(settings.ipex_gpu_enable).lower(),
        "TS_REQUEST_SEQUENCE_ID": settings.ts_header_key_sequence_id,
        "TS_REQUEST_SEQUENCE_START": settings.ts_header_key_sequence_start,
        "TS_REQUEST_SEQUENCE_END": settings.ts_header_key_sequence_end,
    }
