"""Times a planning round of training jobs with deadlines, and how it grows with jobs and nodes."""

import argparse
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from baselines import edf, fifowhole, themis
from baselines.registry import TRAININGS
from gsched.model.resources import Chunk, Gpu, Request
from gsched.model.states import Placement
from gsched.model.training import Urgency
from gschedd.models.runtime import PaperSpeed, allowed_time_s
from gschedd.plan.elastic import allocate
from gschedd.plan.snapshot import Group, JobClass, Policy, RunningJob, Snapshot
from gschedd.plan.space import FreeNode, SortedSpaces, Spaces
from gschedd.plan.training import Size, TrainingProfile
from gschedd.policies.training import deadline, drs, elasticflow

POLICIES: Mapping[str, Policy] = {
    "deadline": deadline.plan,
    "drs": drs.plan,
    "drs-paper": TRAININGS["drs-paper"],
    "edf": edf.plan,
    "elasticflow": elasticflow.plan,
    "fifowhole": fifowhole.plan,
    "themis": themis.plan,
}

NOW_S = 1e9
REPEATS = 7
NODES, GPUS, WAITING, RUNNING = 500, 8, 1_000, 200
MODELS = (
    (57.41e6, 0.0105),
    (134.67e6, 0.035),
    (23.71e6, 0.061),
    (25.3e6, 0.082),
    (7.06e6, 0.075),
    (2.35e6, 0.035),
    (23.7e6, 0.10),
    (63.6e6, 0.66),
    (23.7e6, 0.41),
    (31.8e6, 0.41),
)


def node(number: int) -> FreeNode:
    """Return an idle node."""
    gpus = tuple(Gpu(index=index, type="a100") for index in range(GPUS))
    name = f"n{number:05d}"
    memory_bytes = 2**40
    return FreeNode(
        name=name,
        cpus=128,
        memory_bytes=memory_bytes,
        gpus=gpus,
        generic=(),
        total_cpus=128,
        total_memory_bytes=memory_bytes,
        total_gpus=GPUS,
        total_generic=(),
        all_gpus=gpus,
        features=frozenset({name, "a100"}),
    )


def request(least: int, most: int) -> Request:
    """Return a request for a range of GPUs, with two CPUs each."""
    return Request(
        chunks=(Chunk(count=least, cpus=2, gpus=1),),
        placement=Placement.FREE,
        places_max=most if most > least else 0,
    )


def profile(job: int, chance: random.Random, asked: Request, *, alike: bool) -> TrainingProfile:
    """Return a training of some hours, of ten models or of one of its own."""
    parameters, step_time_s = chance.choice(MODELS)
    if not alike:
        step_time_s *= chance.uniform(0.8, 1.2)
    speed = PaperSpeed(parameters=parameters, batch=16, step_time_s=step_time_s)
    work = chance.uniform(0.5, 20) * 3600 * 16 / step_time_s
    allowed_s = allowed_time_s(Size(speed=speed, work=work), chance.choice(list(Urgency)))
    waited_s = chance.uniform(0, 0.5) * allowed_s
    most = max(asked.places, asked.places_max)
    return TrainingProfile(
        job=job,
        arrived_s=NOW_S - waited_s,
        deadline_s=NOW_S - waited_s + allowed_s,
        work=work,
        total_work=work,
        speed=speed,
        gpus=tuple(range(asked.places, most + 1)),
        movable=True,
        move_s=30.0,
        request=asked,
    )


