"""How short completion times of a list can be at all: each job alone on the whole cluster.

Each job has from its submission on the configuration on which it is fastest, with the best batch
in each epoch and one start. No scheduler can be better; none comes near where jobs compete.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from scripts.reproduce.sia_lists import Cluster, read_list
from scripts.reproduce.sia_runs import HOUR_S
from scripts.reproduce.sia_training import least_run_time_s
from scripts.reproduce.sia_truth import Application


def layouts(cluster: Cluster) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield GPU type and GPUs on each node of all configurations of a cluster."""
    for count, each, kind in cluster.kinds:
        for power in range(each.bit_length()):
            yield kind, (1 << power,)
        for nodes in range(2, count + 1):
            yield kind, (each,) * nodes


def floor_s(application: Application, cluster: Cluster) -> float:
    """Return the completion time of a job alone on a cluster, seconds."""
    return application.restart_s + min(
        least_run_time_s(application, kind, counts) for kind, counts in layouts(cluster)
    )


def print_floor(
    path: Path, cluster: Cluster, applications: Mapping[str, Application], console: Console
) -> None:
    """Print the floor of a list: for each model, the mean, and the 99th percentile; hours."""
    rows = read_list(path)
    hours = {name: floor_s(applications[name], cluster) / HOUR_S for name in sorted(applications)}
    table = Table(
        title=f"{path.parent.name}, {path.stem}, alone on the whole cluster",
        title_justify="left",
        show_edge=False,
    )
    table.add_column("model")
    table.add_column("jobs", justify="right")
    table.add_column("JCT, h", justify="right")
    for name, alone_h in hours.items():
        jobs = sum(row.application == name for row in rows)
        if jobs:
            table.add_row(name, str(jobs), f"{alone_h:.3f}")
    each = sorted(hours[row.application] for row in rows)
    table.add_row("all", str(len(rows)), f"{fmean(each):.3f}")
    table.add_row("p99", "", f"{each[min(int(0.99 * len(each)), len(each) - 1)]:.3f}")
    console.print(table)
