"""How good predicted starts are: the coverage of their intervals, and how far off they are.

The real head schedules generated jobs (`scripts.reproduce.generated_kinds`) on modelled nodes with
a virtual clock, and learns run times as they end. Of jobs that wait after their submission the
start is predicted; jobs that come later are not known then. When all have started, the predictions
are compared with what happened.
"""

import argparse
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from baselines.registry import ALL
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.question import question_of
from gschedd.core.forecast.start import COVERAGE, answer_to
from gschedd.core.state.records import Job
from gschedd.models.robust import RobustModel
from gschedd.plan.forecast import Forecast
from gschedd.policies.queue import fifo
from scripts.reproduce.generated_kinds import Machine, Program, machines, programs
from tests.support.world import BEGIN_S, Caller, World, node, settings

NODES = 4
CPUS = 16
#: Part of all CPU time that the jobs need.
LOAD = 0.9
POLICIES = ("fifo", "balance")


class Said(NamedTuple):
    """A prediction, and when it was made: seconds since the beginning."""

    job: int
    at_s: float
    start: Forecast


class Case(NamedTuple):
    """A prediction beside what happened; times are from the prediction on, seconds."""

    waited_s: float
    expected_s: float
    early_s: float
    late_s: float
    planned_s: float
    learned: float

    @property
    def is_covered(self) -> bool:
        """Return whether the start lay in the interval; a second is what a cycle may take."""
        return self.early_s - 1 <= self.waited_s <= self.late_s + 1


def world_of(policy: str) -> World:
    """Return an idle cluster under a policy; of training jobs it plans none."""
    plan = fifo.plan if policy == "fifo" else ALL.choose(policy).plan
    nodes = [node(f"n{number}", cpus=CPUS) for number in range(1, NODES + 1)]
    world = World(*nodes, policy=plan, config=settings())
    world.head.model = RobustModel()
    return world


def simulate(policy: str, seed: int, *, jobs: int, every: int) -> tuple[list[Case], int]:
    """Return the cases of one run, and how many predictions had no interval."""
    chance = random.Random(f"{seed} starts")
    kinds = [each for each in programs(random.Random(seed)) if each.threads <= CPUS]
    machine = machines(random.Random(seed))[1]
    mean_s = mean_gap_s(kinds, machine, chance)
    world = world_of(policy)
    said: list[Said] = []
    waiting = 0
    for number in range(jobs):
        world.run_for(chance.expovariate(1 / mean_s))
        job = submit(world, chance.choice(kinds), machine, chance)
        if world.state(job) != "queued":
            continue
        waiting += 1
        if number > jobs // 4 and not waiting % every:
            said.append(Said(job, world.elapsed_s, predict(world, world.head.state.jobs[job])))
    while any(world.state(each.job) == "queued" for each in said):
        world.run_for(86400.0)
    cases = [case for each in said if (case := case_of(world, each)) is not None]
    return cases, len(said) - len(cases)


def mean_gap_s(kinds: Sequence[Program], machine: Machine, chance: random.Random) -> float:
    """Return the mean time between two submissions that gives the load, seconds."""
    runs = [(each.threads, each.asked_s, run_s(each, machine, chance)) for each in kinds * 20]
    work = sum(cpus * min(wall_s, asked_s) for cpus, asked_s, wall_s in runs) / len(runs)
    return work / (LOAD * NODES * CPUS)


def run_s(kind: Program, machine: Machine, chance: random.Random) -> float:
    """Return how long the next run of a kind takes, seconds."""
    return kind.run(chance, machine, 0.0).record.wall_s


def submit(world: World, kind: Program, machine: Machine, chance: random.Random) -> int:
    """Submit the next job of a kind."""
    owner = Caller(user=f"u{kind.owner}", uid=kind.owner, gid=100)
    return world.submit(
        f"ncpus={kind.threads},walltime={kind.asked_s:.0f}",
        by=owner,
        runs_s=run_s(kind, machine, chance),
        kind=kind.key,
        name=kind.name.replace(":", "_"),
    )


