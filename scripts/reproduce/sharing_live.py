"""The jobs of ``sharing`` as real processes on a cluster of this machine, time scaled 1:100.

A head and two nodes with two declared GPUs each. The GPUs are drivers without a GPU, as of the
tests: a device is a file that logs which work ran when. Jobs with shares use it through the library
and the token daemon, as on a real GPU.
"""

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import click
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from gnode.compiling import find_compiler
from gsched.client import new_job
from gsched.config.nodes import SharingRules
from gsched.protocol.job_rows import JobRow
from gschedd.sim.workload import TraceJob
from scripts.reproduce.live_cluster import NODES, Cluster
from scripts.reproduce.sharing_model import (
    GPUS,
    KINDS,
    Group,
    Outcome,
    draw,
    measured_costs,
    sharing,
    simulate,
)
from tests.support.gpu_device import Device, build_driver

#: Seconds of the experiment for one of a real cluster.
SCALE: Final = 0.01
KERNEL_US: Final = 1500
POLL_S: Final = 0.25
WAIT_S: Final = 300.0
JOB: Final = Path(__file__).with_name("sharing_job.py")
PERIODS_S: Final = {kind.name: kind.period_s for kind in KINDS}


class Live(Struct, frozen=True, kw_only=True):
    """What one run came to.

    Attributes:
        outcome: with real times, seconds.
        busy_s: of all GPUs.
        longer: by which part of their durations jobs took longer than those, mean.
        at_once: how many jobs ran at the same time, at most.
    """

    outcome: Outcome
    busy_s: float
    longer: float
    at_once: int


def command_of(job: TraceJob, folder: Path, driver: Path) -> list[str]:
    """Return the command of a job, whose times are real ones."""
    period_s = PERIODS_S[job.kind]
    kernels = max(1, round(job.gpu_use * period_s * 1e6 / KERNEL_US))
    kernel_us = round(job.gpu_use * period_s * 1e6 / kernels)
    numbers = (
        max(1, round(job.duration_s / period_s)),
        kernels,
        kernel_us,
        f"{(1.0 - job.gpu_use) * period_s * 1e3:.3f}",
    )
    return [sys.executable, str(JOB), str(folder), str(driver), *map(str, numbers)]


def scaled(job: TraceJob) -> TraceJob:
    """Return a job of the experiment in real time."""
    return structs.replace(job, submit_s=job.submit_s * SCALE, duration_s=job.duration_s * SCALE)


