"""One list under one policy, and what became of its jobs."""

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from gschedd.core.state import facts as f
from gschedd.plan.snapshot import Policy
from gschedd.plan.training import gpu_count
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from scripts.reproduce.sia_bootstrap import Bootstrap, Teacher
from scripts.reproduce.sia_lists import Cluster, Jobs, Row, Says, read_list, with_rigid
from scripts.reproduce.sia_training import least_run_time_s, spread
from scripts.reproduce.sia_truth import Application

HOUR_S = 3600.0


class Contender(Struct, frozen=True, kw_only=True):
    """A policy with what the experiment must know of it.

    Attributes:
        says: as what jobs are submitted to it.
        plans_adaptive: it chooses batch sizes, and is told of goodput.
    """

    name: str
    make: Callable[[], Policy]
    says: Says
    plans_adaptive: bool = False


class JobFigures(Struct, frozen=True, kw_only=True):
    """What became of one job.

    Attributes:
        jct_s: from its submission to its end.
        gpu_s: GPUs that it owned, over the time for which it did, GPU-seconds.
        fairness: `jct_s` over the time that it would take alone on its share of the cluster.
    """

    name: str
    submit_s: float
    jct_s: float
    gpu_s: float
    restarts: int
    fairness: float


class ListFigures(Struct, frozen=True, kw_only=True):
    """What a policy made of a list; times in hours.

    Attributes:
        jobs: that are done.
        unfinished: that never ended.
        p99_h: of the completion times: the value at place 0.99 n, as Sia's authors take it.
        restarts: of a job after its first start, mean.
        unfair: part of the jobs that took longer than alone on their share of the cluster.
        fairness_worst, fairness_median: of those ratios.
        rounds: plans made; took_s: of the whole run.
    """

    trace: str
    list: str
    policy: str
    jobs: int
    unfinished: int
    jct_h: float
    p99_h: float
    makespan_h: float
    gpu_h: float
    restarts: float
    unfair: float
    fairness_worst: float
    fairness_median: float
    rounds: int
    took_s: float
    oddities: dict[str, int]
    each: tuple[JobFigures, ...] = ()


class _Owned:
    """Adds up the GPU time that each job owns, and counts its attempts."""

    def __init__(self) -> None:
        self.gpu_s: dict[int, float] = {}
        self.attempts: dict[int, int] = {}
        self._since: dict[int, tuple[int, float]] = {}

    def take(self, facts: Sequence[f.AnyFact]) -> None:
        for fact in facts:
            if isinstance(fact, f.AttemptAssigned):
                self._since[fact.job] = (gpu_count(fact.allocation), fact.at_s)
                self.attempts[fact.job] = self.attempts.get(fact.job, 0) + 1
            elif isinstance(fact, f.AttemptEnded):
                gpus, since_s = self._since.pop(fact.job, (0, fact.at_s))
                used_s = gpus * (fact.at_s - since_s)
                self.gpu_s[fact.job] = self.gpu_s.get(fact.job, 0.0) + used_s


