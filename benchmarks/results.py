"""All samples of a run, their medians, and whether the targets were reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cases import Case
    from benchmarks.figures import Figure, Sample
    from benchmarks.servers import Installation

SUBJECT = "subject"
REFERENCE = "reference"


@dataclass
class CaseResult:
    """What one case gave.

    Args:
        case: The case.
        samples: One per round, by role.
        problems: Why a server could not be measured, by role.
    """

    case: Case
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def median(self, role: str, figure: Figure) -> float | None:
        """Median over the rounds; None when nothing was measured."""
        values = self.values(role, figure)
        return median(values) if values else None

    def values(self, role: str, figure: Figure) -> list[float]:
        """The figure in each round."""
        return [sample.values[figure.key] for sample in self.samples.get(role, [])]

    def ratio(self, figure: Figure) -> float | None:
        """Subject's median by the reference's; None when one is missing."""
        subject, reference = self.median(SUBJECT, figure), self.median(REFERENCE, figure)
        return subject / reference if subject is not None and reference else None

    def cpu(self, role: str) -> float | None:
        """Median CPU time per request in ms; None for cases without load."""
        costs = [s.cpu_per_request for s in self.samples.get(role, []) if s.cpu_per_request is not None]
        return median(costs) if costs else None

    def failures(self, role: str) -> int:
        """Failed requests in all rounds."""
        return sum(sample.failures for sample in self.samples.get(role, []))

    def verdict(self, figure: Figure) -> str:
        """``pass``, ``MISS``, or empty when nothing can be said; a subject with failed requests never passes."""
        subject = self.median(SUBJECT, figure)
        met = figure.met(subject, self.median(REFERENCE, figure)) if subject is not None else None
        if met is None:
            return ""
        return "pass" if met and not self.failures(SUBJECT) else "MISS"


@dataclass
class Run:
    """A whole run.

    Args:
        installations: What was compared, the subject first.
        results: One per case.
        facts: Date, machine and settings, as shown in the report.
    """

    installations: list[Installation]
    results: list[CaseResult] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything, for other programs."""
        return {
            "facts": self.facts,
            "installations": {i.role: {"name": i.name, "version": i.version} for i in self.installations},
            "cases": [_case_json(result, [i.role for i in self.installations]) for result in self.results],
        }


def _case_json(result: CaseResult, roles: list[str]) -> dict[str, Any]:
    figures = [
        {
            "key": figure.key,
            "label": figure.label,
            "unit": figure.unit,
            "more_is_better": figure.more_is_better,
            "median": {role: result.median(role, figure) for role in roles},
            "rounds": {role: result.values(role, figure) for role in roles},
            "ratio": result.ratio(figure),
            "target": figure.target_text() or None,
            "verdict": result.verdict(figure) or None,
        }
        for figure in result.case.figures
    ]
    return {
        "name": result.case.name,
        "title": result.case.title,
        "figures": figures,
        "cpu_ms_per_request": {role: result.cpu(role) for role in roles},
        "noise": {role: [sample.noise for sample in result.samples.get(role, [])] for role in roles},
        "failed_requests": {role: result.failures(role) for role in roles},
        "notes": {role: [sample.note for sample in result.samples.get(role, []) if sample.note] for role in roles},
        "problems": result.problems,
    }
