"""The jobs of the experiments on GPU sharing, and what becomes of them in the simulator."""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from baselines.registry import ALL
from gsched.config.nodes import SharingRules
from gschedd.plan.sharing import DEFAULT_RULES
from gschedd.sim.cluster import read_cluster
from gschedd.sim.gpu_costs import SharingCosts
from gschedd.sim.gpu_work import GpuWork
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob

JOBS: Final = 12
GPUS: Final = 4
MINUTE_S: Final = 60.0
USE_MAX: Final = 0.98


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of training.

    Attributes:
        use: part of the time for which it keeps a GPU of its own busy.
        percent: of the memory that it needs.
        period_s: of an iteration on a GPU of its own.
    """

    name: str
    use: float
    percent: int
    period_s: float


KINDS: Final = (
    Kind(name="vgg11", use=0.55, percent=30, period_s=0.026),
    Kind(name="vgg16", use=0.65, percent=35, period_s=0.034),
    Kind(name="vgg19", use=0.70, percent=40, period_s=0.040),
    Kind(name="mobilenet", use=0.35, percent=20, period_s=0.023),
    Kind(name="squeezenet", use=0.30, percent=15, period_s=0.031),
)


class Published(Struct, frozen=True, kw_only=True):
    """What was measured on four V100, 32 GB each."""

    alone_minutes: float = 59.0 + 50.0 / 60.0
    shared_minutes: float = 48.0 + 10.0 / 60.0
    completion_percent: float = -19.49
    utilisation_percent: float = 49.71
    utilisation_points: float = 10.64
    high_loss_percent: float = 4.63
    packed_loss_percent: float = 32.88
    low_percent: float = 20.79


PAPER: Final = Published()

#: The high job of ``scripts/bench/gpushare``: 22 kernels of 1 ms and 8 ms of its host.
BENCH_PERIOD_S: Final = 0.030
BENCH_USE: Final = 22.0 / 30.0
#: Slow-down of that job, and the low job's part of the GPU, percent, by window: medians of three
#: runs of ``scripts/bench/gpushare priority``; 0 is the adapted window.
MEASURED: Final[Mapping[int, tuple[float, float]]] = MappingProxyType(
    {
        1: (1.7, 17.8),
        2: (1.7, 22.9),
        4: (2.6, 22.5),
        8: (5.6, 24.5),
        32: (9.3, 30.1),
        0: (3.4, 23.0),
    }
)
#: Until a low job counts as idle, and two messages, seconds.
TURN_S: Final = 0.0005


def measured_costs(window: int = 0) -> SharingCosts:
    """Return the costs that were measured on the driver without a GPU, by the window."""
    slow, low = (percent / 100.0 for percent in MEASURED[window])
    return SharingCosts(
        period_s=BENCH_PERIOD_S,
        wait_s=slow * BENCH_PERIOD_S,
        lost_s=(1.0 - BENCH_USE - low * (1.0 + slow)) * BENCH_PERIOD_S,
        turn_s=TURN_S,
    )


def fitted_use() -> float:
    """Return how busy two equal jobs keep a GPU each that lose as much as published when packed."""
    return float((PAPER.packed_loss_percent / 100.0) ** 0.5)


def fitted_costs() -> SharingCosts:
    """Return costs with which two jobs of `fitted_use` lose and get what was published.

    Three parameters for three figures: a fit, and no prediction.
    """
    use, slow = fitted_use(), PAPER.high_loss_percent / 100.0
    stretched = 1.0 / (PAPER.low_percent / 100.0) - (1.0 - use)
    usable = use / stretched * (1.0 + slow) / (1.0 - use)
    return SharingCosts(wait_s=slow * BENCH_PERIOD_S, usable=usable, turn_s=TURN_S)


class Outcome(Struct, frozen=True, kw_only=True):
    """What one run came to.

    Attributes:
        completion_s: from the first submission to the last end.
        utilisation: of all GPUs over that time, 0 to 1.
        run_s: mean run time of a job.
        wait_s: mean time from submission to start.
    """

    completion_s: float
    utilisation: float
    run_s: float
    wait_s: float


class Group(Struct, frozen=True, kw_only=True):
    """How the jobs of the first experiment are drawn.

    Attributes:
        window_s: in which they arrive.
        scale: of their durations, which are 10 to 20 minutes at 1.
        use_scale: of the part of the time for which they keep a GPU of their own busy.
    """

    window_s: float = 20.0 * MINUTE_S
    scale: float = 1.0
    use_scale: float = 1.0


def draw(seed: int, group: Group) -> list[TraceJob]:
    """Return 12 jobs that arrive at random times of a window."""
    chance = random.Random(f"{seed} sharing")
    arrivals_s = sorted(chance.uniform(0.0, group.window_s) for _ in range(JOBS))
    jobs: list[TraceJob] = []
    for submit_s in arrivals_s:
        kind = chance.choice(KINDS)
        jobs.append(
            TraceJob(
                submit_s=submit_s - arrivals_s[0],
                duration_s=chance.uniform(10.0, 20.0) * MINUTE_S * group.scale,
                name=f"{kind.name}-{kind.percent}",
                kind=kind.name,
                gpus=1,
                gpu_use=min(USE_MAX, kind.use * group.use_scale),
            )
        )
    return jobs


def sharing(job: TraceJob, share_class: str = "low") -> TraceJob:
    """Return a job that shares a GPU, with the memory that its kind needs."""
    percent = job.name.rpartition("-")[2]
    return structs.replace(job, gpus=0, resources=f"nodes=1,gpu_share={percent}%:{share_class}")


def run_jobs(
    jobs: Sequence[TraceJob],
    *,
    rules: SharingRules = DEFAULT_RULES,
    costs: SharingCosts | None = None,
    gpus: int = GPUS,
) -> tuple[list[JobResult], float]:
    """Run a list of jobs; return what became of each, and for how long GPUs were busy, seconds."""
    results: list[JobResult] = []
    run = Simulation(
        read_cluster(f"{gpus}xcpus=8,gpus=1,gpu_memory=32gb"),
        jobs,
        ALL.choose("balance").plan,
        options=Options(work="gpus", sharing=rules, sharing_costs=costs),
        on_result=results.append,
    )
    run.run()
    assert len(results) == len(jobs), "all jobs have ended"
    busy_s = 0.0
    for machine in run.machines:
        assert isinstance(machine.work, GpuWork), "it was requested"
        busy_s += sum(machine.work.busy_s.values())
    return results, busy_s


def simulate(
    jobs: Sequence[TraceJob], rules: SharingRules, costs: SharingCosts | None = None
) -> Outcome:
    """Run a list of jobs on four GPUs."""
    results, busy_s = run_jobs(jobs, rules=rules, costs=costs)
    completion_s = max(result.end_s for result in results)
    return Outcome(
        completion_s=completion_s,
        utilisation=busy_s / (GPUS * completion_s),
        run_s=fmean(result.run_s for result in results),
        wait_s=fmean(result.wait_s for result in results),
    )


class Pair(Struct, frozen=True, kw_only=True):
    """A high job beside a low one, each of its speed alone.

    Attributes:
        high, low: speed, 1 is that alone.
    """

    high: float
    low: float


#: Of each job of a pair.
PAIR_S: Final = 3600.0


def run_pair(high: float, low: float, costs: SharingCosts | None) -> Pair:
    """Run two jobs of an hour on one GPU, and return how fast each was while both ran.

    Args:
        high, low: for which part of the time each keeps a GPU of its own busy.
    """
    jobs = [
        sharing(
            TraceJob(submit_s=0.0, duration_s=PAIR_S, name=f"{name}-40", kind=name, gpu_use=use),
            share_class=name,
        )
        for name, use in (("high", high), ("low", low))
    ]
    results, _ = run_jobs(jobs, costs=costs, gpus=1)
    spans_s = {result.kind: result.run_s for result in results}
    both_s = min(spans_s.values())
    done_s = {
        kind: PAIR_S - (span_s - both_s) if span_s > both_s else PAIR_S
        for kind, span_s in spans_s.items()
    }
    return Pair(high=done_s["high"] / both_s, low=done_s["low"] / both_s)
