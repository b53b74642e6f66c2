"""A worker as the frontend sees it: its state, the batches under way, its restarts."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from relight.errors import WorkerDiedError, WorkerStoppedError
from relight.serving.backpressure import Backpressure
from relight.serving.diagnosis import Diagnosis, oom_kills
from relight.serving.job import DONE, RUNNING, Job
from relight.serving.launchers.base import LaunchError
from relight.serving.process import End, WorkerProcess
from relight.serving.replies import check_reply, decode_reply, deliver
from relight.serving.restart import RestartPolicy
from relight.wire.frames import encode_head
from relight.wire.messages import FAILED_TO_LOAD, Batch, Item, Kind, LoadFailed, Reply
from relight.wire.progress import Phase

if TYPE_CHECKING:
    from relight.serving.pool import WorkerPool
    from relight.wire.frames import Frame

logger = logging.getLogger("relight.worker")

_DEPTH_BUDGET = 0.002
"""Seconds of work that may lie in a worker's socket, where other workers could do it as well."""
_MAX_DEPTH = 64
_SMOOTHING = 1 / 16


class State(enum.Enum):
    """What a worker is doing."""

    STARTING = "WORKER_STARTED"
    """Its process is being started, or is loading the model."""
    READY = "WORKER_MODEL_LOADED"
    """It takes batches."""
    DRAINING = "WORKER_DRAINING"
    """It finishes what it has, and takes nothing new."""
    BACKING_OFF = "WORKER_STOPPED"
    """It has died and waits for its restart."""
    ABANDONED = "WORKER_ERROR"
    """It has failed for longer than `maxRetryTimeoutInSec` and is not restarted."""
    STOPPED = "WORKER_SCALED_DOWN"
    """It is gone for good."""


class Sent(NamedTuple):
    """A batch that a worker has not answered yet."""

    seq: int
    jobs: list[Job]

    @property
    def waiting(self) -> int:
        """Its requests that somebody waits for."""
        return sum(job.state != DONE for job in self.jobs)


