"""The command line, and the order in which two servers are measured."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from benchmarks import plots, report
from benchmarks.archives import pack
from benchmarks.cases import CASES, Case, sample_of
from benchmarks.errors import BenchError
from benchmarks.load import Generators, wait_quiet
from benchmarks.procs import machine_text
from benchmarks.results import REFERENCE, SUBJECT, CaseResult, Run
from benchmarks.servers import Installation, Server, find_installation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.figures import Sample

_READY_POLL_SECONDS = 0.02
_REWARM_SECONDS = 0.5


class Bench:
    """Measures cases, one after the other.

    Args:
        run: Where the results go.
        store: Folder with the packed archives.
        generators: The load generators.
        options: The command line's options.
    """

    def __init__(self, run: Run, store: Path, generators: Generators, options: argparse.Namespace) -> None:
        self._run = run
        self._store = store
        self._generators = generators
        self._options = options
        self._started_once: set[str] = set()

    def measure(self, case: Case) -> None:
        """Measure one case on all servers; what fails is noted and the rest goes on."""
        result = CaseResult(case)
        self._run.results.append(result)
        if case.load is not None:
            self._measure_warm(case, result)
        else:
            self._measure_cold(case, result)
        for figure in case.figures:
            ratio = result.ratio(figure)
            line = " against ".join(
                figure.show(value)
                for i in self._run.installations
                if (value := result.median(i.role, figure)) is not None
            )
            tail = f", ratio {ratio:.2f}" if ratio is not None else ""
            verdict = result.verdict(figure)
            _say(f"    = {figure.label}: {line or 'nothing measured'}{tail}" + (f"  {verdict}" if verdict else ""))

    def _measure_warm(self, case: Case, result: CaseResult) -> None:
        """Both servers stay up through all rounds, warmed once; the one that is not measured is frozen."""
        with contextlib.ExitStack() as stack:
            servers: list[Server] = []
            for installation in self._run.installations:
                with self._noting(result, installation):
                    server = stack.enter_context(Server(installation, self._store, case.archive))
                    servers.append(server)
                    try:
                        server.wait_predicts(_READY_POLL_SECONDS)
                        self._load(case, server, self._options.warmup)
                    finally:
                        server.freeze()
            for number in range(self._options.rounds):
                for server in servers:
                    if server.installation.role in result.problems:
                        continue
                    with self._noting(result, server.installation):
                        self._round(result, server, number, lambda s: self._warm_sample(case, s))

    def _warm_sample(self, case: Case, server: Server) -> Sample:
        """The first clean measurement, or the least disturbed one when all attempts were noisy."""
        samples: list[Sample] = []
        while not samples or (samples[-1].disturbed and len(samples) <= self._options.retries):
            samples.append(self._turn(case, server))
        return min(samples, key=lambda sample: sample.noise or 0)

    def _turn(self, case: Case, server: Server) -> Sample:
        wait_quiet(self._options.quiet)
        server.thaw()
        try:
            self._load(case, server, _REWARM_SECONDS)
            return self._load(case, server, self._options.seconds)
        finally:
            server.freeze()

    def _load(self, case: Case, server: Server, seconds: float) -> Sample:
        if case.load is None:
            raise BenchError(f"{case.name} has no load")
        return sample_of(self._generators.run(server, case.load, seconds))

    def _measure_cold(self, case: Case, result: CaseResult) -> None:
        """Each round starts a server anew; never more than one runs."""
        for number in range(self._options.rounds):
            for installation in self._run.installations:
                if installation.role in result.problems:
                    continue
                with self._noting(result, installation):
                    self._start_once(installation, case)
                    wait_quiet(self._options.quiet)
                    with Server(installation, self._store, case.archive) as server:
                        self._round(result, server, number, lambda s: self._cold_sample(case, s))

    def _cold_sample(self, case: Case, server: Server) -> Sample:
        if case.measure is None:
            raise BenchError(f"{case.name} has nothing to measure")
        return case.measure(server, self._generators)

    def _start_once(self, installation: Installation, case: Case) -> None:
        """A start that does not count, so that both find their files in the page cache."""
        if installation.role in self._started_once:
            return
        self._started_once.add(installation.role)
        with Server(installation, self._store, case.archive) as server:
            server.wait_predicts(_READY_POLL_SECONDS)

    def _round(self, result: CaseResult, server: Server, number: int, take: Callable[[Server], Sample]) -> None:
        sample = take(server)
        result.samples.setdefault(server.installation.role, []).append(sample)
        parts = [f"{figure.label} {figure.show(sample.values[figure.key])}" for figure in result.case.figures]
        if sample.cpu_per_request is not None and sample.noise is not None:
            parts.append(f"cpu {sample.cpu_per_request:.3f} ms/req, noise {sample.noise:.2f}")
        parts += [f"{sample.failures} FAILED"] if sample.failures else []
        parts += [sample.note] if sample.note else []
        _say(f"    {number + 1}/{self._options.rounds} {server.installation.label:<22} {', '.join(parts)}")

    @contextlib.contextmanager
    def _noting(self, result: CaseResult, installation: Installation) -> Iterator[None]:
        try:
            yield
        except BenchError as error:
            result.problems[installation.role] = str(error)
            _say(f"    {installation.label}: not measured: {error}")


def _say(text: str) -> None:
    print(text, flush=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--subject", type=Path, metavar="VENV", default=Path(sys.prefix), help="default: this Python's")
    parser.add_argument("--reference", type=Path, metavar="VENV", help="a venv with the torchserve to compare with")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("bench-out"), help="default: %(default)s")
    parser.add_argument("--only", metavar="NAME,NAME", help=f"of: {', '.join(case.name for case in CASES)}")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each server per case (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="length of one load measurement (%(default)g)")
    parser.add_argument("--warmup", type=float, default=8, help="seconds of load before the first round (%(default)g)")
    parser.add_argument("--quiet", type=float, default=5, help="longest wait for an idle machine, in s (%(default)g)")
    parser.add_argument("--retries", type=int, default=2, help="repeats of a disturbed load measurement (%(default)s)")
    parser.add_argument("--loadgen", choices=("wrk", "c"), default="wrk", help="for plain requests (%(default)s)")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [case.name for case in CASES]
    unknown = sorted(set(names) - {case.name for case in CASES})
    if unknown or options.rounds < 1:
        parser.error(f"unknown case: {', '.join(unknown)}" if unknown else "--rounds must be at least 1")
    options.cases = [case for case in CASES if case.name in names]
    return options


def _facts(options: argparse.Namespace) -> dict[str, str]:
    shown = ["--subject", "VENV", *(["--reference", "VENV"] if options.reference else [])]
    shown += [f"--{key}={getattr(options, key):g}" for key in ("rounds", "seconds", "warmup", "retries")]
    shown += [f"--loadgen={options.loadgen}", *([f"--only={options.only}"] if options.only else [])]
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine_text(),
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "command": f"`python -m benchmarks {shlex.join(shown)}`",
    }


def _stop(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _bench(options: argparse.Namespace) -> int:
    began = time.monotonic()
    out: Path = options.out.resolve()
    installations = [find_installation(options.subject.absolute(), SUBJECT)]
    if options.reference:
        installations.append(find_installation(options.reference.absolute(), REFERENCE))
    if len({i.label for i in installations}) < len(installations):
        installations = [replace(i, version=f"{i.version} ({i.role})") for i in installations]
    generators = Generators(out / "cache", options.loadgen)
    store = out / "cache" / "store"
    pack(installations[0].venv, store, {case.archive for case in options.cases})
    run = Run(installations, facts=_facts(options))
    bench = Bench(run, store, generators, options)
    _say(f"{' against '.join(i.label for i in installations)} on {run.facts['machine']}")
    for number, case in enumerate(options.cases, 1):
        _say(f"[{number}/{len(options.cases)}] {case.name}: {case.title}")
        bench.measure(case)
    run.facts["duration"] = f"{(time.monotonic() - began) / 60:.1f} minutes"
    report.write(run, out, plots.draw(run, out))
    _say(f"\n{report.text_table(report.table(run))}\n\n{report.summary(run)}\n{out / 'report.md'}")
    return 1 if any(result.problems for result in run.results) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load tests.

    Args:
        arguments: Command line without the program's name; by default the process's own.

    Returns:
        0 when everything was measured, whether targets were reached or not; 1 otherwise.
    """
    options = _arguments(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _bench(options)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