class Contention:
    """How many jobs there were at a time, from their submissions and ends."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        changes: dict[float, int] = {}
        for begin_s, end_s in spans:
            changes[begin_s] = changes.get(begin_s, 0) + 1
            changes[end_s] = changes.get(end_s, 0) - 1
        self._times = sorted(changes)
        self._counts = list(accumulate(changes[at_s] for at_s in self._times))

    def mean(self, begin_s: float, end_s: float) -> float:
        """Return the mean number of jobs in a span of time."""
        first, last = bisect_right(self._times, begin_s) - 1, bisect_left(self._times, end_s)
        total_s = 0.0
        for place in range(max(first, 0), last):
            until_s = self._times[place + 1] if place + 1 < len(self._times) else end_s
            span_s = min(until_s, end_s) - max(self._times[place], begin_s)
            total_s += max(0.0, span_s) * self._counts[place]
        return total_s / (end_s - begin_s) if end_s > begin_s else 1.0


def alone_s(application: Application, cluster: Cluster, share: float) -> float:
    """Return the completion time of a job alone on its share of a cluster, seconds.

    As Sia's authors: so many GPUs of each type in turn, the mean of the types weighted by their
    GPUs; between whole numbers of GPUs linear, below one GPU in proportion. Here with the best
    batch in each epoch, and with one start.

    Args:
        share: GPUs, over the number of jobs that shared the cluster.
    """
    total_s, weights = 0.0, 0
    for count, each, kind in cluster.kinds:
        least, most = max(1, math.floor(share)), max(1, math.ceil(share))
        first_s, last_s = (
            application.restart_s + _run_time_s(application, kind, gpus, (count, each))
            for gpus in (least, most)
        )
        if math.isinf(first_s):
            continue
        last_s = last_s if math.isfinite(last_s) else first_s
        alone = first_s / share if share < 1 else first_s + (share - least) * (last_s - first_s)
        total_s += count * each * alone
        weights += count * each
    return total_s / weights if weights else math.inf


def _run_time_s(application: Application, kind: str, gpus: int, nodes: tuple[int, int]) -> float:
    count, each = nodes
    return least_run_time_s(application, kind, spread(min(gpus, count * each), each))


class Setup(Struct, frozen=True, kw_only=True):
    """What is the same for all policies.

    Attributes:
        applications: by name, all that a list has.
        alike: jobs of one model are of one kind, see `Jobs`.
        limit: only so many jobs of a list; None: all.
        rigid: part of the jobs that keep the number of GPUs and the batch of their users.
    """

    cluster: Cluster
    applications: Mapping[str, Application]
    alike: bool = False
    bootstrap: Bootstrap = Bootstrap.TYPES
    limit: int | None = None
    rigid: float = 0.0


def run_list(path: Path, contender: Contender, setup: Setup) -> ListFigures:
    """Return what a policy makes of a list."""
    cluster, applications = setup.cluster, setup.applications
    rows = with_rigid(read_list(path)[: setup.limit], setup.rigid)
    began_s = time.process_time()
    listed = Jobs(
        rows,
        cluster,
        applications,
        contender.says,
        alike=setup.alike,
        profiled=setup.bootstrap is not Bootstrap.NONE,
    )
    used = sorted({row.application for row in rows})
    results: list[JobResult] = []
    simulation = Simulation(
        cluster.nodes(),
        listed.jobs,
        contender.make(),
        options=Options(
            plans_training=contender.says is not Says.JOBS,
            plans_adaptive=contender.plans_adaptive,
            fabric=cluster.fabric([applications[name] for name in used]),
            truth_of=listed.truth,
        ),
        on_result=results.append,
    )
    owned = _Owned()
    teacher = Teacher(simulation.head, listed.truth_of_name, cluster, setup.bootstrap)

    def told(facts: Sequence[f.AnyFact]) -> None:
        owned.take(facts)
        if contender.plans_adaptive:
            teacher.take(facts)

    simulation.recorder.on_facts = told
    simulation.run()
    summary = simulation.summary(contender.name)
    jobs = _jobs(rows, results, owned, cluster, applications)
    jcts_s = sorted(job.jct_s for job in jobs)
    ratios = sorted(job.fairness for job in jobs)
    ends_s = [job.submit_s + job.jct_s for job in jobs]
    return ListFigures(
        trace=path.parent.name,
        list=path.stem,
        policy=contender.name,
        jobs=len(jobs),
        unfinished=len(rows) - len(jobs),
        jct_h=_mean(jcts_s) / HOUR_S,
        p99_h=_at(jcts_s, 0.99) / HOUR_S,
        makespan_h=(max(ends_s, default=math.nan) - rows[0].submit_s) / HOUR_S,
        gpu_h=_mean([job.gpu_s for job in jobs]) / HOUR_S,
        restarts=_mean([job.restarts for job in jobs]),
        unfair=_mean([ratio > 1 for ratio in ratios]),
        fairness_worst=_at(ratios, 1.0),
        fairness_median=_at(ratios, 0.5),
        rounds=summary.cycles,
        took_s=time.process_time() - began_s,
        oddities=summary.oddities,
        each=tuple(jobs),
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _at(ordered: Sequence[float], part: float) -> float:
    """Return the value at a part of an ascending list, as Sia's authors take quantiles."""
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else math.nan


def _jobs(
    rows: Sequence[Row],
    results: Sequence[JobResult],
    owned: _Owned,
    cluster: Cluster,
    applications: Mapping[str, Application],
) -> list[JobFigures]:
    by_name = {row.name: row for row in rows}
    contention = Contention([(by_name[each.name].submit_s, each.end_s) for each in results])
    jobs: list[JobFigures] = []
    for each in results:
        row = by_name[each.name]
        share = cluster.gpus / max(1.0, contention.mean(row.submit_s, each.end_s))
        alone = alone_s(applications[row.application], cluster, share)
        jct_s = each.end_s - row.submit_s
        jobs.append(
            JobFigures(
                name=each.name,
                submit_s=row.submit_s,
                jct_s=jct_s,
                gpu_s=owned.gpu_s.get(each.job, 0.0),
                restarts=owned.attempts.get(each.job, 1) - 1,
                fairness=jct_s / alone,
            )
        )
    return jobs
