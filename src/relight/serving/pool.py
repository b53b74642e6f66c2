"""The workers of one model version: dispatch, scaling, health."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from relight.errors import ServiceUnavailableError
from relight.serving.concurrent import ConcurrentWorker
from relight.serving.worker import State, Worker
from relight.wire.messages import Load

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.archive.store import Archive
    from relight.serving.batching import BatchingPolicy
    from relight.serving.devices import DeviceAssigner
    from relight.serving.diagnosis import Diagnosis
    from relight.serving.job import Job
    from relight.serving.launchers.base import Launcher
    from relight.serving.model import VersionSettings
    from relight.serving.queue import JobQueue

_NEVER_ALIVE = (State.ABANDONED, State.STOPPED)


class PoolSettings(NamedTuple):
    """What a pool needs to know of its version."""

    version: VersionSettings
    archive: Archive
    wants_torch: bool


class WorkerPool:
    """Keeps `min_workers` to `max_workers` workers and gives them batches.

    Args:
        settings: Of the version.
        queue: Its jobs.
        policy: Its batching policy.
        launcher: Starts processes.
        next_worker_id: Gives ids that are never used twice.
        devices: Gives out devices.
    """

    def __init__(
        self,
        settings: PoolSettings,
        queue: JobQueue,
        policy: BatchingPolicy,
        launcher: Launcher,
        next_worker_id: Callable[[], int],
        devices: DeviceAssigner,
    ) -> None:
        version = settings.version
        self.queue = queue
        self.policy = policy
        self.launcher = launcher
        self.workers: list[Worker] = []
        """All workers, in the order they were started; abandoned ones too, for describe and for health."""
        self.clock = time.monotonic
        self.label = f"{version.name}_{version.version}"
        self.response_timeout = version.response_timeout
        self.startup_timeout = version.startup_timeout
        self.max_retry_time = version.max_retry_timeout
        self.wants_torch = settings.wants_torch
        self.max_payload = max(1, version.batch_size) * (version.max_response_size + 65536)
        self.streams = False
        """Whether the handler has sent intermediate results: then batches are not pipelined."""
        self.alive = 0
        """Workers that serve, or will as far as one can tell."""
        self._version = version
        self._archive = settings.archive
        self._next_worker_id = next_worker_id
        self._devices = devices
        self._idle: deque[Worker] = deque()
        self._ready: list[Worker] = []
        self._timer: asyncio.TimerHandle | None = None
        self._scaling = asyncio.Lock()
        self._closing = False

    # -- dispatch: the hot path ----------------------------------------------------------------------------------

    @property
    def has_idle_worker(self) -> bool:
        """Whether a worker waits for work, beyond those that will take what is queued."""
        return len(self._idle) > self.queue.waiting

    def dispatch(self) -> None:
        """Give waiting jobs to workers, as far as the policy wants it."""
        queue, policy, idle = self.queue, self.policy, self._idle
        size = policy.batch_size
        while queue.waiting:
            if idle:
                if size > 1 and queue.waiting < size and not queue.head_is_alone():
                    now = self.clock()
                    seconds = policy.wait(queue.waiting, queue.oldest(), now)
                    if seconds > 0:
                        self._arm(seconds)
                        return
                worker = self._next_idle()
            else:
                busy = self._pipelining_worker(size)
                if busy is None:
                    return
                worker = busy
            jobs = queue.take(size)
            if jobs:
                worker.send(jobs, self.clock())
                if worker.held < worker.capacity:
                    idle.append(worker)
            elif worker.held < worker.capacity:
                idle.appendleft(worker)

    def _next_idle(self) -> Worker:
        """The idle worker whose turn it is: the one that waits longest, of concurrent ones the one that has least."""
        idle = self._idle
        if len(idle) == 1 or idle[0].capacity == 1:
            return idle.popleft()
        least = min(idle, key=lambda worker: worker.held)
        idle.remove(least)
        return least

    def _pipelining_worker(self, size: int) -> Worker | None:
        """A busy worker that may hold one more batch; only full batches are sent ahead of their turn."""
        if self.queue.waiting < size:
            return None
        best = None
        for worker in self._ready:
            held = worker.held
            if held < worker.depth and (best is None or held < best.held):
                best = worker
        return best

    def worker_free(self, worker: Worker) -> None:
        """A worker has answered a batch."""
        held = worker.held
        if worker.state is State.READY:
            if held == worker.capacity - 1:
                self._idle.append(worker)
        elif not held and worker.state is State.DRAINING:
            worker.drained()
        if self.queue.waiting:
            self.dispatch()

    def _arm(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.dispatch()

    # -- what workers report -------------------------------------------------------------------------------------

    def worker_ready(self, worker: Worker) -> None:
        """A worker has loaded the model."""
        self._ready.append(worker)
        self._idle.append(worker)
        self.dispatch()

    def worker_unavailable(self, worker: Worker) -> None:
        """A worker takes no more batches."""
        if worker in self._ready:
            self._ready.remove(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self.dispatch()

    def put_back(self, worker: Worker, jobs: list[Job]) -> list[Job]:  # noqa: ARG002 - others remember who had them
        """A worker has ended: what it was given and had not begun goes to another one.

        Returns:
            Jobs that end with the worker all the same.
        """
        self.queue.put_back(jobs)
        return []

    def worker_ended(self, worker: Worker) -> None:
        """A worker's life is over: it was stopped, or is given up."""
        self.worker_unavailable(worker)
        if worker.state is State.STOPPED and worker in self.workers:
            self.workers.remove(worker)
        self._count()

    def _count(self) -> None:
        serving = sum(worker.state not in _NEVER_ALIVE for worker in self.workers)
        self.alive = 0 if self._closing else serving
        if not serving:
            # Nobody is left to take them, and new ones are refused: none may wait for ever.
            self.queue.fail_all(ServiceUnavailableError(f'Model "{self._version.name}" has no worker left.'))

    # -- scaling -------------------------------------------------------------------------------------------------

    async def scale(
        self,
        minimum: int,
        maximum: int,
        *,
        timeout: float | None = None,
        gpus: int | None = None,
    ) -> list[Worker]:
        """Have at least `minimum` and at most `maximum` workers; calls follow one after the other.

        Surplus workers are drained, the last started first. Abandoned workers are replaced. Returns when workers are
        started, not when they have loaded, and when surplus ones are gone.

        Args:
            minimum: Fewest workers.
            maximum: Most workers.
            timeout: Seconds that a surplus worker may take for what it is running; None for as long as it takes.
            gpus: How many of the workers are on GPUs; None for all, where there are any.

        Returns:
            The workers that were started.
        """
        async with self._scaling:
            self._version.min_workers, self._version.max_workers = minimum, maximum
            for worker in [worker for worker in self.workers if worker.state is State.ABANDONED]:
                self.workers.remove(worker)
            started = [self._start_worker(gpus) for _ in range(minimum - len(self.workers))]
            surplus = self.workers[maximum:]
            if surplus:
                self._closing = maximum == 0
                try:
                    await self._stop(surplus, timeout)
                finally:
                    self._closing = False
            self._count()
            return started

    def _start_worker(self, gpus: int | None) -> Worker:
        in_use = [worker.gpu_id for worker in self.workers]
        device = self._devices.next(in_use)
        if gpus is not None and sum(gpu is not None for gpu in in_use) >= gpus:
            device = None
        kind = ConcurrentWorker if self._version.async_communication else Worker
        worker = kind(self._next_worker_id(), self, device)
        self.workers.append(worker)
        self.alive += 1
        worker.start()
        return worker

    async def _stop(self, surplus: list[Worker], timeout: float | None) -> None:
        began = self.clock()
        if self._closing and self.queue.waiting and timeout != 0:
            # Nobody will be left: those there are first serve what is queued, while new requests are refused.
            self.alive = 0
            emptied = asyncio.Event()
            self.queue.on_empty = emptied.set
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(emptied.wait(), timeout)
            self.queue.on_empty = None
        left = None if timeout is None else max(0.0, timeout - (self.clock() - began))
        await asyncio.gather(*(worker.stop(left) for worker in reversed(surplus)))

    async def loaded(self, workers: list[Worker]) -> Diagnosis | None:
        """Wait until workers have loaded the model.

        Returns:
            None, or why the first one that failed did.
        """
        pending: set[asyncio.Future[Diagnosis | None]] = {worker.loaded for worker in workers}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                diagnosis = future.result()
                if diagnosis is not None:
                    return diagnosis
        return None

    # -- what others ask -----------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Workers that have loaded the model."""
        return len(self._ready)

    def load_message(self, worker: Worker) -> Load:
        """What a worker is told to load."""
        version, archive = self._version, self._archive
        cores = len(os.sched_getaffinity(0))
        return Load(
            model_name=version.name,
            model_version=version.version,
            handler=version.handler,
            model_dir=str(archive.model_dir),
            real_dir=str(archive.real_dir),
            batch_size=max(1, version.batch_size),
            extra_path=[str(path) for path in archive.extra_path],
            config=version.config,
            gpu_id=worker.gpu_id,
            envelope=version.envelope,
            limit_max_image_pixels=version.limit_max_image_pixels,
            decode_input=version.decode_input,
            metrics_config=version.metrics_config,
            max_response_size=version.max_response_size,
            threads=max(1, cores // max(1, len(self.workers), version.min_workers)),
            environment=version.environment,
            concurrent=version.async_communication,
            continuous=version.continuous_batching,
        )