def predict(world: World, job: Job) -> Forecast:
    """Return the prediction for a job that waits."""
    head = world.head
    seen = snapshot(head.state, head.settings, world.now_s, head.model)
    question = question_of(job, state=head.state, settings=head.settings, seen=seen)
    return answer_to(question, world.policy).starts[job.id]


def case_of(world: World, said: Said) -> Case | None:
    """Return a prediction beside what happened; None: it had no interval."""
    spread, planned_s = said.start.interval, said.start.start_s
    started_s = world.started_s(said.job)
    if spread is None or spread.expected_s is None or spread.late_s is None or planned_s is None:
        return None
    if started_s is None:
        return None
    zero_s = BEGIN_S + said.at_s
    return Case(
        waited_s=started_s - said.at_s,
        expected_s=spread.expected_s - zero_s,
        early_s=spread.early_s - zero_s,
        late_s=spread.late_s - zero_s,
        planned_s=planned_s - zero_s,
        learned=spread.known.learned / max(spread.known.counted, 1),
    )


def quantile(values: Iterable[float], part: float) -> float:
    """Return the value that ``part`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def summary(cases: Sequence[Case], unknown: int) -> dict[str, float]:
    """Return the coverage and the errors of cases; times in seconds."""
    count = max(len(cases), 1)
    off_s = [abs(case.expected_s - case.waited_s) for case in cases]
    return {
        "predictions": len(cases),
        "without_interval": unknown,
        "coverage": sum(case.is_covered for case in cases) / count,
        "earlier": sum(case.waited_s < case.early_s - 1 for case in cases) / count,
        "later": sum(case.waited_s > case.late_s + 1 for case in cases) / count,
        "wait_median_s": quantile((case.waited_s for case in cases), 0.5),
        "error_median_s": quantile(off_s, 0.5),
        "error_p90_s": quantile(off_s, 0.9),
        "width_median_s": quantile((case.late_s - case.early_s for case in cases), 0.5),
        "planned_error_median_s": quantile(
            (abs(case.planned_s - case.waited_s) for case in cases), 0.5
        ),
    }


def show(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table for people."""
    print(
        f"\npredicted starts; the interval asked is {COVERAGE:.0%}\n"
        f"{'policy':<9}{'cases':>7}{'none':>6}{'got':>8}{'earlier':>9}{'later':>8}"
        f"{'wait':>9}{'error':>9}{'p90':>9}{'width':>9}{'planned':>9}"
    )
    for name, row in rows.items():
        print(
            f"{name:<9}{row['predictions']:>7}{row['without_interval']:>6}{row['coverage']:>8.1%}"
            f"{row['earlier']:>9.1%}{row['later']:>8.1%}{row['wait_median_s']:>8.0f}s"
            f"{row['error_median_s']:>8.0f}s{row['error_p90_s']:>8.0f}s"
            f"{row['width_median_s']:>8.0f}s{row['planned_error_median_s']:>8.0f}s"
        )
    print("wait, error, width: medians; planned: median error if all run as long as is planned")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the coverage of predicted starts under each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-4", help="A-B")
    parser.add_argument("--jobs", type=int, default=600, help="for each seed")
    parser.add_argument("--every", type=int, default=3, help="predict of each so many waiting jobs")
    parser.add_argument("--policies", default=",".join(POLICIES))
    asked = parser.parse_args(arguments)
    first, _, last = asked.seeds.partition("-")
    rows: dict[str, dict[str, float]] = {}
    for policy in asked.policies.split(","):
        cases: list[Case] = []
        unknown = 0
        for seed in range(int(first), int(last or first) + 1):
            found, none = simulate(policy, seed, jobs=asked.jobs, every=asked.every)
            cases += found
            unknown += none
        rows[policy] = summary(cases, unknown)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
