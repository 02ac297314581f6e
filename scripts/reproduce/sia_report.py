"""Tables of what policies make of Sia's lists, beside what others have published and measured."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from scripts.reproduce.sia_runs import HOUR_S, ListFigures


class Known(Struct, frozen=True, kw_only=True):
    """Figures of others: hours, and restarts of a job; NaN: not known."""

    jct_h: float = math.nan
    p99_h: float = math.nan
    makespan_h: float = math.nan
    gpu_h: float = math.nan
    restarts: float = math.nan


#: Averages over the lists of a trace on 64 GPUs of three types.
#: Source: Jayaram Subramanya et al., SOSP 2023, table 3.
PUBLISHED: Final[Mapping[tuple[str, str], Known]] = MappingProxyType(
    {
        ("philly", "sia"): Known(jct_h=0.6, p99_h=9.5, makespan_h=14.2, gpu_h=4.0),
        ("philly", "pollux"): Known(jct_h=1.0, p99_h=14.9, makespan_h=24.5, gpu_h=5.6),
        ("philly", "gavel"): Known(jct_h=1.9, p99_h=30.0, makespan_h=33.8, gpu_h=9.0),
        ("newtrace", "sia"): Known(jct_h=0.7, p99_h=4.6, makespan_h=52.2, gpu_h=3.0),
        ("newtrace", "pollux"): Known(jct_h=1.5, p99_h=10.3, makespan_h=62.3, gpu_h=3.4),
        ("newtrace", "gavel"): Known(jct_h=11.3, p99_h=98.1, makespan_h=110.0, gpu_h=6.4),
    }
)
#: What the authors' simulator gives for one list, with two cores.
MEASURED: Final[Mapping[tuple[str, str, str], Known]] = MappingProxyType(
    {
        ("philly", "workload-1", "sia"): Known(
            jct_h=0.542, p99_h=7.89, makespan_h=15.53, gpu_h=4.03, restarts=4.26
        ),
        ("philly", "workload-1", "gavel"): Known(
            jct_h=1.671, p99_h=28.2, makespan_h=35.6, gpu_h=10.3, restarts=6.4
        ),
    }
)
#: The cluster of both.
CLUSTER: Final = "hetero64"
COLUMNS: Final = (
    "jobs",
    "JCT, h",
    "p99, h",
    "makespan, h",
    "GPU-h a job",
    "restarts",
    "unfair, %",
    "worst FTF",
    "CPU, s",
)


def line(found: ListFigures) -> str:
    """Return the figures of one list, for those who wait."""
    left = f", {found.unfinished} unfinished" if found.unfinished else ""
    odd = f", {found.oddities}" if found.oddities else ""
    return (
        f"{found.trace} {found.list} {found.policy}: JCT {found.jct_h:.3f} h, p99 {found.p99_h:.2f}"
        f" h, makespan {found.makespan_h:.2f} h, {found.gpu_h:.2f} GPU-h, {found.restarts:.2f} "
        f"restarts; {found.rounds} rounds, {found.took_s:.0f} s{left}{odd}"
    )


def lists_said(count: int) -> str:
    """Return how many lists there are, in words."""
    return "1 list" if count == 1 else f"{count} lists"


def pooled(found: Sequence[ListFigures]) -> ListFigures:
    """Return what a policy made of all lists of a trace.

    As Sia's authors: completion times of all jobs together; the 99th percentile and the makespan
    of each list, averaged.
    """
    jobs = [job for each in found for job in each.each]
    if not jobs:
        return found[0]
    ratios = sorted(job.fairness for job in jobs)
    return ListFigures(
        trace=found[0].trace,
        list=lists_said(len(found)),
        policy=found[0].policy,
        jobs=len(jobs),
        unfinished=sum(each.unfinished for each in found),
        jct_h=fmean(job.jct_s for job in jobs) / HOUR_S,
        p99_h=fmean(each.p99_h for each in found),
        makespan_h=fmean(each.makespan_h for each in found),
        gpu_h=fmean(job.gpu_s for job in jobs) / HOUR_S,
        restarts=fmean(job.restarts for job in jobs),
        unfair=sum(ratio > 1 for ratio in ratios) / len(ratios),
        fairness_worst=ratios[-1],
        fairness_median=ratios[len(ratios) // 2],
        rounds=sum(each.rounds for each in found),
        took_s=fmean(each.took_s for each in found),
        oddities={},
    )


def print_table(title: str, found: Sequence[ListFigures], console: Console, *, known: bool) -> None:
    """Print a row for each policy, with what is known of it beneath.

    Args:
        found: of one trace: pooled, or all of one list.
        known: others have published figures of such runs.
    """
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("policy")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(each.policy, *_cells(each))
        if not known:
            continue
        measured = MEASURED.get((each.trace, each.list, each.policy))
        published = PUBLISHED.get((each.trace, each.policy))
        if measured is not None:
            table.add_row("  authors' code", *_known_cells(measured), style="dim")
        if published is not None:
            table.add_row("  published, all lists", *_known_cells(published), style="dim")
    console.print(table)


def _cells(each: ListFigures) -> tuple[str, ...]:
    jobs = f"{each.jobs}" + (f" of {each.jobs + each.unfinished}" if each.unfinished else "")
    return (
        jobs,
        f"{each.jct_h:.3f}",
        f"{each.p99_h:.2f}",
        f"{each.makespan_h:.2f}",
        f"{each.gpu_h:.2f}",
        f"{each.restarts:.2f}",
        f"{100 * each.unfair:.1f}",
        f"{each.fairness_worst:.2f}",
        f"{each.took_s:.0f}",
    )


def _known_cells(known: Known) -> tuple[str, ...]:
    values = (known.jct_h, known.p99_h, known.makespan_h, known.gpu_h, known.restarts)
    return ("", *("" if math.isnan(value) else f"{value:g}" for value in values))
