"""How long the jobs of others wait beside a flood of one user, with and without shares.

Rigid GPU jobs of twenty users arrive at random on 4 nodes of 8 GPUs; with --flood another user
submits 1,500 jobs at once. Each list is simulated as it is and with the flood, each without and
with shares: all users are members of one project, with one share each. Printed is the mean wait of
the twenty users' jobs.
"""

import argparse
import math
import random
import sys
from collections.abc import Sequence
from statistics import mean
from typing import Final

from msgspec import Struct

from gsched.config.shares import PriorityConfig, ProjectConfig
from gsched.config.tables import Config
from gschedd.policies.queue import balance, fifo
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.arguments import count_of, positive_of, seeds_of

EXAMPLES: Final = """examples:
  scripts/reproduce/mixed --flood
  scripts/reproduce/mixed --flood --seeds 0-9 --load 0.9
"""
HOUR_S: Final = 3600.0
NODES: Final = 4
GPUS: Final = 8
USERS: Final = [f"user{number}" for number in range(20)]
FLOOD: Final = "flood"
#: Users state walltimes in multiples of this, seconds.
ROUND_S: Final = 600.0
#: Weights of the numbers of GPUs of a job.
SIZES: Final = {1: 50, 2: 20, 4: 20, 8: 10}
POLICIES: Final = {"balance": balance.plan, "fifo": fifo.plan}


class Wanted(Struct, frozen=True, kw_only=True):
    """What is simulated: see the options."""

    hours: float
    load: float
    jobs: int
    runs_s: float
    policy: str


def regular_jobs(wanted: Wanted, draw: random.Random) -> list[TraceJob]:
    """Return the jobs of all but one: run times are log-normal, one hour on average."""
    size = mean(random.Random(0).choices(list(SIZES), list(SIZES.values()), k=100_000))
    rate_s = wanted.load * NODES * GPUS / (size * HOUR_S)
    found: list[TraceJob] = []
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(rate_s)) < wanted.hours * HOUR_S:
        gpus = draw.choices(list(SIZES), list(SIZES.values()))[0]
        found.append(_job(draw.choice(USERS), at_s, gpus, draw.lognormvariate(-0.5, 1.0) * HOUR_S))
    return found


def flood_jobs(wanted: Wanted, draw: random.Random) -> list[TraceJob]:
    """Return the jobs of the flood, all submitted after a quarter of the time."""
    at_s = wanted.hours * HOUR_S / 4
    return [
        _job(FLOOD, at_s, 1, draw.lognormvariate(-0.5, 1.0) * wanted.runs_s)
        for _ in range(wanted.jobs)
    ]


def _job(user: str, at_s: float, gpus: int, runs_s: float) -> TraceJob:
    runs_s = max(60.0, runs_s)
    walltime_s = math.ceil(runs_s * 1.5 / ROUND_S) * ROUND_S
    return TraceJob(
        submit_s=at_s, duration_s=runs_s, user=user, cpus=gpus, gpus=gpus, walltime_s=walltime_s
    )


def mean_wait_s(jobs: Sequence[TraceJob], wanted: Wanted, site: Config) -> float:
    """Return how long the jobs of all but one wait on average."""
    waits_s: list[float] = []

    def note(result: JobResult) -> None:
        if result.user != FLOOD:
            waits_s.append(result.wait_s)

    simulation = Simulation(
        read_cluster(f"{NODES}xcpus=64,gpus={GPUS},memory=512gb"),
        sorted(jobs, key=lambda job: job.submit_s),
        POLICIES[wanted.policy],
        options=Options(policy=wanted.policy, site=site),
        on_result=note,
    )
    simulation.run()
    return mean(waits_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/mixed",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--flood", action="store_true", help="with the flood")
    made.add_argument("--seeds", type=seeds_of, default=range(3), help="A-B; default 0-2")
    made.add_argument("--hours", type=positive_of, default=48.0, help="of arrivals; default 48")
    made.add_argument("--load", type=positive_of, default=0.9, help="of all GPUs; default 0.9")
    made.add_argument("--jobs", type=count_of, default=1500, help="of the flood; default 1500")
    made.add_argument("--runs", type=positive_of, default=600.0, help="of them, seconds")
    made.add_argument("--policy", choices=sorted(POLICIES), default="balance")
    asked = made.parse_args(arguments)
    wanted = Wanted(
        hours=asked.hours,
        load=asked.load,
        jobs=asked.jobs,
        runs_s=asked.runs,
        policy=asked.policy,
    )
    project = ProjectConfig(name="all", users=(*USERS, FLOOD))
    sites = {"off": Config(), "on": Config(project=(project,), priority=PriorityConfig())}
    print("seed  jobs  shares  alone h  with flood h  change")
    for seed in asked.seeds:
        regular = regular_jobs(wanted, random.Random(seed))
        flood = flood_jobs(wanted, random.Random(seed + 1000)) if asked.flood else []
        for name, site in sites.items():
            alone_s = mean_wait_s(regular, wanted, site)
            line = f"{seed:4}  {len(regular):4}  {name:6}  {alone_s / HOUR_S:7.3f}"
            if flood:
                flooded_s = mean_wait_s([*regular, *flood], wanted, site)
                change = flooded_s / alone_s - 1 if alone_s else 0.0
                line += f"  {flooded_s / HOUR_S:12.3f}  {change:+6.1%}"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