class Stage:
    """The drivers and the devices of a run.

    Args:
        folder: for all files; a run's own directory in it may be there already.
        driver: of the devices; None: it is compiled.
    """

    def __init__(self, folder: Path, driver: Path | None = None) -> None:
        self.folder = folder
        if driver is None:
            (folder / "driver").mkdir()
            driver = build_driver(folder / "driver")
        self.driver = driver
        self._runs = 0

    def run(self, jobs: Sequence[TraceJob], rules: SharingRules, *, shared: bool) -> Live:
        """Run jobs on a cluster of their own; their times are real ones."""
        self._runs += 1
        place = self.folder / f"run{self._runs}"
        place.mkdir(exist_ok=True)
        devices = {
            f"n{node}-{gpu}": Device(place / f"n{node}-{gpu}")
            for node in range(1, NODES + 1)
            for gpu in range(GPUS // NODES)
        }
        limits = (
            f"low_max = {rules.low_max}\nlow_max_printed = {str(rules.low_max_printed).lower()}\n"
            f"utilisation_assumed = {rules.utilisation_assumed}\n"
        )
        cluster = Cluster(
            place / "c",
            gpus=GPUS // NODES,
            cpus=8,
            settings=f"[gpu_share]\n{limits}",
            node_settings=f'[gpu_share]\nruntime = "interception"\ndriver = "{self.driver}"\n',
        )
        with cluster:
            rows = _submitted(cluster, jobs, place, self.driver, shared=shared)
        busy_s = sum(
            (one.ended_ns - one.started_ns) / 1e9 for each in devices.values() for one in each.log()
        )
        return told(jobs, rows, busy_s)


def _submitted(
    cluster: Cluster, jobs: Sequence[TraceJob], place: Path, driver: Path, *, shared: bool
) -> list[JobRow]:
    """Submit the jobs at their times, and return what is said of them when all are done."""
    _wait(
        lambda: all(each.sharing for each in cluster.head.nodes().nodes),
        "the nodes to share their GPUs",
    )
    # each node builds its library with its first shared job, and that is not measured
    first = [_submit(cluster, place, "exec true", "gpu_share=60%:64mb:low") for _ in range(GPUS)]
    _ended(cluster, first)
    begin_s, numbers = time.monotonic(), []
    for job in jobs:
        time.sleep(max(0.0, begin_s + job.submit_s - time.monotonic()))
        words = shlex.join(command_of(job, place, driver))
        percent = job.name.rpartition("-")[2]
        asked = f"gpu_share={percent}%:64mb:low" if shared else "gpus=1"
        numbers.append(_submit(cluster, place, f"exec {words}", asked))
    return _ended(cluster, numbers)


def _submit(cluster: Cluster, place: Path, command: str, resources: str) -> str:
    """Submit a job and return its number."""
    job = new_job(
        name="job",
        workdir=str(place),
        script=f"#!/bin/sh\n{command}\n",
        resources=(resources,),
    )
    (result,) = cluster.head.submit([job]).results
    if result.error is not None:
        raise click.ClickException(result.error.message)
    return str(result.id)


def _ended(cluster: Cluster, numbers: list[str]) -> list[JobRow]:
    """Wait for the end of jobs; return what is said of them, in the order of their numbers."""
    _wait(
        lambda: {row.state for row in cluster.head.jobs(numbers).jobs} == {"done"},
        "the end of all jobs",
    )
    return sorted(cluster.head.jobs(numbers).jobs, key=lambda row: row.id)


def told(jobs: Sequence[TraceJob], rows: Sequence[JobRow], busy_s: float) -> Live:
    """Return what a run came to.

    Raises:
        click.ClickException: a job has failed.
    """
    runs_s, waits_s, begins_s, ends_s = [], [], [], []
    for row in rows:
        succeeded = row.outcome is not None and row.outcome.exit_code == 0
        if not succeeded or row.started_s is None or row.ended_s is None:
            raise click.ClickException(f"job {row.id} has failed: {row.outcome}")
        runs_s.append(row.ended_s - row.started_s)
        waits_s.append(row.started_s - row.submitted_s)
        begins_s.append(row.started_s)
        ends_s.append(row.ended_s)
    completion_s = max(ends_s) - min(row.submitted_s for row in rows)
    longer = [run / job.duration_s - 1 for run, job in zip(runs_s, jobs, strict=True)]
    return Live(
        outcome=Outcome(
            completion_s=completion_s,
            utilisation=busy_s / (GPUS * completion_s),
            run_s=fmean(runs_s),
            wait_s=fmean(waits_s),
        ),
        busy_s=busy_s,
        longer=fmean(longer),
        at_once=max(
            sum(begin_s <= other_s < end_s for begin_s, end_s in zip(begins_s, ends_s, strict=True))
            for other_s in begins_s
        ),
    )


def run_live(
    seeds: Sequence[int], group: Group, rules: SharingRules, console: Console
) -> list[dict[str, object]]:
    """Run lists of jobs with a GPU each and with shares, print and return the figures.

    Raises:
        click.ClickException: there is no C compiler, or a job has failed.
    """
    if find_compiler() is None:
        raise click.ClickException("no C compiler: install gcc and libc6-dev")
    table = Table(
        *("seed", "", "GPU each, s", "shares, s", "completion, %", "busy, %", "busy, %", "points"),
        title="12 low jobs on 4 GPUs, real processes, 1:100",
    )
    found: list[dict[str, object]] = []
    for seed in seeds:
        jobs = draw(seed, group)
        with tempfile.TemporaryDirectory(prefix="gsched-") as folder:
            stage = Stage(Path(folder))
            timed = [scaled(job) for job in jobs]
            alone = stage.run(timed, rules, shared=False)
            shared = stage.run(timed, rules, shared=True)
        parts = [sharing(job) for job in jobs]
        rows = {
            "real": (alone.outcome, shared.outcome),
            "measured": (simulate(jobs, rules), simulate(parts, rules, measured_costs())),
            "bound": (simulate(jobs, rules), simulate(parts, rules)),
        }
        for name, (first, second) in rows.items():
            scale = 1.0 if name == "real" else SCALE
            change = 100 * (second.completion_s / first.completion_s - 1)
            busy = 100 * first.utilisation, 100 * second.utilisation
            table.add_row(
                *(str(seed), name),
                *(f"{each.completion_s * scale:.1f}" for each in (first, second)),
                f"{change:+.1f}",
                *(f"{each:.1f}" for each in busy),
                f"{busy[1] - busy[0]:+.1f}",
            )
            found.append(
                {
                    "seed": seed,
                    "model": name,
                    "completion_percent": change,
                    "utilisation_points": busy[1] - busy[0],
                    "alone": structs.asdict(first),
                    "shared": structs.asdict(second),
                }
            )
        console.print(f"seed {seed}: with a GPU each jobs took {alone.longer:+.1%} longer")
    console.print(table)
    return found


def _wait(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > until_s:
            raise click.ClickException(f"waited {WAIT_S:g} s for {what}")
        time.sleep(POLL_S)
