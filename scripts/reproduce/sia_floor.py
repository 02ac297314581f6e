"""How short completion times of a list can be at all: each job alone on the whole cluster.

Each job has from its submission on the configuration on which it is fastest, with the best batch
in each epoch and one start; a rigid job has its number of GPUs and its batch, on the fastest type.
No scheduler can be better; none comes near where jobs compete.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from rich.console import Console
from rich.table import Table

from gsched.model.training import Scaling
from scripts.reproduce.sia_lists import Cluster, Row, batch_of
from scripts.reproduce.sia_runs import HOUR_S
from scripts.reproduce.sia_training import TracedTraining, least_run_time_s, spread
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


def rigid_floor_s(application: Application, cluster: Cluster, gpus: int, batch: int) -> float:
    """Return the completion time of a rigid job alone on a cluster, seconds.

    Infinite where no type has so many GPUs.

    Args:
        application: its model.
        cluster: where it runs.
        gpus: its number of GPUs.
        batch: its global batch, which is fixed.
    """
    training = TracedTraining(application, batch)
    rates: list[float] = []
    for count, each, kind in cluster.kinds:
        if gpus <= count * each:
            step = training.step(tuple((kind, some) for some in spread(gpus, each)), None)
            rates += [] if step is None else [step.samples / step.step_s]
    return application.restart_s + (training.work / max(rates) if rates else math.inf)


def floor_of(row: Row, cluster: Cluster, application: Application) -> float:
    """Return the completion time of the job of a line alone on a cluster, seconds."""
    if row.scaling is Scaling.RIGID:
        return rigid_floor_s(application, cluster, row.gpus, batch_of(row, application))
    return floor_s(application, cluster)


def print_floor(
    name: str,
    rows: Sequence[Row],
    cluster: Cluster,
    applications: Mapping[str, Application],
    console: Console,
) -> None:
    """Print the floor of a list: for each model and size, the mean, and the 99th percentile; h."""
    console.print(f"{name}, alone on the whole cluster")
    table = Table(show_edge=False)
    table.add_column("model")
    table.add_column("GPUs", justify="right")
    table.add_column("jobs", justify="right")
    table.add_column("JCT, h", justify="right")
    hours: list[float] = []
    for (model, gpus, _), alike in groupby(sorted(rows, key=_size), _size):
        jobs = list(alike)
        alone_h = floor_of(jobs[0], cluster, applications[model]) / HOUR_S
        hours += [alone_h] * len(jobs)
        table.add_row(model, str(gpus or "any"), str(len(jobs)), f"{alone_h:.3f}")
    hours.sort()
    table.add_row("all", "", str(len(rows)), f"{fmean(hours):.3f}")
    table.add_row("p99", "", "", f"{hours[min(int(0.99 * len(hours)), len(hours) - 1)]:.3f}")
    console.print(table)


def _size(row: Row) -> tuple[str, int, int]:
    """Return the model, and the GPUs and the batch of a rigid job; 0: they are chosen."""
    is_rigid = row.scaling is Scaling.RIGID
    return (row.application, row.gpus, row.batch) if is_rigid else (row.application, 0, 0)
