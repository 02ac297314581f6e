"""What gnode's sliding window finds of the idle GPU time of generated jobs, and what falsely.

Counted in GPU-hours: *idle* is what is labelled so; *found*, which part of it the window reports,
counted back to when the GPU became idle; *false*, which part of all that is reported is not
labelled idle. A *warning* is an idle time as long as the default of ``warn_s`` or ``warn_held_s``;
it is false if less than nine tenths of that time are labelled idle.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from msgspec import structs

from gnode.hw.idle import GpuActivity, GpuWindow
from gsched.config.idle_gpus import IdleGpusConfig
from scripts.reproduce.idle_gpus_traces import SAMPLE_S, Sample, Trace, jobs

HOUR_S: Final = 3600.0
#: What `sweep` tries.
WINDOWS_S: Final = (300.0, 600.0, 900.0, 1200.0, 1500.0, 1800.0)
PERCENTS: Final = (0.5, 1.0, 2.0)
#: So many busy samples in a row do not end an idle time: a burst.
_BURST: Final = 3


@dataclass(slots=True)
class Counts:
    """GPU-hours, and warnings."""

    hours: Counter[str] = field(default_factory=Counter)
    warnings: int = 0
    false_warnings: int = 0

    def add(self, other: "Counts") -> None:
        """Add another count."""
        self.hours.update(other.hours)
        self.warnings += other.warnings
        self.false_warnings += other.false_warnings


def reported(trace: Trace, config: IdleGpusConfig) -> list[bool]:
    """Return for each sample whether its time is reported as idle in the end."""
    window = GpuWindow(config)
    marks = [False] * len(trace.samples)
    for at, sample in enumerate(trace.samples):
        now_s, before_s = (at + 1) * SAMPLE_S, window.idle_sum_s
        window.note(
            GpuActivity(
                util_percent=sample.percent,
                memory_bytes=sample.memory_bytes,
                has_process=sample.has_process,
            ),
            now_s,
        )
        count = round((window.idle_sum_s - before_s) / SAMPLE_S)
        marks[at - count + 1 : at + 1] = [True] * count
    return marks


def counted(trace: Trace, config: IdleGpusConfig) -> Counts:
    """Return what is found of one GPU."""
    counts, marks = Counts(), reported(trace, config)
    for sample, mark in zip(trace.samples, marks, strict=True):
        counts.hours[sample.label] += 1
        if mark:
            counts.hours[f"{sample.label} reported"] += 1
    run: list[Sample] = []
    gap = 0
    for sample, mark in zip(trace.samples, marks, strict=True):
        gap = 0 if mark else gap + 1
        if gap <= _BURST:
            run.append(sample)
        else:
            _warn(run, config, counts)
            run = []
    _warn(run, config, counts)
    for name in counts.hours:
        counts.hours[name] *= SAMPLE_S / HOUR_S  # type: ignore[assignment] # hours are floats
    return counts


def _warn(run: list[Sample], config: IdleGpusConfig, counts: Counts) -> None:
    if not run:
        return
    limit_s = config.warn_held_s if run[-1].has_process else config.warn_s
    if len(run) * SAMPLE_S >= limit_s:
        counts.warnings += 1
        idle = sum(sample.label == "idle" for sample in run)
        counts.false_warnings += idle < 0.9 * len(run)


def measured(seed: int, count: int, configs: list[IdleGpusConfig]) -> list[dict[str, Counts]]:
    """Return the counts of one seed by kind of jobs, for each configuration."""
    found: list[dict[str, Counts]] = [defaultdict(Counts) for _ in configs]
    for traces in jobs(seed, count):
        for trace in traces:
            for config, counts in zip(configs, found, strict=True):
                counts[trace.kind].add(counted(trace, config))
    return [dict(each) for each in found]


def _together(found: Iterable[dict[str, Counts]]) -> dict[str, Counts]:
    every: dict[str, Counts] = defaultdict(Counts)
    for each in found:
        for kind, counts in each.items():
            every[kind].add(counts)
            every["all"].add(counts)
    return every


def _part(hours: float, of: float, *, up: bool = True) -> str:
    """Return a part in percent, never better than it is: what is false is rounded up."""
    if not of:
        return "-"
    tenths = (math.ceil if up else math.floor)(1000 * hours / of)
    return f"{tenths / 10:.1f} %"


def _row(counts: Counts) -> list[str]:
    hours = counts.hours
    false = hours["work reported"] + hours["hung reported"]
    return [
        f"{sum(hours[label] for label in ('work', 'idle', 'hung')):,.0f}",
        f"{hours['idle']:,.0f}",
        _part(hours["idle reported"], hours["idle"], up=False),
        _part(false, hours["idle reported"] + false),
        _part(false, hours["work"]),
        f"{hours['hung']:,.0f}",
        str(counts.warnings),
        str(counts.false_warnings),
    ]


def main() -> None:
    """Print a table: a row for each kind of jobs, or for each pair of thresholds."""
    default = IdleGpusConfig()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("kinds", "sweep"), default="kinds")
    parser.add_argument("--seeds", default="0-9", metavar="A-B")
    parser.add_argument("--jobs", type=int, default=100, help="jobs of each seed")
    parser.add_argument("--window", type=float, default=default.window_s, metavar="SECONDS")
    parser.add_argument("--percent", type=float, default=default.busy_percent)
    parser.add_argument("--processes", type=int, default=2)
    stated = parser.parse_args()
    first, last = map(int, stated.seeds.split("-"))
    seeds = range(first, last + 1)
    pairs = [(stated.window, stated.percent)]
    if stated.what == "sweep":
        pairs = list(product(WINDOWS_S, PERCENTS))
    titles = ("GPU-hours", "idle", "found", "false", "of work", "hung", "warnings", "false")
    print(f"{'':<16}" + "".join(f"{title:>12}" for title in titles))
    configs = [
        structs.replace(default, window_s=window_s, busy_percent=percent)
        for window_s, percent in pairs
    ]
    count = len(seeds)
    with ProcessPoolExecutor(stated.processes) as pool:
        found = list(pool.map(measured, seeds, [stated.jobs] * count, [configs] * count))
    for at, (window_s, percent) in enumerate(pairs):
        every = _together(of_seed[at] for of_seed in found)
        rows = {f"{window_s:g} s, {percent:g} %": every["all"]}
        if stated.what == "kinds":
            rows = dict(sorted(every.items(), key=lambda row: (row[0] == "all", row[0])))
        for name, counts in rows.items():
            print(f"{name:<16}" + "".join(f"{cell:>12}" for cell in _row(counts)))


if __name__ == "__main__":
    main()
