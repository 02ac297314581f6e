"""What ``share_for_others`` costs training jobs with deadlines, and what other GPU jobs gain.

Training jobs of the DRS workload and other jobs, of one GPU for one to four hours each, share a
cluster under the policy that plans training jobs. Figures are means over the seeds with their
standard deviation, from the head's real core in simulated time.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from baselines.registry import ALL, TRAININGS
from gsched.config.policies import TrainingConfig
from gsched.config.tables import Config
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.arguments import seeds_of
from scripts.reproduce.drs_report import cell
from scripts.reproduce.drs_runs import ROUNDING_S
from scripts.reproduce.drs_workload import HOUR_S, Scenario, cluster, draw

SHARES: Final = (0.0, 0.25, 0.5)
PER_HOUR: Final = (4.0, 8.0)  # training jobs: as many as the cluster can do, and twice as many
MOVE_S: Final = 10.0
OTHER: Final = "other"
EXAMPLES = """examples:
  scripts/reproduce/share
  scripts/reproduce/share --seeds 0-29 --shares 0,0.25 --policy drs --json share.json
"""


class Outcome(Struct, frozen=True, kw_only=True):
    """What one run came to.

    Attributes:
        met: training jobs that met their deadline, of all; 0 to 1.
        wait_s, longest_s: from the submission of an other job to its start, mean and longest.
        gpu_use: GPUs owned, averaged over the run; 0 to 1.
    """

    met: float
    wait_s: float
    longest_s: float
    gpu_use: float


def others(per_hour: float, hours: float, seed: int) -> list[TraceJob]:
    """Return jobs of one GPU that arrive at random; their users state a walltime of 5 hours."""
    chance = random.Random(f"{seed} others")
    jobs: list[TraceJob] = []
    submit_s = chance.expovariate(per_hour) * HOUR_S
    while submit_s < hours * HOUR_S:
        jobs.append(
            TraceJob(
                submit_s=submit_s,
                duration_s=chance.uniform(1.0, 4.0) * HOUR_S,
                name=f"{OTHER}-{len(jobs)}",
                kind=OTHER,
                gpus=1,
                walltime_s=5 * HOUR_S,
            )
        )
        submit_s += chance.expovariate(per_hour) * HOUR_S
    return jobs


def simulate(
    share: float, *, policy: str, training_jobs_per_hour: float, others_per_hour: float, seed: int
) -> Outcome:
    """Run one list of jobs.

    Raises:
        RuntimeError: not all of them ended.
    """
    scenario = Scenario(per_hour=training_jobs_per_hour)
    training_jobs = draw(scenario, seed)
    rest = others(others_per_hour, scenario.reception_h, seed)
    jobs = sorted([*training_jobs, *rest], key=lambda job: job.submit_s)
    results: list[JobResult] = []
    training = structs.replace(
        TrainingConfig(share_for_others=share), policy=policy
    )  # a baseline, too
    chosen = ALL.choose("balance", Config(training=training))
    simulation = Simulation(
        cluster(scenario),
        jobs,
        chosen.plan,
        options=Options(plans_training=True, move_s=MOVE_S),
        on_result=results.append,
    )
    simulation.run()
    found = simulation.summary(policy)
    if found.unfinished or len(results) != len(jobs):
        raise RuntimeError(f"seed {seed}, share {share}: {found.unfinished} unfinished")
    allowed_s = {job.name: job.deadline_s or 0.0 for job in training_jobs}
    met = sum(
        each.wait_s + each.run_s <= allowed_s[each.name] + ROUNDING_S
        for each in results
        if each.name in allowed_s
    )
    waits_s = [each.wait_s for each in results if each.name not in allowed_s]
    return Outcome(
        met=met / len(training_jobs),
        wait_s=fmean(waits_s),
        longest_s=max(waits_s),
        gpu_use=found.gpu.utilisation,
    )


def shares_of(text: str) -> tuple[float, ...]:
    """Return shares, each from 0 to below 1, of a list with commas."""
    found = tuple(_number(word) for word in text.split(","))
    if not all(0 <= share < 1 for share in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 0 to below 1")
    return found


def rate(text: str) -> float:
    """Return how many jobs arrive in an hour."""
    value = _number(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 100")
    return value


def rates(text: str) -> tuple[float, ...]:
    """Return several rates of a list with commas."""
    return tuple(rate(word) for word in text.split(","))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/share",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seeds", type=seeds_of, default=range(10), metavar="A-B", help="[0-9]")
    made.add_argument(
        "--shares", type=shares_of, default=SHARES, metavar="S,S", help="[0,0.25,0.5]"
    )
    made.add_argument(
        "--per-hour",
        type=rates,
        default=PER_HOUR,
        metavar="N,N",
        help="training jobs that arrive in an hour [4,8]",
    )
    made.add_argument(
        "--others", type=rate, default=2.0, metavar="N", help="other jobs that arrive an hour [2]"
    )
    made.add_argument(
        "--policy", choices=sorted(TRAININGS), default="deadline", help="[training] policy"
    )
    made.add_argument("--json", type=Path, metavar="OUT", help="file to write all outcomes to")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all points, print a table, and write the outcomes as JSON if asked to."""
    wanted = parser().parse_args(arguments)
    table = Table(
        title=f"{wanted.policy}: 4 nodes of 4 GPUs, {wanted.others:g} other jobs an hour",
        title_justify="left",
        show_edge=False,
    )
    for column in (
        "training jobs/h",
        "share",
        "deadlines met, %",
        "others wait, mean, h",
        "longest, h",
        "GPUs in use, %",
    ):
        table.add_column(column, justify="right")
    told: list[dict[str, object]] = []
    for per_hour in wanted.per_hour:
        for share in wanted.shares:
            found = [
                simulate(
                    share,
                    policy=wanted.policy,
                    training_jobs_per_hour=per_hour,
                    others_per_hour=wanted.others,
                    seed=seed,
                )
                for seed in wanted.seeds
            ]
            table.add_row(
                f"{per_hour:g}",
                f"{share:g}",
                cell([100 * each.met for each in found], ".1f"),
                cell([each.wait_s / HOUR_S for each in found], ".2f"),
                cell([each.longest_s / HOUR_S for each in found], ".1f"),
                cell([100 * each.gpu_use for each in found], ".1f"),
            )
            told.append(
                {
                    "per_hour": per_hour,
                    "share": share,
                    "runs": [structs.asdict(each) for each in found],
                }
            )
            print(f"{per_hour:g} an hour, share {share:g}: done", file=sys.stderr, flush=True)
    Console(highlight=False, width=None if sys.stdout.isatty() else 130).print(table)
    if wanted.json:
        said = {"seeds": list(wanted.seeds), "policy": wanted.policy, "points": told}
        wanted.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
