"""How far policies are from the most deadlines that could be met, on small random cases.

Each case is up to six of the DRS experiment's training jobs on two nodes of four GPUs. Policies run
in gsched's simulator, by its real head; the optimum knows the future and moves at no cost (see
optimum_exact.py). Where all training jobs arrive at once there is no future to know: what a policy
lacks there, it lacks by its own fault or because it moves less freely.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from baselines import edf, themis
from baselines.registry import TRAININGS
from gsched.model.training import ALPHA, Urgency
from gschedd.models.runtime import one_gpu_time_s, size_of_training
from gschedd.plan.snapshot import Policy
from gschedd.plan.training import Fabric
from gschedd.policies.training import deadline, drs, elasticflow
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.drs_runs import ROUNDING_S
from scripts.reproduce.drs_workload import WORKLOADS
from scripts.reproduce.optimum_exact import MOST_JOBS, Task, most_in_time

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        "deadline": deadline.plan,
        "drs": drs.plan,
        "drs-paper": TRAININGS["drs-paper"],
        "edf": edf.plan,
        "elasticflow": elasticflow.plan,
        "themis": themis.plan,
    }
)
NODES: Final = 2
GPUS: Final = 4
#: Training jobs arrive within so long, if not at once; seconds. Half of them take longer alone.
ARRIVALS_S: Final = 2 * 3600.0


class Gap(Struct, frozen=True, kw_only=True):
    """How far a policy is from the optimum.

    Attributes:
        met: share of all deadlines.
        optimum: the share that could be.
        median, worst: deadlines that were missed in a case but could have been met.
        counts: cases by that number.
    """

    policy: str
    met: float
    optimum: float
    median: float
    worst: int
    counts: Mapping[str, int]


def draw(seed: int, *, at_once: bool) -> list[TraceJob]:
    """Return one case; equal seeds give equal cases."""
    chance = random.Random(f"{seed} {at_once}")
    jobs: list[TraceJob] = []
    for number in range(chance.randint(3, MOST_JOBS)):
        kind = chance.choice(sorted(WORKLOADS))
        size = size_of_training(WORKLOADS[kind])
        assert size is not None, f"{kind} says all that is needed"
        jobs.append(
            TraceJob(
                submit_s=0.0 if at_once else chance.uniform(0, ARRIVALS_S),
                duration_s=0.0,
                name=f"{kind}-{number}",
                gpus=1,
                gpus_max=NODES * GPUS,
                deadline_s=ALPHA[chance.choice(list(Urgency))]
                * chance.uniform(0.4, 1.0)
                * one_gpu_time_s(size),
                training=WORKLOADS[kind],
            )
        )
    return sorted(jobs, key=lambda job: job.submit_s)


def tasks_of(jobs: Sequence[TraceJob]) -> list[Task]:
    """Return the training jobs for the optimum: each number of GPUs on the fewest nodes."""
    fabric = Fabric()
    tasks: list[Task] = []
    for job in jobs:
        assert job.training is not None
        assert job.deadline_s is not None
        size = size_of_training(job.training)
        assert size is not None
        rates = [0.0]
        for gpus in range(1, NODES * GPUS + 1):
            counts = {"a": min(gpus, GPUS)} | ({"b": gpus - GPUS} if gpus > GPUS else {})
            rates.append(size.speed.rate(fabric.layout(counts)))
        tasks.append(
            Task(
                arrives_s=job.submit_s,
                deadline_s=job.submit_s + job.deadline_s,
                work=size.work,
                rates=tuple(rates),
            )
        )
    return tasks


def met_by(policy: Policy, jobs: Sequence[TraceJob], move_s: float) -> int:
    """Return how many deadlines a policy meets.

    Raises:
        RuntimeError: not all training jobs ended.
    """
    results: list[JobResult] = []
    options = Options(plans_training=True, move_s=move_s)
    nodes = read_cluster(f"{NODES}xcpus=64,gpus={GPUS}")
    simulation = Simulation(nodes, jobs, policy, options=options, on_result=results.append)
    simulation.run()
    if len(results) != len(jobs):
        raise RuntimeError(f"{len(jobs) - len(results)} of {len(jobs)} training jobs did not end")
    allowed_s = {job.name: job.deadline_s or 0.0 for job in jobs}
    return sum(each.wait_s + each.run_s <= allowed_s[each.name] + ROUNDING_S for each in results)


def compare(names: Sequence[str], cases: int, *, at_once: bool, move_s: float) -> list[Gap]:
    """Return how far each policy is from the optimum.

    Raises:
        RuntimeError: a policy met more deadlines than can be met.
    """
    drawn = [draw(seed, at_once=at_once) for seed in range(cases)]
    best = [most_in_time(tasks_of(jobs), NODES * GPUS) for jobs in drawn]
    total = sum(len(jobs) for jobs in drawn)
    found: list[Gap] = []
    for name in names:
        met = [met_by(POLICIES[name], jobs, move_s) for jobs in drawn]
        lacking = [most - here for most, here in zip(best, met, strict=True)]
        if min(lacking) < 0:
            raise RuntimeError(
                f"{name} met more than can be met in case {lacking.index(min(lacking))}"
            )
        counts = Counter(lacking)
        found.append(
            Gap(
                policy=name,
                met=sum(met) / total,
                optimum=sum(best) / total,
                median=median(lacking),
                worst=max(lacking),
                counts={str(number): counts[number] for number in sorted(counts)},
            )
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for training jobs that arrive at once, and for those that do not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="of each kind [200]")
    parser.add_argument(
        "--policies", default="deadline,elasticflow,drs,edf,themis", help=", ".join(POLICIES)
    )
    parser.add_argument("--move-s", type=float, default=0.0, help="cost of a move, seconds [0]")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    asked = parser.parse_args(arguments)
    names = asked.policies.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown or asked.cases < 1:
        known = ", ".join(POLICIES)
        print(f"optimum: no policy {unknown}, or no case; known are: {known}", file=sys.stderr)
        return 2
    report: dict[str, object] = {"move_s": asked.move_s, "cases": asked.cases}
    for title, at_once in (("all at once", True), ("over two hours", False)):
        gaps = compare(names, asked.cases, at_once=at_once, move_s=asked.move_s)
        report[title] = [structs.asdict(gap) for gap in gaps]
        print(
            f"\n{asked.cases} cases, training jobs arrive {title}; "
            f"{gaps[0].optimum:.3f} of the deadlines could be met\n"
            f"{'policy':<14}{'met':>7}{'mean gap':>10}{'median':>8}{'worst':>7}  cases by gap"
        )
        for gap in gaps:
            lacking = mean(int(n) for n, times in gap.counts.items() for _ in range(times))
            cases = ", ".join(f"{number}: {times}" for number, times in gap.counts.items())
            figures = f"{gap.met:>7.3f}{lacking:>10.3f}{gap.median:>8.1f}{gap.worst:>7}"
            print(f"{gap.policy:<14}{figures}  {cases}")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
