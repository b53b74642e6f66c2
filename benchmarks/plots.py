"""Draws the run's pictures; the only part that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from benchmarks.results import REFERENCE, SUBJECT, CaseResult, Run

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.figures import Figure

_COLORS = {SUBJECT: "#1f6fd6", REFERENCE: "#a7adb5"}
_INK = "#3c4148"
_TARGET = "#c0392b"
_COLUMNS = 4
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "savefig.dpi": 150,
}


def draw(run: Run, out: Path) -> list[str]:
    """Write the pictures into ``out``.

    Returns:
        Their names; none when matplotlib is missing, which one line on the console says.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        print("No plots: matplotlib is not installed (pip install matplotlib).")
        return []
    mpl.use("agg")
    from matplotlib import pyplot as plt

    drawn = []
    with plt.rc_context(rc=cast("Any", _STYLE)):
        for name, picture in (("figures.png", _figures(plt, run)), ("ratios.png", _ratios(plt, run))):
            if picture is not None:
                picture.savefig(out / name, bbox_inches="tight", facecolor="white")
                plt.close(picture)
                drawn.append(name)
    return drawn


def _shown(run: Run) -> list[tuple[CaseResult, Figure]]:
    """The main figure of each case, and every other one with a target, as far as it was measured."""
    return [
        (result, figure)
        for result in run.results
        for position, figure in enumerate(result.case.figures)
        if (position == 0 or figure.target) and any(result.values(i.role, figure) for i in run.installations)
    ]


def _figures(plt: Any, run: Run) -> Any | None:
    """A panel per figure: a bar for each server's median, a dot for each round."""
    shown = _shown(run)
    if not shown:
        return None
    rows = -(-len(shown) // _COLUMNS)
    columns = min(_COLUMNS, len(shown))
    picture, axes = plt.subplots(
        rows, columns, figsize=(3.1 * columns, 2.5 * rows), squeeze=False, layout="constrained"
    )
    for panel in axes.flat[len(shown) :]:
        panel.axis("off")
    for panel, (result, figure) in zip(axes.flat, shown, strict=False):
        _panel(panel, run, result, figure)
    picture.suptitle(" and ".join(i.label for i in run.installations) + ": medians, with each round as a dot")
    return picture


def _panel(panel: Any, run: Run, result: CaseResult, figure: Figure) -> None:
    for position, installation in enumerate(run.installations):
        values, middle = result.values(installation.role, figure), result.median(installation.role, figure)
        if middle is None:
            continue
        panel.bar(position, middle, width=0.62, color=_COLORS[installation.role])
        panel.plot([position] * len(values), values, "o", color=_INK, markersize=3, alpha=0.7)
        panel.annotate(
            figure.show(middle), (position, max(values)), xytext=(0, 4), textcoords="offset points", ha="center"
        )
    if figure.target and not figure.target.relative:
        panel.axhline(figure.target.value, color=_TARGET, linewidth=1, linestyle="--")
    target = f" (target {figure.target_text()})" if figure.target else ""
    direction = "higher" if figure.more_is_better else "lower"
    panel.set_title(f"{result.case.name}{target}\n{figure.label}, {direction} is better", fontsize=9, loc="left")
    panel.set_xticks(range(len(run.installations)), [i.label for i in run.installations])
    panel.set_xlim(-0.6, len(run.installations) - 0.4)
    panel.margins(y=0.18)
    panel.yaxis.set_major_locator(_ticks())


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _ratios(plt: Any, run: Run) -> Any | None:
    """How many times better the subject is, on a logarithmic axis, with each relative target as a tick."""
    rows = [(result, figure, ratio) for result, figure in _shown(run) if (ratio := result.ratio(figure))]
    if not rows:
        return None
    picture, axes = plt.subplots(figsize=(8.5, 0.42 * len(rows) + 1.3), layout="constrained")
    for position, (_, figure, ratio) in enumerate(rows):
        better = ratio if figure.more_is_better else 1 / ratio
        axes.barh(position, better - 1, left=1, height=0.6, color=_COLORS[SUBJECT])
        axes.annotate(
            f"{better:.1f}x", (max(better, 1), position), xytext=(5, 0), textcoords="offset points", va="center"
        )
        if figure.target and figure.target.relative:
            bound = figure.target.value if figure.more_is_better else 1 / figure.target.value
            label = "target" if "target" not in axes.get_legend_handles_labels()[1] else None
            axes.plot([bound, bound], [position - 0.4, position + 0.4], color=_TARGET, linewidth=2, label=label)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color=_INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{result.case.name}: {figure.label}" for result, figure, _ in rows])
    axes.invert_yaxis()
    names = {i.role: i.label for i in run.installations}
    axes.set_xlabel(f"times better than {names[REFERENCE]}")
    axes.set_title(f"{names[SUBJECT]} against {names[REFERENCE]}", loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False)
    return picture
