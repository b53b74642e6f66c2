"""Numbers: what they are called, what they have to reach, and what one measurement gave."""

from __future__ import annotations

from dataclasses import dataclass

NOISY = 0.10  # share of the machine's CPU time


@dataclass(frozen=True)
class Target:
    """A bound for a figure: from below where more is better, else from above.

    Args:
        value: The bound.
        relative: It holds for subject / reference, not for the subject's own figure.
    """

    value: float
    relative: bool = False


@dataclass(frozen=True)
class Figure:
    """One number of a case.

    Args:
        key: Its name in the case's samples.
        label: Its name for people.
        unit: Unit, after the number.
        digits: Decimals shown.
        more_is_better: Direction.
        target: What it has to reach, if anything.
    """

    key: str
    label: str
    unit: str
    digits: int
    more_is_better: bool
    target: Target | None = None

    def show(self, value: float) -> str:
        """The number with its unit."""
        return f"{value:,.{self.digits}f} {self.unit}"

    def target_text(self) -> str:
        """The target for people, such as ``≥ 8x`` or ``≤ 0.5 s``; empty without one."""
        if self.target is None:
            return ""
        bound = f"{self.target.value:g}x" if self.target.relative else f"{self.target.value:,g} {self.unit}"
        return f"{'≥' if self.more_is_better else '≤'} {bound}"

    def met(self, subject: float, reference: float | None) -> bool | None:
        """Whether the target is reached; None without a target, or when it takes a reference and there is none."""
        if self.target is None or (self.target.relative and not reference):
            return None
        measured = subject / reference if self.target.relative and reference else subject
        return measured >= self.target.value if self.more_is_better else measured <= self.target.value


@dataclass(frozen=True)
class Sample:
    """One measurement of one server.

    Args:
        values: Figures by key.
        failures: Requests that did not get the expected answer.
        cpu_per_request: CPU time of the process tree per request in ms, for load cases.
        noise: Share of the machine's CPU time taken by strangers, for load cases.
        note: What else was seen.
    """

    values: dict[str, float]
    failures: int = 0
    cpu_per_request: float | None = None
    noise: float | None = None
    note: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether strangers took more of the CPU time than a clean measurement allows."""
        return (self.noise or 0) > NOISY
