"""Figures of a run as PNG and SVG; needs matplotlib (the extra ``figures``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gschedd.sim.measure import quantile
from gschedd.sim.recorder import Summary


class Panel(Struct, frozen=True):
    """One of the panels: which series it shows, what is written beside it, and its scale.

    Attributes:
        is_share: of all there is, so that it is shown in per cent, from none to all.
    """

    series: str
    label: str
    is_share: bool = False


PANELS: Final = (
    Panel("cpu", "CPUs used (%)", is_share=True),
    Panel("memory", "memory used (%)", is_share=True),
    Panel("gpu", "GPUs used (%)", is_share=True),
    Panel("cpu_imbalance", "imbalance of CPUs\n(deviation / mean)"),
    Panel("waiting", "jobs waiting"),
)
FORMATS: Final = ("png", "svg")
PNG_DPI: Final = 150
#: Told apart by most who are colour-blind, and by brightness.
#: Source: Okabe & Ito, Color universal design, 2008; without its yellow, too pale for a line.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
STYLES: Final = ("-", "--", "-", "-.")
#: An imbalance is cut off above what it is below for nearly all of the time: the few jobs of the
#: first and the last minutes would make a flat line of everything else.
MOSTLY: Final = 0.9
HEADROOM: Final = 1.5
DAYS_FROM_H: Final = 72.0  # longer spans of time are told in days


def draw(summaries: Sequence[Summary], directory: Path) -> list[Path]:
    """Draw one curve for each policy in each panel that has anything to show; return the files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "gsched"  # the same figures give the same bytes
    shown = [panel for panel in PANELS if any(any(_values(s, panel)) for s in summaries)]
    shown = shown or [PANELS[0]]
    unit, unit_s = _unit(summaries)
    figure = Figure(figsize=(9, 0.6 + 1.9 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for panel, axis in zip(shown, axes, strict=True):
        for number, summary in enumerate(summaries):
            values = _values(summary, panel)
            step = summary.over_time.step_s / unit_s
            axis.step(
                [index * step for index in range(len(values))],
                values,
                where="post",
                label=summary.policy,
                linewidth=1.3,
                color=COLOURS[number % len(COLOURS)],
                linestyle=STYLES[number % len(STYLES)],
            )
        axis.set_ylabel(panel.label)
        axis.set_ylim(0, _top(panel, summaries))
        axis.grid(visible=True, linewidth=0.4, alpha=0.5)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"time since the first submission ({unit})")
    axes[-1].set_xlim(left=0)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
    paths = [directory / f"over-time.{suffix}" for suffix in FORMATS]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": "gsched"}
        figure.savefig(path, metadata=metadata, dpi=PNG_DPI)
    return paths


def _values(summary: Summary, panel: Panel) -> list[float]:
    values: list[float] = getattr(summary.over_time, panel.series)
    return [100 * value for value in values] if panel.is_share else values


def _top(panel: Panel, summaries: Sequence[Summary]) -> float | None:
    """Return where a panel ends at the top; None: where its highest curve does."""
    if panel.is_share:
        return 105.0
    if panel.series != "cpu_imbalance":
        return None
    mostly = max(quantile(sorted(filter(None, _values(each, panel))), MOSTLY) for each in summaries)
    return HEADROOM * mostly or None


def _unit(summaries: Sequence[Summary]) -> tuple[str, float]:
    """Return the unit of time, and how many seconds that is."""
    longest_s = max(len(each.over_time.cpu) * each.over_time.step_s for each in summaries)
    return ("days", 86400.0) if longest_s > DAYS_FROM_H * 3600 else ("hours", 3600.0)
