"""12 jobs on 4 GPUs, each job with a GPU of its own and with a share of one: what sharing gains.

Modelled after the second experiment of Wang et al., "GPU sharing method for deep learning clusters
with priorities", Computer Science 2023, 50(6): 86-91: 12 trainings of the class ``low`` arrive on 4
GPUs. The paper does not publish the jobs, so they are drawn here: five kinds with the part of the
time for which each keeps a GPU busy and the memory that it needs, chosen so that GPUs with one job
each are about half busy, as in the paper. In the model (``gschedd.sim.gpu_work``) sharing costs
nothing, so the gains are bounds, not predictions for a GPU. From the head's real core in simulated
time.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from gschedd.plan.sharing import SharingRules
from gschedd.policies.registry import Tuning, choose
from gschedd.sim.cluster import read_cluster
from gschedd.sim.gpu_work import GpuWork
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.arguments import seeds_of

JOBS: Final = 12
GPUS: Final = 4
CLUSTER: Final = f"{GPUS}xcpus=8,gpus=1,gpu_memory=32gb"
MINUTE_S: Final = 60.0
#: Name, part of the time for which a GPU of its own is busy, percent of the memory.
KINDS: Final = (
    ("vgg11", 0.55, 30),
    ("vgg16", 0.65, 35),
    ("vgg19", 0.70, 40),
    ("mobilenet", 0.35, 20),
    ("squeezenet", 0.30, 15),
)
#: What the paper measured on four V100, as a reference.
PAPER: Final = {"completion_percent": -19.49, "utilisation_points": 10.64}


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


def draw(seed: int, *, window_s: float) -> list[TraceJob]:
    """Return jobs of 10 to 20 minutes that arrive at random times of a window."""
    chance = random.Random(f"{seed} sharing")
    arrivals_s = sorted(chance.uniform(0.0, window_s) for _ in range(JOBS))
    jobs: list[TraceJob] = []
    for submit_s in arrivals_s:
        name, use, percent = chance.choice(KINDS)
        jobs.append(
            TraceJob(
                submit_s=submit_s - arrivals_s[0],
                duration_s=chance.uniform(10.0, 20.0) * MINUTE_S,
                name=f"{name}-{percent}",
                kind=name,
                gpus=1,
                gpu_use=use,
            )
        )
    return jobs


def sharing(job: TraceJob) -> TraceJob:
    """Return a job that shares a GPU: the class ``low``, memory as its kind needs."""
    percent = job.name.rpartition("-")[2]
    return structs.replace(job, gpus=0, resources=f"nodes=1,gpu_share={percent}%:low")


def simulate(jobs: Sequence[TraceJob], rules: SharingRules) -> Outcome:
    """Run a list of jobs."""
    results: list[JobResult] = []
    chosen = choose("balance", Tuning())
    run = Simulation(
        read_cluster(CLUSTER),
        jobs,
        chosen.plan,
        options=Options(work="gpus", sharing=rules),
        on_result=results.append,
    )
    run.run()
    assert len(results) == len(jobs), "all jobs have ended"
    completion_s = max(result.end_s for result in results)
    busy_s = 0.0
    for machine in run.machines:
        assert isinstance(machine.work, GpuWork), "it was asked for"
        busy_s += sum(machine.work.busy_s.values())
    return Outcome(
        completion_s=completion_s,
        utilisation=busy_s / (GPUS * completion_s),
        run_s=fmean(result.run_s for result in results),
        wait_s=fmean(result.wait_s for result in results),
    )


def compare(seed: int, rules: SharingRules, window_s: float) -> tuple[Outcome, Outcome]:
    """Return the outcomes of a list of jobs with a GPU each, and with shares."""
    jobs = draw(seed, window_s=window_s)
    return simulate(jobs, rules), simulate([sharing(job) for job in jobs], rules)


def gains(pairs: Sequence[tuple[Outcome, Outcome]]) -> dict[str, list[float]]:
    """Return what sharing changes, for each pair."""
    return {
        "completion_percent": [100 * (b.completion_s / a.completion_s - 1) for a, b in pairs],
        "utilisation_points": [100 * (b.utilisation - a.utilisation) for a, b in pairs],
        "run_percent": [100 * (b.run_s / a.run_s - 1) for a, b in pairs],
        "wait_minutes": [(b.wait_s - a.wait_s) / MINUTE_S for a, b in pairs],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=seeds_of, default=range(30), metavar="A-B")
    parser.add_argument("--low-max", type=int, default=3, metavar="N", help="jobs on one GPU")
    parser.add_argument("--printed", action="store_true", help="compare as the paper's listing")
    parser.add_argument(
        "--assumed", type=float, default=0.3, metavar="U", help="utilisation of jobs just placed"
    )
    parser.add_argument("--window", type=float, default=20.0, metavar="MIN", help="of arrivals")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    wanted = parser.parse_args(arguments)
    rules = SharingRules(
        low_max=wanted.low_max,
        low_max_printed=wanted.printed,
        utilisation_assumed=wanted.assumed,
    )
    pairs = [compare(seed, rules, wanted.window * MINUTE_S) for seed in wanted.seeds]
    found = gains(pairs)
    table = Table("figure", "mean", "standard deviation", "paper (4 V100)")
    table.add_row("GPU each: minutes", _mean([a.completion_s / 60 for a, _ in pairs]), "", "59.8")
    table.add_row("shares: minutes", _mean([b.completion_s / 60 for _, b in pairs]), "", "48.2")
    table.add_row(
        "GPU each: utilisation, %", _mean([100 * a.utilisation for a, _ in pairs]), "", "49.71"
    )
    for name, values in found.items():
        deviation = f"{stdev(values):.2f}" if len(values) > 1 else ""
        paper = f"{PAPER[name]:+.2f}" if name in PAPER else ""
        table.add_row(name, f"{fmean(values):+.2f}", deviation, paper)
    Console(width=100).print(table)
    if wanted.json:
        record = {"seeds": list(wanted.seeds), "gains": found}
        Path(wanted.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}"


if __name__ == "__main__":
    sys.exit(main())
