"""The description of a model version (rest_api.md §4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil

from relight.serving.worker import State

if TYPE_CHECKING:
    from relight.serving.model import ModelVersion
    from relight.serving.worker import Worker


def describe(version: ModelVersion) -> dict[str, Any]:
    """The members that TorchServe has, in its order; relight's own come last where an object has any."""
    settings = version.settings
    extra = settings.described
    sequences = settings.sequences
    document: dict[str, Any] = {
        "modelName": settings.name,
        "modelVersion": settings.version,
        "modelUrl": settings.url,
        "engine": "Torch",
        "runtime": settings.runtime,
        "minWorkers": settings.min_workers,
        "maxWorkers": settings.max_workers,
        "batchSize": settings.batch_size,
        "maxBatchDelay": settings.max_batch_delay_ms,
        "responseTimeout": settings.response_timeout,
        "startupTimeout": settings.startup_timeout,
        "maxRetryTimeoutInSec": settings.max_retry_timeout,
        "clientTimeoutInMills": settings.client_timeout_ms,
        "parallelType": extra["parallelType"],
        "parallelLevel": extra["parallelLevel"],
        "deviceType": settings.device_type,
    }
    if settings.device_ids:
        document["deviceIds"] = settings.device_ids
    document |= {
        "continuousBatching": settings.continuous_batching,
        "useJobTicket": settings.use_job_ticket,
        "useVenv": extra["useVenv"],
        "stateful": settings.sequence_batching,
        "sequenceMaxIdleMSec": sequences.max_idle_ms,
        "sequenceTimeoutMSec": sequences.timeout_ms,
        "maxNumSequence": sequences.max_sequences,
        "maxSequenceJobQueueSize": sequences.queue_size,
        "loadedAtStartup": settings.loaded_at_startup,
        "workers": [_describe_worker(worker) for worker in version.pool.workers],
        "jobQueueStatus": {
            "remainingCapacity": max(0, version.queue.capacity - version.queue.pending),
            "pendingRequests": version.queue.pending,
        },
    }
    return document


def _describe_worker(worker: Worker) -> dict[str, Any]:
    pid = worker.pid
    document: dict[str, Any] = {
        "id": str(worker.worker_id),
        "startTime": worker.started.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        "status": "READY" if worker.state is State.READY else "UNLOADING",
        "memoryUsage": _resident_memory(pid),
        "pid": -1 if pid is None else pid,
        "gpu": worker.gpu_id is not None,
        "gpuUsage": "N/A" if worker.gpu_id is None else f"gpuId::{worker.gpu_id}",
    }
    if worker.restarts:
        document["restarts"] = worker.restarts
    if worker.failure is not None:
        document["lastFailure"] = worker.failure.as_json()
    return document


def _resident_memory(pid: int | None) -> int:
    """Resident memory of a process in bytes; 0 when it is gone."""
    if pid is None:
        return 0
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
