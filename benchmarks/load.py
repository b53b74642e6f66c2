"""Drives the load generators, wrk and our own two in C, and meters what they cost the server."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchError
from benchmarks.grpc_load import GrpcLoad
from benchmarks.procs import machine_cpu

if TYPE_CHECKING:
    from benchmarks.servers import Server

_HERE = Path(__file__).parent
_QUIET_SHARE = 0.10
_GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class Load:
    """What one run of an HTTP load generator sends.

    Args:
        connections: Keep-alive connections, each with one request at a time.
        exact: Needs loadgen.c: latencies to the microsecond, or answers checked.
        body_bytes: Size of the request's body. Above 1 it is random, and each answer must be equal to it.
        chunks: Each answer must come in this many chunks.
    """

    connections: int
    exact: bool = False
    body_bytes: int = 1
    chunks: int | None = None


@dataclass(frozen=True)
class LoadResult:
    """What came back; times in ms.

    Args:
        requests: Complete answers.
        seconds: How long the load lasted.
        failures: Answers that were not 2xx, or not OK, or not as expected, broken connections, timeouts.
        mean: Mean latency.
        p50: Median latency; p99 and longest likewise.
        chunks: Chunks received, of gRPC messages (not by wrk).
        first_byte: Median time to the first byte of the body, of gRPC to the first message (not by wrk).
        cpu_per_request: CPU time of the server's process tree per answer.
        noise: Share of the machine's CPU time that neither the server nor the load generator used.
    """

    requests: int
    seconds: float
    failures: int
    mean: float
    p50: float
    p99: float
    longest: float
    chunks: int
    first_byte: float
    cpu_per_request: float
    noise: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


class Generators:
    """The load generators of this machine.

    Args:
        cache: Folder for the compiled generators, and for what they send and expect.
        choice: ``wrk`` or ``c``: which one sends plain one-byte requests.

    Raises:
        BenchError: wrk or a C compiler is missing.
    """

    def __init__(self, cache: Path, choice: str) -> None:
        self._wrk = _find("wrk", "wrk") if choice == "wrk" else None
        self._loadgen = _compile(cache, "loadgen")
        self._grpcgen = _compile(cache, "grpcgen")
        self._cache = cache

    def run(self, server: Server, load: Load | GrpcLoad, seconds: float, requests: int = 0) -> LoadResult:
        """Load the server for ``seconds``, or until ``requests`` answers came (not with wrk; 0: no such limit).

        Raises:
            BenchError: The generator failed or did not end in time.
        """
        if isinstance(load, GrpcLoad):
            command = [*self._grpc_command(server, load), "-d", str(seconds), "-n", str(requests)]
            command += [str(server.grpc_port), load.path]
        elif self._wrk and not (load.exact or requests):
            command = [self._wrk, "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
            command += ["-s", str(_HERE / "wrk.lua"), f"http://127.0.0.1:{server.port}{server.path}"]
        else:
            command = [str(self._loadgen), "-c", str(load.connections), "-d", str(seconds), "-n", str(requests)]
            if load.body_bytes > 1:
                command += ["-e", "-t", "application/octet-stream", "-b", str(self._body(load.body_bytes))]
            command += ["-k", str(load.chunks)] if load.chunks else []
            command += [str(server.port), server.path]
        return _metered(server, command, seconds + _GRACE_SECONDS)

    def _grpc_command(self, server: Server, load: GrpcLoad) -> list[str]:
        request, answer = self._cache / "grpc-request", self._cache / "grpc-answer"
        request.write_bytes(load.request(server.model))
        answer.write_bytes(load.answer())
        sizes = ["-c", str(load.connections), "-s", str(load.streams)]
        return [str(self._grpcgen), *sizes, "-b", str(request), "-e", str(answer)]

    def _body(self, size: int) -> Path:
        path = self._cache / f"body-{size}"
        if not path.is_file() or path.stat().st_size != size:
            path.write_bytes(os.urandom(size))
        return path


def _metered(server: Server, command: list[str], limit: float) -> LoadResult:
    machine, tree, own = machine_cpu(), server.tree.cpu_seconds(), _own_cpu()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{Path(command[0]).name} did not end within {limit:.0f} s") from error
    used, now = server.tree.cpu_seconds() - tree, machine_cpu()
    strangers = (now.busy - machine.busy) - used - (_own_cpu() - own)
    lines = [line.removeprefix("JSON ") for line in done.stdout.splitlines() if line.startswith(("JSON ", "{"))]
    if done.returncode != 0 or not lines:
        raise BenchError(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
    raw: dict[str, float] = json.loads(lines[-1])
    requests = int(raw["requests"])
    failures = sum(int(raw.get(kind, 0)) for kind in ("non_2xx", "not_ok", "bad", "errors"))
    if failures and done.stderr:
        print(done.stderr.strip(), file=sys.stderr)
    return LoadResult(
        requests=requests,
        seconds=raw["seconds"],
        failures=failures,
        mean=raw["mean_us"] / 1000,
        p50=raw["p50_us"] / 1000,
        p99=raw["p99_us"] / 1000,
        longest=raw["max_us"] / 1000,
        chunks=int(raw.get("messages", raw.get("chunks", 0))),
        first_byte=raw.get("first_message_p50_us", raw.get("first_byte_p50_us", 0)) / 1000,
        cpu_per_request=used * 1000 / max(1, requests + int(raw.get("late", 0))),
        noise=max(0.0, strangers / max(0.01, now.total - machine.total)),
    )


def _own_cpu() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_quiet(limit: float) -> None:
    """Wait, at most ``limit`` seconds, until the rest of the machine uses under a tenth of its CPU time."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        before = machine_cpu()
        time.sleep(0.25)
        after = machine_cpu()
        if after.busy - before.busy < _QUIET_SHARE * (after.total - before.total):
            return


def _find(command: str, package: str) -> str:
    path = shutil.which(command)
    if path is None:
        raise BenchError(f"{command} is not installed; on Debian and Ubuntu: apt-get install {package}")
    return path


def _compile(cache: Path, name: str) -> Path:
    source, target = _HERE / f"{name}.c", cache / name
    newest = max(path.stat().st_mtime for path in (source, *_HERE.glob("*.h")))
    if target.is_file() and target.stat().st_mtime > newest:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    command = [_find("cc", "gcc libc6-dev"), "-O2", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise BenchError(f"cannot compile {source.name}: {done.stderr}")
    return target