class Worker:
    """One worker of a model version, through all its processes.

    Args:
        worker_id: Its id, a port number by TorchServe's tradition; never reused.
        pool: The pool it works for.
        gpu_id: The device it is assigned, if any.
    """

    capacity = 1
    """Batches that it runs at a time."""

    def __init__(self, worker_id: int, pool: WorkerPool, gpu_id: int | None) -> None:
        self.worker_id = worker_id
        self.gpu_id = gpu_id
        self.state = State.STARTING
        self.started = datetime.now(timezone.utc)
        self.failure: Diagnosis | None = None
        """Why it died last."""
        self.restarts = 0
        self.loaded: asyncio.Future[Diagnosis | None] = asyncio.get_running_loop().create_future()
        """Done after the first attempt to load the model: None, or why that failed."""
        self.depth = 1
        """Batches that it may hold at a time."""
        self.outstanding: deque[Sent] = deque()
        self._pool = pool
        self._seq = 0
        self._process: WorkerProcess | None = None
        self._seconds = 0.0
        self._turn_began = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._backpressure = Backpressure()
        self._lagging: Job | None = None
        self._drained: asyncio.Future[None] | None = None
        self._life: asyncio.Task[None] | None = None
        self._verdict: LoadFailed | None = None
        self._timed_out = ""
        self._begun = 0
        self._stopping = False
        self._has_loaded = False

    @property
    def name(self) -> str:
        """`W-<id>-<model>_<version>`, as log lines and metrics have it."""
        return f"W-{self.worker_id}-{self._pool.label}"

    @property
    def pid(self) -> int | None:
        """Pid of its process, while there is one on this host."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begin its life."""
        self._life = asyncio.get_running_loop().create_task(self._live(), name=self.name)

    # -- the hot path --------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Batches that it has not answered."""
        return len(self.outstanding)

    def send(self, jobs: list[Job], now: float) -> None:
        """Send a batch; the worker is READY and holds fewer than `depth` batches."""
        if not self.outstanding:
            self._turn_began = now
            if self._silence is None:
                self._watch(self._pool.response_timeout)
        else:
            self._pool.queue.ahead += len(jobs)
        self.outstanding.append(Sent(self._post(jobs), jobs))

    def _post(self, jobs: list[Job]) -> int:
        """Send a batch; its sequence number."""
        self._seq = seq = self._seq + 1
        items = []
        body: list[bytes] = []
        size = 0
        for job in jobs:
            job.state = RUNNING
            job.on_cancel = self._cancelled
            items.append(Item(job.request_id, job.headers, job.added, job.parts))
            body += job.body
            size += job.size
        process = self._process
        assert process is not None
        if process.progress is not None:
            process.progress.clear(seq)
        process.channel.send(Kind.BATCH, Batch(seq, items), body, size)
        return seq

    def _cancelled(self, job: Job) -> None:
        """Mark a request as cancelled: the handler may ask if it is running, and never sees it if it is not begun."""
        process = self._process
        for sent in self.outstanding:
            if job in sent.jobs:
                if sent is not self.outstanding[0]:
                    self._pool.queue.ahead -= 1
                if process is not None and process.progress is not None:
                    process.progress.cancel(sent.seq, sent.jobs.index(job))
                return

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == Kind.REPLY or kind == Kind.CHUNK:
            self._on_reply(decode_reply(frame.meta), frame.payload, kind == Kind.REPLY)
        elif kind == Kind.LOADED:
            self._on_loaded()
        elif kind == Kind.LOAD_FAILED:
            self._verdict = msgspec.msgpack.decode(frame.meta, type=LoadFailed)
        else:
            raise ValueError(f"unexpected frame of kind {kind}")

    def _on_reply(self, reply: Reply, payload: bytes | memoryview, last: bool) -> None:
        outstanding = self.outstanding
        if not outstanding or outstanding[0].seq != reply.seq:
            raise ValueError(f"reply to batch {reply.seq}, which is not the oldest one under way")
        jobs = outstanding[0].jobs
        if reply.failure is None:
            check_reply(reply, len(jobs), len(payload))
        now = self._pool.clock()
        if last:
            outstanding.popleft()
            if outstanding:
                self._pool.queue.ahead -= outstanding[0].waiting
            self._end_turn(now, len(jobs))
        else:
            self._pool.streams = True
            self._turn_began = now
        deliver(reply, jobs, payload, last=last, on_slow=self._client_is_slow)
        if last:
            self._pool.worker_free(self)

    def _end_turn(self, now: float, count: int) -> None:
        seconds = now - self._turn_began
        self._turn_began = now
        self._seconds += (seconds - self._seconds) * _SMOOTHING
        pool = self._pool
        if pool.streams or not pool.policy.pipelines:
            self.depth = 1
        else:
            alone = 2 if len(pool.workers) == 1 else 1
            self.depth = max(alone, min(_MAX_DEPTH, int(_DEPTH_BUDGET / max(self._seconds, 1e-5))))
        pool.policy.served(count, seconds, pool.queue.waiting)

    def _client_is_slow(self, job: Job, seq: int, size: int) -> None:  # noqa: ARG002 - others than this want to know
        """Have the handler wait for its client, unless others wait for the handler too."""
        if not self.outstanding:
            self._lagging = job
        elif self._process is not None and len(self.outstanding) == 1 and self.outstanding[0].jobs == [job]:
            self._backpressure.stall(job, self._process.channel)

    def wait_for_slow_client(self) -> None:
        """Do so for a client that was slow to take the last step of its request, if that alone goes on."""
        job, self._lagging = self._lagging, None
        if job is not None:
            self._client_is_slow(job, self._seq, 0)

    def hurry(self) -> None:
        """Others wait for the handler after all."""
        self._backpressure.release()

    # -- timeouts ------------------------------------------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        self._silence = asyncio.get_running_loop().call_later(max(0.0, seconds), self._check_silence)

    def _check_silence(self) -> None:
        """End a worker that has been silent for `response_timeout`; one timer serves all batches.

        A worker is not to blame for a client that has read nothing for so long: that client is given up.
        """
        self._silence = None
        if not self.outstanding:
            return
        timeout = self._pool.response_timeout
        left = self._turn_began + timeout - self._pool.clock()
        stalled = self._backpressure.stalled
        if left > 0.001:
            self._watch(left)
        elif stalled is not None:
            self._turn_began = self._pool.clock()
            stalled.expire(f"The client has read nothing for {timeout:g} s.")
            self._watch(timeout)
        else:
            self._timed_out = f"no response within response_timeout of {timeout:g} s"
            self.kill()

    # -- life ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Start, serve and restart, until stopped or abandoned."""
        policy = RestartPolicy(self._pool.max_retry_time)
        try:
            while await self._one_life(policy):
                self.state = State.STARTING
                self.restarts += 1
        finally:
            self._pool.worker_ended(self)

    async def _one_life(self, policy: RestartPolicy) -> bool:
        """Run one process to its end, and wait until the next may start; False if none may."""
        began = time.monotonic()
        diagnosis = await self._one_process()
        if self._stopping:
            if self.state is State.DRAINING:
                self._bury(diagnosis)
            for job in self._settle():
                job.fail(WorkerStoppedError())
            self.state = State.STOPPED
            return False
        self._bury(diagnosis)
        delay = policy.died(began, time.monotonic(), loaded=self._has_loaded)
        if delay is None:
            self.state = State.ABANDONED
            logger.error("%s is not restarted: it kept failing for %d s", self.name, self._pool.max_retry_time)
            return False
        self.state = State.BACKING_OFF
        self._pool.worker_unavailable(self)
        logger.info("Retry worker: %d in %d seconds.", self.worker_id, delay)
        await asyncio.sleep(delay)
        return True

    async def _one_process(self) -> Diagnosis:
        """Start a process, have it load the model, and wait for its end."""
        pool = self._pool
        self._verdict, self._timed_out, self._has_loaded, self._begun = None, "", False, 0
        kills = oom_kills()
        try:
            load = encode_head(Kind.LOAD, pool.load_message(self))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return Diagnosis("start", f"the model's settings cannot be sent to a worker: {error}")
        try:
            process = await WorkerProcess.launch(
                pool.launcher,
                torch=pool.wants_torch,
                name=self.name,
                max_payload=pool.max_payload,
                on_frame=self._on_frame,
            )
        except (LaunchError, OSError) as error:
            return Diagnosis("start", str(error))
        self._process = process
        if self._stopping:
            process.kill()
        timer = asyncio.get_running_loop().call_later(pool.startup_timeout, self._startup_expired)
        process.channel.write(load)
        await process.closed()
        timer.cancel()
        pool.worker_unavailable(self)
        end = await process.end(told=self._stopping)
        diagnosis = self._diagnose(process, end, oom_kills() > kills)
        self._process = None
        process.release()
        return diagnosis

    def _on_loaded(self) -> None:
        self._has_loaded = True
        if self._stopping:
            return
        self.state = State.READY
        self.depth = 1
        self._turn_began = self._pool.clock()
        if not self.loaded.done():
            self.loaded.set_result(None)
        logger.info("%s State change WORKER_STARTED -> WORKER_MODEL_LOADED", self.name)
        self._pool.worker_ready(self)

    def _startup_expired(self) -> None:
        if not self._has_loaded:
            self._timed_out = f"model not loaded within startup_timeout of {self._pool.startup_timeout:g} s"
            self.kill()

    def _diagnose(self, process: WorkerProcess, end: End, oom_killed: bool) -> Diagnosis:
        verdict = self._verdict
        running, _ = self._split()
        if verdict is not None:
            phase = verdict.phase
        elif self._has_loaded:
            phase = "handle" if running else "idle"
        else:
            phase = Phase.NAMES[process.progress.phase()] if process.progress is not None else "initialize"
        cause = self._timed_out or (verdict.message if verdict is not None else "")
        if not cause:
            broken = end.error is not None and not isinstance(end.error, OSError)
            cause = f"broken channel: {end.error}" if broken else "the process ended"
        killed = end.status is not None and end.status.killed and oom_killed
        return Diagnosis(
            phase,
            cause,
            exit=end.status,
            out_of_memory=killed or (verdict is not None and verdict.status == 507),
            exception=verdict.message if verdict is not None else None,
            traceback=verdict.traceback if verdict is not None else None,
            output=_without_traceback(end.lines) if verdict is not None else end.lines,
            lost=[job.request_id for sent in running for job in sent.jobs if job.state != DONE],
            own_doing=bool(self._timed_out) or end.forced,
        )

    def _bury(self, diagnosis: Diagnosis) -> None:
        """A process has died: say why, answer what it was running, put back what it had not begun."""
        self.failure = diagnosis
        logger.error("%s died. %s", self.name, diagnosis)
        for job in self._settle():
            job.fail(WorkerDiedError(out_of_memory=diagnosis.exhausted))
        if not self.loaded.done():
            self.loaded.set_result(diagnosis)

    def _split(self) -> tuple[list[Sent], list[Sent]]:
        """The batches under way: those that the worker has begun, and those that it has not."""
        progress = self._process.progress if self._process is not None else None
        if progress is not None:
            self._begun = progress.begun()
        if self.outstanding and ((self._process is not None and progress is None) or self._timed_out):
            # Without that page the oldest batch counts as begun; and whoever was too slow to begin it, had its time.
            self._begun = max(self._begun, self.outstanding[0].seq)
        begun = [sent for sent in self.outstanding if sent.seq <= self._begun]
        return begun, [sent for sent in self.outstanding if sent.seq > self._begun]

    def _settle(self) -> list[Job]:
        """Take all batches from a worker that has ended: the jobs that end with it; the others are put back."""
        self._backpressure.release()
        begun, untouched = self._split()
        self._pool.queue.ahead -= sum(sent.waiting for sent in list(self.outstanding)[1:])
        self.outstanding.clear()
        lost = self._pool.put_back(self, [job for sent in untouched for job in sent.jobs])
        return [job for sent in begun for job in sent.jobs] + lost

    # -- the end -------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process of the moment at once; what follows is as for any death."""
        self._backpressure.release()
        if self._process is not None:
            self._process.kill()

    async def stop(self, timeout: float | None) -> None:
        """End the worker for good.

        Args:
            timeout: Seconds that it may take for what it is running; None for as long as it takes.
        """
        life = self._life
        assert life is not None
        self._stopping = True
        if self.state is State.READY and self.held and timeout != 0:
            self.state = State.DRAINING
            self._pool.worker_unavailable(self)
            self._drained = asyncio.get_running_loop().create_future()
            ends: list[asyncio.Future[Any]] = [self._drained, life]
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        before, self.state = self.state, State.STOPPED
        self._pool.worker_unavailable(self)
        if self._silence is not None:
            self._silence.cancel()
        if not self.loaded.done():
            self.loaded.set_result(Diagnosis("start", "stopped before the model was loaded"))
        if before is State.BACKING_OFF:
            life.cancel()
        elif before is State.STARTING or self.held:
            # What it has begun by its end is answered then; what it has not goes to another worker.
            self.kill()
        elif self._process is not None:
            self._process.channel.close()
        await asyncio.wait([life])
        logger.info("%s State change %s -> %s", self.name, before.value, State.STOPPED.value)

    def drained(self) -> None:
        """The last batch of a DRAINING worker is answered."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _without_traceback(lines: list[str]) -> list[str]:
    """What a worker wrote before the traceback that it has reported by itself."""
    for index, line in enumerate(lines):
        if line.startswith(FAILED_TO_LOAD):
            return lines[:index]
    return [] if lines and lines[0].startswith("  ") else lines
