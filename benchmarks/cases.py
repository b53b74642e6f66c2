"""What is measured, and what each figure has to reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks import cold
from benchmarks.figures import Figure, Sample, Target
from benchmarks.grpc_load import GrpcLoad
from benchmarks.load import Generators, Load, LoadResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.servers import Server


@dataclass(frozen=True)
class Case:
    """A measurement with its figures, the main one first.

    Args:
        name: What ``--only`` selects.
        title: One line for people.
        archive: The archive to serve.
        figures: What comes out.
        load: The load of a warm server; None for a case that needs a fresh server each time.
        measure: How a fresh server is measured; it was started just before.
    """

    name: str
    title: str
    archive: str
    figures: tuple[Figure, ...]
    load: Load | GrpcLoad | None = None
    measure: Callable[[Server, Generators], Sample] | None = field(default=None, repr=False)


def _rate(target: Target | None = None) -> Figure:
    return Figure("rate", "requests/s", "req/s", 0, more_is_better=True, target=target)


def _calls(target: Target | None = None) -> Figure:
    return Figure("rate", "calls/s", "/s", 0, more_is_better=True, target=target)


def _messages(target: Target) -> Figure:
    return Figure("chunk_rate", "messages/s", "/s", 0, more_is_better=True, target=target)


def _mean(target: Target | None = None) -> Figure:
    return Figure("mean", "mean", "ms", 3, more_is_better=False, target=target)


def _first_message(target: Target | None = None) -> Figure:
    return Figure("first_byte", "first message", "ms", 3, more_is_better=False, target=target)


def _p50(target: Target | None = None) -> Figure:
    return Figure("p50", "p50", "ms", 3, more_is_better=False, target=target)


_P99 = Figure("p99", "p99", "ms", 2, more_is_better=False)
_OK = (b"ok",)
_CHUNKS = tuple(b"chunk%04d" % number for number in range(2000))


def sample_of(result: LoadResult) -> Sample:
    """The figures of one run of a load generator; a run without any answer is a failure."""
    values = {
        "rate": result.rate,
        "mean": result.mean,
        "p50": result.p50,
        "p99": result.p99,
        "chunk_rate": result.chunks / result.seconds,
        "first_byte": result.first_byte,
    }
    failures = result.failures if result.requests else max(1, result.failures)
    return Sample(values, failures, result.cpu_per_request, result.noise)


CASES = (
    Case(
        "noop-c64",
        "handler that does nothing, 64 connections",
        "noop",
        (_rate(Target(8, relative=True)), _p50(), _P99),
        Load(64),
    ),
    Case("noop-c8", "handler that does nothing, 8 connections", "noop", (_rate(), _p50(), _P99), Load(8)),
    Case(
        "noop-c1",
        "handler that does nothing, 1 connection",
        "noop",
        (_p50(Target(0.4, relative=True)), _P99, _rate()),
        Load(1, exact=True),
    ),
    Case(
        "noop-b8-c64",
        "handler that does nothing, batch size 8, 64 connections",
        "noop_b8",
        (_rate(Target(3, relative=True)), _p50(), _P99),
        Load(64),
    ),
    Case(
        "sleep-b8-c1",
        "5 ms of sleep per batch of up to 8, delay 100 ms, a lone client",
        "sleep_b8",
        (_p50(Target(8)), _P99, _rate()),
        Load(1, exact=True),
    ),
    Case(
        "sleep-b8-c64",
        "5 ms of sleep per batch of 8, 64 connections (limit: 1,600/s)",
        "sleep_b8",
        (_rate(Target(0.95 * 1600)), _p50(), _P99),
        Load(64),
    ),
    Case(
        "echo-1mb",
        "bodies of 1 MB sent back, 8 connections",
        "echo",
        (_rate(Target(2, relative=True)), _p50(), _P99),
        Load(8, exact=True, body_bytes=1_000_000),
    ),
    Case(
        "stream-2000",
        "HTTP stream of 2,000 chunks of 9 bytes to one client",
        "stream",
        (
            Figure("chunk_rate", "chunks/s", "/s", 0, True, Target(1.5, relative=True)),
            Figure("first_byte", "first byte", "ms", 3, False, Target(0.5, relative=True)),
        ),
        Load(1, exact=True, chunks=2000),
    ),
    Case(
        "grpc-c64",
        "gRPC, handler that does nothing, 64 streams on 1 connection",
        "noop",
        (_calls(Target(3.5, relative=True)), _p50(), _P99),
        GrpcLoad("Predictions", _OK, streams=64),
    ),
    Case(
        "grpc-64x1",
        "gRPC, handler that does nothing, 64 connections",
        "noop",
        (_calls(), _p50(), _P99),
        GrpcLoad("Predictions", _OK, connections=64),
    ),
    Case(
        "grpc-c1",
        "gRPC, handler that does nothing, 1 stream",
        "noop",
        (_mean(Target(0.7, relative=True)), _p50(), _P99, _calls()),
        GrpcLoad("Predictions", _OK),
    ),
    Case(
        "grpc-b8-c64",
        "gRPC, handler that does nothing, batch size 8, delay 5 ms, 64 streams on 1 connection",
        "noop_b8_d5",
        (_calls(Target(1, relative=True)), _p50(), _P99),
        GrpcLoad("Predictions", _OK, streams=64),
    ),
    Case(
        "grpc-stream-c1",
        "gRPC stream of 2,000 messages of 9 bytes to one client",
        "stream",
        (_messages(Target(1, relative=True)), _first_message(Target(0.5, relative=True))),
        GrpcLoad("StreamPredictions", _CHUNKS),
    ),
    Case(
        "grpc-stream-c16",
        "gRPC streams of 2,000 messages of 9 bytes to 16 clients",
        "stream",
        (_messages(Target(1.5, relative=True)), _first_message()),
        GrpcLoad("StreamPredictions", _CHUNKS, connections=16),
    ),
    Case(
        "start-torch",
        "torch handler: process start to first 200",
        "torch_linear",
        (Figure("start", "time", "s", 3, False, Target(0.6, relative=True)),),
        measure=cold.time_start,
    ),
    Case(
        "scale-1-5",
        "torch handler: 1 to 5 workers, synchronous call",
        "torch_linear",
        (Figure("scale", "time", "s", 3, False, Target(0.5)),),
        measure=cold.time_scale,
    ),
    Case(
        "pss-worker",
        "torch handler: memory added per worker, 1 to 5 workers",
        "torch_linear",
        (Figure("pss", "PSS", "MB", 1, False, Target(60)),),
        measure=cold.pss_per_worker,
    ),
    Case(
        "pss-idle",
        "idle server with one worker that does nothing: memory of all processes",
        "noop",
        (Figure("pss", "PSS", "MB", 1, False, Target(0.5, relative=True)),),
        measure=cold.pss_idle,
    ),
    Case(
        "kill-recovery",
        "worker killed with SIGKILL: time to the next 200",
        "noop",
        (Figure("recovery", "time", "s", 3, False, Target(0.5)),),
        measure=cold.time_recovery,
    ),
)
