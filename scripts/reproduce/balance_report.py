"""Tables and figures of the balancing experiment: in the terminal, as JSON, as PNG and SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from gschedd.sim.figures import FORMATS
from gschedd.sim.report import curve
from scripts.reproduce.balance_runs import POLICIES, Run

#: Figures in tables: title, field of a run, digits.
FIGURES = (
    ("imbalance of CPU", "cpu_imbalance", 3),
    ("imbalance of memory", "memory_imbalance", 3),
    ("total completion, s", "makespan_s", 0),
    ("completion of a job, s", "completion_s", 0),
)
#: Figures that differ by less than this part are equal: the last job's length decides that much.
ROUNDING = 1e-3
RESOURCES = {"cpu": "CPU", "memory": "memory"}


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile, between the two nearest values in proportion."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def rows(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, float | str]]:
    """Return a row for each policy: the median and the middle half of each figure."""
    found: list[dict[str, float | str]] = []
    for policy, each in runs.items():
        row: dict[str, float | str] = {"policy": policy, "runs": len(each)}
        for _, field, _ in FIGURES:
            values = [float(getattr(run, field)) for run in each]
            row[field] = round(median(values), 4)
            row[f"{field}_q1"] = round(quantile(values, 0.25), 4)
            row[f"{field}_q3"] = round(quantile(values, 0.75), 4)
        row["failed"] = sum(run.failed for run in each)
        found.append(row)
    return found


class Against(NamedTuple):
    """One policy beside another on the same lists, in one figure: less is better.

    Attributes:
        ratio: of the first to the second on each list, the median.
        as_good: on how many lists the first was at least as good, but for `ROUNDING`.
    """

    ratio: float
    as_good: int


def against(runs: Mapping[str, Sequence[Run]], policy: str, other: str) -> dict[str, Against]:
    """Return how a policy compares with another, by figure; nothing if one was not run."""
    if policy not in runs or other not in runs:
        return {}
    found = {}
    for _, field, _ in FIGURES:
        pairs = zip(runs[policy], runs[other], strict=True)
        ratios = [getattr(one, field) / getattr(two, field) for one, two in pairs]
        found[field] = Against(median(ratios), sum(ratio <= 1 + ROUNDING for ratio in ratios))
    return found


def show_table(title: str, runs: Mapping[str, Sequence[Run]], console: Console) -> None:
    """Print one line for each policy."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for name, _, _ in FIGURES:
        table.add_column(name, justify="right")
    for row in rows(runs):
        cells = [_cell(row, field, digits) for _, field, digits in FIGURES]
        table.add_row(POLICIES[str(row["policy"])], *cells)
    console.print()
    console.print(table)
    console.print(
        "in brackets the middle half of the lists; below, ratios list by list: median, and on "
        "how many lists the first was at least as good",
        highlight=False,
    )
    failed = {policy: sum(run.failed for run in each) for policy, each in runs.items()}
    for policy, count in failed.items():
        if count:
            console.print(f"{POLICIES[policy]}: {count} jobs failed", highlight=False)
    for policy, other in (("paper", "torque"), ("balance", "torque"), ("balance", "paper")):
        found = against(runs, policy, other)
        parts = [
            f"{name.removesuffix(', s')} {found[field].ratio:.3f} "
            f"({found[field].as_good} of {len(runs[other])})"
            for name, field, _ in FIGURES
            if found
        ]
        if parts:
            text = f"{POLICIES[policy]} / {POLICIES[other]}: {', '.join(parts)}"
            console.print(text, highlight=False)


def _cell(row: Mapping[str, float | str], field: str, digits: int) -> str:
    value = f"{row[field]:.{digits}f}"
    if row["runs"] == 1:
        return value
    return f"{value} ({row[f'{field}_q1']:.{digits}f}-{row[f'{field}_q3']:.{digits}f})"


def show_curves(title: str, runs: Sequence[Run], console: Console) -> None:
    """Print the nodes' utilisation over time, the paper's figures, one line for each node."""
    unicode = console.encoding.lower().startswith("utf")
    for resource, name in RESOURCES.items():
        console.print(f"\n{title}: {name} used, 0 to 100 %", highlight=False, style="bold")
        longest = max(_steps(run) for run in runs)
        for run in runs:
            minutes = run.makespan_s / 60
            console.print(f"  {POLICIES[run.policy]}, {minutes:.1f} min", highlight=False)
            for node, curves in run.nodes.items():
                values = list(getattr(curves, resource))
                values += [0.0] * (longest - len(values))
                text = curve(values, most=1.0, unicode=unicode)
                console.print(f"    {node:<8}|{text}|", highlight=False)


def _steps(run: Run) -> int:
    return max(len(curves.cpu) for curves in run.nodes.values())


def draw_curves(name: str, runs: Sequence[Run], directory: Path) -> list[Path]:
    """Draw the nodes' utilisation over time, a row of panels for each policy; return the files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "gsched"  # the same figures give the same bytes
    figure = Figure(figsize=(11, 1.9 * len(runs) + 0.6), layout="constrained")
    axes = figure.subplots(len(runs), len(RESOURCES), sharex=True, sharey=True, squeeze=False)
    for run, panels in zip(runs, axes, strict=True):
        for (resource, label), panel in zip(RESOURCES.items(), panels, strict=True):
            for node, curves in run.nodes.items():
                values = getattr(curves, resource)
                minutes = [step * curves.step_s / 60 for step in range(len(values))]
                panel.step(minutes, [100 * v for v in values], where="post", label=node, lw=1)
            panel.set_title(f"{POLICIES[run.policy]}: {label}", fontsize="medium")
            panel.set_ylim(0, 105)
        panels[0].set_ylabel("% used")
    axes[0][0].legend(loc="upper right", fontsize="small")
    for panel in axes[-1]:
        panel.set_xlabel("minutes")
    paths = [directory / f"{name}.{suffix}" for suffix in FORMATS]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": "gsched"}
        figure.savefig(path, metadata=metadata)
    return paths