def crowd(nodes: int, waiting: int, running: int, *, each: int, alike: bool) -> Snapshot:
    """Return a cluster with so many running and waiting jobs; ``each``: GPUs of a running one.

    Those that run lie where random ends have left holes: a hundredth more are placed, and end.
    """
    chance = random.Random(1)
    free = Spaces({space.name: space for space in map(node, range(nodes))})
    profiles: dict[int, TrainingProfile] = {}
    placed: list[RunningJob] = []
    ending = math.ceil(running / 100)
    for job in range(1, running + ending + 1):
        size = max(1, min(3 * each, round(chance.expovariate(1 / each)))) if each <= GPUS else each
        asked = request(size, size)
        allocation = allocate(asked, free, size)
        if allocation is None:
            break
        free.take(allocation)
        profiles[job] = profile(job, chance, asked, alike=alike)
        placed.append(RunningJob(job=job, allocation=allocation, started_s=NOW_S, end_s=None))
    for gone in chance.sample(placed, ending):
        free.give(gone.allocation)
        placed.remove(gone)
        del profiles[gone.job]
    groups = []
    asked = request(1, GPUS)
    for job in range(10_000, 10_000 + waiting):
        profiles[job] = profile(job, chance, asked, alike=alike)
        job_class = JobClass(queue="batch", request=asked, walltime_s=None, training=job)
        groups.append(Group(job_class=job_class, order=[(0, job)]))
    spaces = SortedSpaces()
    for space in free:
        spaces[space.name] = space
    return Snapshot(now_s=NOW_S, nodes=spaces, groups=groups, running=placed, profiles=profiles)


def plan_ms(policy: Policy, seen: Snapshot) -> tuple[float, int]:
    """Return the median CPU time of a plan, milliseconds, and how many training jobs it starts."""
    times: list[float] = []
    starts = 0
    gc.collect()
    gc.freeze()
    for _ in range(REPEATS):
        begin_s = time.process_time()
        starts = len(policy(seen).starts)
        times.append(time.process_time() - begin_s)
    gc.unfreeze()
    return median(times) * 1e3, starts


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return the slope of a line through the logarithms: 1 for linear growth, 0 for none."""
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def growth(
    policy: Policy, title: str, sizes: Sequence[int], make: Callable[[int], Snapshot]
) -> None:
    """Print the time for each size, and how it grows."""
    found = [plan_ms(policy, make(size)) for size in sizes]
    times = [each[0] for each in found]
    cells = ", ".join(
        f"{size:,}: {ms:.1f} ms ({starts} start)"
        for size, (ms, starts) in zip(sizes, found, strict=True)
    )
    print(f"  {title}: {cells}; exponent {exponent(sizes, times):.2f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="drs", metavar="NAME[,NAME...]")
    parser.add_argument("--no-growth", action="store_true")
    wanted = parser.parse_args()
    cases = {
        "full, 20 GPUs each": {"each": 20, "alike": True},
        "half empty, 8 GPUs each": {"each": 8, "alike": True},
        "half empty, every training its own model": {"each": 8, "alike": False},
    }
    for name in wanted.policy.split(","):
        if name not in POLICIES:
            parser.error(f"unknown policy {name!r}: known are {', '.join(POLICIES)}")
        policy = POLICIES[name]
        print(f"{name}: {WAITING:,} waiting, {RUNNING} running, {NODES} nodes x {GPUS} GPUs")
        for title, case in cases.items():
            seen = crowd(NODES, WAITING, RUNNING, each=case["each"], alike=bool(case["alike"]))
            free = sum(len(space.gpus) for space in seen.nodes.values())
            ms, starts = plan_ms(policy, seen)
            print(f"  {title}, {free} free: {ms:.1f} ms, {starts} start", flush=True)
        if wanted.no_growth:
            continue
        sizes = (250, 500, 1_000, 2_000, 4_000)
        growth(policy, "waiting, full", sizes, lambda n: crowd(500, n, 200, each=20, alike=True))
        growth(policy, "waiting, half empty", sizes,
               lambda n: crowd(500, n, 200, each=8, alike=True))  # fmt: skip
        nodes = (125, 250, 500, 1_000, 2_000)
        growth(policy, "nodes with as many running, full", nodes,
               lambda n: crowd(n, 1_000, n * 2 // 5, each=20, alike=True))  # fmt: skip


if __name__ == "__main__":
    main()
