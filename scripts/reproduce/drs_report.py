"""What the DRS experiments came to: tables beside the published figures, JSON and drawings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from rich.console import Console
from rich.table import Table

from scripts.reproduce.drs_runs import Outcome
from scripts.reproduce.drs_workload import HOUR_S, Sweep

#: Outcomes of one sweep, seed by seed: by the label of its point, then by policy.
Found = Mapping[str, Mapping[str, Sequence[Outcome]]]

#: How far DRS is ahead in the paper, in percentage points of R averaged over lambda.
PUBLISHED_AHEAD: Final = {"edf": 39.53, "fifo": 41.41, "themis": 45.49, "norm": 3.11}
#: Utilisation of the GPUs in the paper, per cent. Its text speaks of the whole run.
PUBLISHED_USE: Final = {"drs": 91.27, "norm": 79.13}

Figure = tuple[str, Callable[[Outcome], float], str]
FIGURES: Final[Sequence[Figure]] = (
    ("deadlines met, %", lambda each: 100 * each.rate, ".1f"),
    ("waiting, mean, h", lambda each: each.waiting_s / HOUR_S, ".2f"),
    ("completion, mean, h", lambda each: each.completion_s / HOUR_S, ".2f"),
    ("GPUs in use over the whole run, %", lambda each: 100 * each.busy, ".1f"),
    ("GPUs in use while training jobs arrive, %", lambda each: 100 * each.utilisation, ".1f"),
    ("moves, mean", lambda each: each.migrations, ".1f"),
)


def cell(values: Sequence[float], form: str) -> str:
    """Return the mean, and the standard deviation over the seeds."""
    spread = f" ±{stdev(values):{form}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{spread}"


def print_sweep(sweep: Sweep, found: Found, console: Console) -> None:
    """Print one table for each figure, a row for each policy."""
    for name, value, form in FIGURES:
        table = Table(title=f"{sweep.title}: {name}", title_justify="left", show_edge=False)
        table.add_column("", no_wrap=True)
        for label, _ in sweep.points:
            table.add_column(label, justify="right")
        for policy in found[sweep.points[0][0]]:
            cells = [
                cell([value(each) for each in found[label][policy]], form)
                for label, _ in sweep.points
            ]
            table.add_row(policy, *cells)
        console.print(table)
        console.print()


def ahead(found: Found, policy: str, other: str) -> list[float]:
    """Return by how many points one policy is ahead of another over a sweep, seed by seed."""
    points = list(found.values())
    return [
        fmean(100 * (point[policy][seed].rate - point[other][seed].rate) for point in points)
        for seed in range(len(points[0][policy]))
    ]


def print_published(found: Found, console: Console) -> None:
    """Print how far DRS is ahead over all lambdas, beside what the paper says."""
    policies = list(found[next(iter(found))])
    if "drs" not in policies:
        return
    table = Table(
        title="R of DRS ahead of others, points averaged over lambda",
        title_justify="left",
        show_edge=False,
    )
    for column in ("ahead of", "published", "here", "least seed", "best seed"):
        table.add_column(column, justify="left" if column == "ahead of" else "right")
    for other in policies:
        if other == "drs":
            continue
        gains = ahead(found, "drs", other)
        published = PUBLISHED_AHEAD.get(other)
        table.add_row(
            other,
            "" if published is None else f"+{published:.2f}",
            cell(gains, "+.2f").replace("±+", "±"),
            f"{min(gains):+.2f}",
            f"{max(gains):+.2f}",
        )
    console.print(table)
    console.print()


def print_use(found: Found, console: Console) -> None:
    """Print the use of GPUs in each eighth of the reception, and over the whole run."""
    (label,) = found
    table = Table(title="GPUs in use over time, lambda 4, %", title_justify="left", show_edge=False)
    table.add_column("")
    steps = 8
    hours = min(len(each.over_time) for runs in found[label].values() for each in runs)
    for step in range(steps):
        table.add_column(
            f"h {step * hours // steps}-{(step + 1) * hours // steps}", justify="right"
        )
    for column in ("mean of these", "whole run", "published"):
        table.add_column(column, justify="right")
    for policy, runs in found[label].items():
        parts = [
            fmean(
                100 * fmean(each.over_time[step * hours // steps : (step + 1) * hours // steps])
                for each in runs
            )
            for step in range(steps)
        ]
        published = PUBLISHED_USE.get(policy)
        table.add_row(
            policy,
            *(f"{part:.1f}" for part in parts),
            f"{fmean(100 * each.utilisation for each in runs):.1f}",
            f"{fmean(100 * each.busy for each in runs):.1f}",
            "" if published is None else f"{published:.2f}",
        )
    console.print(table)
    console.print(
        "h: hours in which training jobs arrive. The whole run lasts until the last job has\n"
        "ended. The paper's text speaks of the whole run: compare that with the published figure."
    )
    console.print()


def draw_figures(sweeps: Sequence[Sweep], found: Mapping[str, Found], folder: Path) -> None:
    """Write one drawing for each experiment.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for sweep in sweeps:
        figure, axes = plt.subplots(figsize=(6, 4))
        rows = found[sweep.name]
        labels = [label for label, _ in sweep.points]
        for policy in rows[labels[0]]:
            if len(labels) == 1:
                runs = rows[labels[0]][policy]
                hours = range(min(len(each.over_time) for each in runs))
                use = [fmean(100 * each.over_time[hour] for each in runs) for hour in hours]
                axes.plot(hours, use, label=policy)
            else:
                rates = [[100 * each.rate for each in rows[label][policy]] for label in labels]
                spread = [stdev(each) if len(each) > 1 else 0.0 for each in rates]
                means = [fmean(each) for each in rates]
                axes.errorbar(labels, means, yerr=spread, marker="o", capsize=3, label=policy)
        axes.set_xlabel("hour" if len(labels) == 1 else sweep.title)
        axes.set_ylabel("GPUs in use, %" if len(labels) == 1 else "deadlines met, %")
        axes.set_ylim(0, 105)
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"drs-{sweep.name}.png", dpi=150)
        plt.close(figure)
