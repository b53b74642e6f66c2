"""A version of a model: what it was registered with, its queue, its workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relight.errors import ServiceUnavailableError
from relight.serving.batching import POLICIES
from relight.serving.batching.continuous import ContinuousPool
from relight.serving.batching.sequence import SequencePool
from relight.serving.pool import PoolSettings, WorkerPool
from relight.serving.queue import JobQueue
from relight.serving.refusals import no_worker
from relight.serving.sequence import SequenceSettings
from relight.serving.sequences import SequenceQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.archive.store import Archive
    from relight.serving.devices import DeviceAssigner
    from relight.serving.job import Job
    from relight.serving.launchers.base import Launcher


@dataclass(slots=True)
class VersionSettings:
    """What one version runs with; seconds where no unit is named. Names follow the members of describe."""

    name: str
    version: str
    url: str
    handler: str
    runtime: str = "python"
    min_workers: int = 0
    max_workers: int = 0
    batch_size: int = 1
    max_batch_delay_ms: int = 100
    batch_policy: str = "adaptive"
    response_timeout: float = 120
    startup_timeout: float = 120
    max_retry_timeout: int = 300
    client_timeout_ms: int = 0
    queue_size: int = 100
    use_job_ticket: bool = False
    async_communication: bool = False
    device_type: str = "cpu"
    device_ids: list[int] = field(default_factory=list)
    loaded_at_startup: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    """The whole document of the model's configuration file."""
    continuous_batching: bool = False
    sequence_batching: bool = False
    sequences: SequenceSettings = field(default_factory=SequenceSettings)
    """Without `sequence_batching` for describe alone."""
    described: dict[str, Any] = field(default_factory=dict)
    """Keys that describe reports and nothing else reads yet (parallel settings, environments)."""
    environment: dict[str, str] = field(default_factory=dict)
    envelope: str | None = None
    limit_max_image_pixels: bool = True
    decode_input: bool = True
    metrics_config: str | None = None
    max_response_size: int = 6553500


def batching_of(settings: VersionSettings) -> tuple[type[WorkerPool], JobQueue]:
    """How a version's requests wait for its workers, and how these get them."""
    if settings.sequence_batching:
        return SequencePool, SequenceQueue(settings.sequences, settings.name)
    if settings.continuous_batching:
        return ContinuousPool, JobQueue(settings.queue_size)
    return WorkerPool, JobQueue(settings.queue_size)


class ModelVersion:
    """One registered version of a model.

    Args:
        settings: What it runs with.
        archive: Its files.
        launcher: Starts its workers.
        next_worker_id: Gives ids that are never used twice.
        devices: Gives out devices.
        wants_torch: Whether its handler is expected to use torch.
    """

    def __init__(
        self,
        settings: VersionSettings,
        archive: Archive,
        launcher: Launcher,
        next_worker_id: Callable[[], int],
        devices: DeviceAssigner,
        wants_torch: bool,
    ) -> None:
        self.settings = settings
        self.archive = archive
        policy = POLICIES[settings.batch_policy](max(1, settings.batch_size), settings.max_batch_delay_ms / 1000)
        if settings.use_job_ticket:
            policy.pipelines = False
        kind, self.queue = batching_of(settings)
        self.pool = kind(
            PoolSettings(settings, archive, wants_torch), self.queue, policy, launcher, next_worker_id, devices
        )
        self._client_timeout = settings.client_timeout_ms / 1000
        self._tickets = settings.use_job_ticket
        self.sequences = settings.sequences if settings.sequence_batching else None
        """For versions with sequence batching: how requests name their sequence, among others."""
        self.streams_alone = not (settings.continuous_batching or settings.sequence_batching)
        """Whether a streaming gRPC call is a batch of its own; stateful models have their own rules."""

    def submit(self, job: Job, named_version: str | None = None) -> None:
        """Queue a job for a worker.

        Args:
            job: The job; from now on it is answered, whatever happens.
            named_version: The version that the client asked for, if it named one.

        Raises:
            ServiceUnavailableError: no worker can take it now.
            BadRequestError: it names no sequence, and the version has sequence batching.
        """
        pool = self.pool
        if not pool.alive or (self._tickets and not pool.has_idle_worker) or not self.queue.put(job):
            raise no_worker(self.settings.name, job, named_version)
        if self._client_timeout:
            job.timer = asyncio.get_running_loop().call_later(self._client_timeout, self._expire, job)
        pool.dispatch()

    def _expire(self, job: Job) -> None:
        job.expire(
            f"Request {job.request_id} was not answered within clientTimeoutInMills "
            f"{self.settings.client_timeout_ms} of model {self.settings.name}."
        )

    async def close(self, timeout: float | None) -> None:
        """Let pending work end, then end the workers and remove the files.

        Args:
            timeout: Seconds that pending work may take; None for as long as it takes.
        """
        await self.pool.scale(0, 0, timeout=timeout)
        self.queue.fail_all(ServiceUnavailableError(f'Model "{self.settings.name}" was unregistered.'))


__all__ = ["ModelVersion", "VersionSettings"]
