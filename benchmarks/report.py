"""Writes a run as report.md and report.json, and as the table at the end of the console's output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.figures import NOISY
from benchmarks.results import REFERENCE, SUBJECT, CaseResult, Run

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.figures import Figure

_DASH = "-"


def table(run: Run) -> list[list[str]]:
    """Rows of medians, header first: one per figure of each case."""
    compared = len(run.installations) > 1
    header = ["case", "figure", *(i.label for i in run.installations), *(["ratio"] if compared else [])]
    rows = [[*header, "target", "verdict", *(f"CPU/req {i.name}" for i in run.installations)]]
    for result in run.results:
        for position, figure in enumerate(result.case.figures):
            rows.append(_row(run, result, figure, first=position == 0))
    return rows


def _row(run: Run, result: CaseResult, figure: Figure, *, first: bool) -> list[str]:
    row = [result.case.name if first else "", figure.label]
    for installation in run.installations:
        value = result.median(installation.role, figure)
        row.append(figure.show(value) if value is not None else "failed")
    if len(run.installations) > 1:
        ratio = result.ratio(figure)
        row.append(f"{ratio:.2f}x" if ratio is not None else _DASH)
    row += [figure.target_text() or _DASH, result.verdict(figure)]
    for installation in run.installations:
        cost = result.cpu(installation.role)
        row.append(f"{cost:.3f} ms" if first and cost is not None else "")
    return row


def text_table(rows: list[list[str]]) -> str:
    """Rows in columns of equal width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def _details(run: Run) -> list[str]:
    rows = [["case", "server", "figure by round", "noise", "failed requests", "seen"]]
    for result in run.results:
        for installation in run.installations:
            samples = result.samples.get(installation.role, [])
            figure = result.case.figures[0]
            by_round = " · ".join(figure.show(value) for value in result.values(installation.role, figure))
            noise = " · ".join(f"{s.noise:.2f}" for s in samples if s.noise is not None)
            seen = [*dict.fromkeys(s.note for s in samples if s.note)]
            seen += ["could not be measured, see below"] if installation.role in result.problems else []
            failed = str(result.failures(installation.role))
            cells = [result.case.name, installation.label, by_round, noise, failed, "; ".join(seen)]
            rows.append([cell or _DASH for cell in cells])
    return _markdown(rows)


def _problems(run: Run) -> list[str]:
    lines = []
    for result in run.results:
        for role, problem in result.problems.items():
            lines += ["", f"**{result.case.name}, {role}**", "", "```", problem, "```"]
    return ["", "## What could not be measured", *lines] if lines else []


def summary(run: Run) -> str:
    """One sentence: how many targets were reached."""
    verdicts = [result.verdict(figure) for result in run.results for figure in result.case.figures]
    judged = [verdict for verdict in verdicts if verdict]
    noisy = [
        result.case.name
        for result in run.results
        if any(sample.disturbed for samples in result.samples.values() for sample in samples)
    ]
    text = f"{judged.count('pass')} of {len(judged)} targets reached" if judged else "No target to judge"
    if noisy:
        text += f"; other processes disturbed {', '.join(noisy)} (noise above {NOISY:g})"
    return text + "."


def write(run: Run, out: Path, plots: list[str]) -> None:
    """Write ``report.json`` and ``report.md`` into ``out``; ``plots`` are the names of pictures to show."""
    (out / "report.json").write_text(json.dumps(run.to_json(), indent=2, ensure_ascii=False) + "\n")
    names = {i.role: i.label for i in run.installations}
    title = " against ".join(names[role] for role in (SUBJECT, REFERENCE) if role in names)
    lines = [f"# {title}", "", summary(run), ""]
    lines += [f"- {name}: {value}" for name, value in run.facts.items()]
    lines += ["", "Medians over the rounds; CPU/req is the CPU time of all the server's processes per request.", ""]
    lines += _markdown(table(run))
    for plot in plots:
        lines += ["", f"![{plot.removesuffix('.png')}]({plot})"]
    lines += ["", "## Cases", ""]
    lines += [f"- **{result.case.name}**: {result.case.title}" for result in run.results]
    lines += ["", "## Rounds", ""]
    lines += ["Noise is the share of the machine's CPU time taken by other processes during the measurement.", ""]
    lines += [*_details(run), *_problems(run), ""]
    (out / "report.md").write_text("\n".join(lines))
