"""Drives the load generators, wrk and our own loadgen.c, and meters what they cost the server."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchError
from benchmarks.procs import machine_cpu

if TYPE_CHECKING:
    from benchmarks.servers import Server

_HERE = Path(__file__).parent
_QUIET_SHARE = 0.10
_GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class Load:
    """What one run of a load generator sends.

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
        failures: Answers that were not 2xx or not as expected, broken connections, timeouts.
        p50: Median latency; p99 and longest likewise.
        chunks: Chunks received (loadgen.c alone).
        first_byte: Median time to the first byte of the body (loadgen.c alone).
        cpu_per_request: CPU time of the server's process tree per answer.
        noise: Share of the machine's CPU time that neither the server nor the load generator used.
    """

    requests: int
    seconds: float
    failures: int
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
        cache: Folder for the compiled loadgen.
        choice: ``wrk`` or ``c``: which one sends plain one-byte requests.

    Raises:
        BenchError: wrk or a C compiler is missing.
    """

    def __init__(self, cache: Path, choice: str) -> None:
        self._wrk = _find("wrk", "wrk") if choice == "wrk" else None
        self._loadgen = _compile(cache)
        self._cache = cache

    def run(self, server: Server, load: Load, seconds: float, requests: int = 0) -> LoadResult:
        """Load the server for ``seconds``, or until ``requests`` answers came (loadgen.c alone; 0: no such limit).

        Raises:
            BenchError: The generator failed or did not end in time.
        """
        if self._wrk and not (load.exact or requests):
            command = [self._wrk, "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
            command += ["-s", str(_HERE / "wrk.lua"), f"http://127.0.0.1:{server.port}{server.path}"]
        else:
            command = [str(self._loadgen), "-c", str(load.connections), "-d", str(seconds), "-n", str(requests)]
            if load.body_bytes > 1:
                command += ["-e", "-t", "application/octet-stream", "-b", str(self._body(load.body_bytes))]
            command += ["-k", str(load.chunks)] if load.chunks else []
            command += [str(server.port), server.path]
        return _metered(server, command, seconds + _GRACE_SECONDS)

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
    return LoadResult(
        requests=requests,
        seconds=raw["seconds"],
        failures=int(raw["non_2xx"] + raw["errors"] + raw.get("bad", 0)),
        p50=raw["p50_us"] / 1000,
        p99=raw["p99_us"] / 1000,
        longest=raw["max_us"] / 1000,
        chunks=int(raw.get("chunks", 0)),
        first_byte=raw.get("first_byte_p50_us", 0) / 1000,
        cpu_per_request=used * 1000 / max(1, requests),
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


def _compile(cache: Path) -> Path:
    source, target = _HERE / "loadgen.c", cache / "loadgen"
    if target.is_file() and target.stat().st_mtime > source.stat().st_mtime:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    command = [_find("cc", "gcc libc6-dev"), "-O2", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise BenchError(f"cannot compile loadgen.c: {done.stderr}")
    return target
