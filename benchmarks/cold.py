"""Measurements of a server that was started just before: start, scaling, memory, a worker's death."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.errors import BenchError
from benchmarks.figures import Sample
from benchmarks.load import Generators, Load

if TYPE_CHECKING:
    from benchmarks.servers import Server

_TOUCH_REQUESTS = 200
_POLL_SECONDS = 0.005


def time_start(server: Server, _: Generators) -> Sample:
    """Process start to the first 200 of a prediction, polled every 5 ms."""
    outcomes = server.wait_predicts(_POLL_SECONDS)
    return Sample({"start": time.monotonic() - server.started}, note=_outcomes(outcomes))


def _touch(server: Server, generators: Generators) -> int:
    """Let every worker serve something, so that it has the memory that it needs; returns the failures."""
    return generators.run(server, Load(connections=16, exact=True), 10.0, _TOUCH_REQUESTS).failures


def _scale(server: Server, workers: int) -> float:
    began = time.monotonic()
    server.manage("PUT", f"/models/{server.model}?min_worker={workers}&max_worker={workers}&synchronous=true")
    took = time.monotonic() - began
    if len(server.worker_pids()) != workers:
        raise BenchError(f"{server.installation.label}: {len(server.worker_pids())} of {workers} workers are ready")
    return took


def time_scale(server: Server, generators: Generators) -> Sample:
    """Seconds of the synchronous call that scales from 1 to 5 workers."""
    server.wait_predicts(_POLL_SECONDS)
    took = _scale(server, 5)
    return Sample({"scale": took}, failures=_touch(server, generators))


def _settled_pss(server: Server) -> float:
    """PSS in MB once two readings half a second apart agree within one per cent, or after ten seconds."""
    reading = server.tree.pss_mb()
    for _ in range(20):
        time.sleep(0.5)
        last, reading = reading, server.tree.pss_mb()
        if abs(reading - last) <= 0.01 * last:
            break
    return reading


def pss_per_worker(server: Server, generators: Generators) -> Sample:
    """Growth of the whole tree from 1 to 5 workers, all of which have served, divided by 4."""
    server.wait_predicts(_POLL_SECONDS)
    failures = _touch(server, generators)
    before = _settled_pss(server)
    _scale(server, 5)
    failures += _touch(server, generators)
    after = _settled_pss(server)
    note = f"{before:.0f} MB with 1 worker, {after:.0f} MB with 5"
    return Sample({"pss": (after - before) / 4}, failures, note=note)


def pss_idle(server: Server, _: Generators) -> Sample:
    """Memory of the whole tree after one prediction."""
    server.wait_predicts(_POLL_SECONDS)
    return Sample({"pss": _settled_pss(server)}, note=f"{len(server.tree.pids())} processes")


def time_recovery(server: Server, _: Generators) -> Sample:
    """Seconds from the SIGKILL of the worker to the arrival of the next 200."""
    server.wait_predicts(_POLL_SECONDS)
    (worker,) = server.worker_pids()
    if worker not in server.tree.pids():
        raise BenchError(f"{server.installation.label}: describe names pid {worker}, which is not the server's")
    os.kill(worker, signal.SIGKILL)
    killed = time.monotonic()
    outcomes = server.wait_predicts(_POLL_SECONDS)
    return Sample({"recovery": time.monotonic() - killed}, note=_outcomes(outcomes))


def _outcomes(outcomes: list[int | None]) -> str:
    kinds = list(dict.fromkeys(outcomes))
    return ", ".join(f"{outcomes.count(kind)} x {kind or 'no answer'}" for kind in kinds)
