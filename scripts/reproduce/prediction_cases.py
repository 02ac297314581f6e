"""The coverage of predicted starts where little is known: a new cluster, a new user, a long array.

Each case is a cluster of its own with its own users and programs. The real head schedules on
modelled nodes with a virtual clock, and predicts the start of one job that waits; the prediction is
compared with what happened. Beside it the floor: the same forecast from walltimes alone.

The part of its walltime that a program uses is uniform (Mu'alem & Feitelson, IEEE TPDS
12(6):529-543, 2001), alike for the programs of one user, before the walltime is rounded up to one
that people write; one program in twelve reaches its walltime. Run times of programs are log-normal,
or those of recorded jobs (``--durations``). Runs of one program scatter, 4 % fail early, 2 % take
several times as long. Nothing of this is taken from what predicts.

Of an array of 100,000 elements the head runs the first ones; the others are dealt to the places
that free up (`dealt_s`), as the head does: a test compares both.
"""

import argparse
import csv
import heapq
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import NormalDist
from typing import Final, NamedTuple

from gsched.model.ids import element_number
from gschedd.core.cycle.run import snapshot
from gschedd.core.forecast.question import question_of
from gschedd.core.forecast.start import COVERAGE, answer_to
from gschedd.core.state.records import Job
from gschedd.core.state.settings import Caller
from gschedd.models.records import Record
from gschedd.models.robust import RobustModel
from gschedd.plan.forecast import Forecast
from gschedd.plan.load import Kind, NodeRates, Predictor, Use
from gschedd.policies.queue import fifo
from scripts.reproduce.arguments import shared_data
from scripts.reproduce.prediction_starts import Case, quantile
from tests.support.world import BEGIN_S, Program, World, node, settings

#: Walltimes that people write, minutes.
POPULAR_MIN: Final = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 2880, 4320)
#: The part of what a program uses of its walltime that all programs of a user have in common.
HABIT: Final = 0.3
#: The part of the programs that reach their walltime.
REACH_LIMIT: Final = 1 / 12
SPREADS: Final = (0.05, 0.15, 0.4, 0.8)
ELEMENTS: Final = 100_000
NORMAL: Final = NormalDist()


class Kinds:
    """Programs of users, drawn from one seed.

    Args:
        durations: typical run times to choose from, seconds; none: log-normal ones.
    """

    def __init__(self, chance: random.Random, durations: Sequence[float]) -> None:
        self._chance = chance
        self._durations = durations
        self._habits: dict[int, float] = {}
        self._count = 0

    def draw(self, owner: int, *, cpus: Sequence[int] = (1, 1, 2, 4, 8)) -> "RunKind":
        """Return the next program of a user."""
        chance = self._chance
        self._count += 1
        habit = self._habits.setdefault(owner, chance.gauss(0, 1))
        typical_s = math.exp(chance.gauss(math.log(900), 1.4))
        if self._durations:
            typical_s = chance.choice(self._durations)
        typical_s = min(max(typical_s, 5.0), 0.9 * 60 * POPULAR_MIN[-1])
        part = NORMAL.cdf(math.sqrt(HABIT) * habit + math.sqrt(1 - HABIT) * chance.gauss(0, 1))
        if chance.random() < REACH_LIMIT:
            part = chance.uniform(1.0, 1.5)
        walltime_s = next(
            (
                60.0 * each
                for each in POPULAR_MIN
                if 60 * each * part >= typical_s * min(part, 1)
                and 60 * each >= typical_s / max(part, 1e-3)
            ),
            60.0 * POPULAR_MIN[-1],
        )
        return RunKind(
            name=f"k{owner}-{self._count}",
            owner=owner,
            cpus=chance.choice(cpus),
            typical_s=typical_s,
            spread=chance.choice(SPREADS),
            walltime_s=walltime_s,
        )


class RunKind(NamedTuple):
    """One program; its runs are alike."""

    name: str
    owner: int
    cpus: int
    typical_s: float
    spread: float
    walltime_s: float

    def run_s(self, chance: random.Random) -> float:
        """Return how long the next run takes, seconds; its walltime ends it."""
        run_s = self.typical_s * math.exp(chance.gauss(0, self.spread))
        luck = chance.random()
        if luck < 0.04:
            run_s *= chance.uniform(0.01, 0.3)
        elif luck < 0.06:
            run_s *= chance.uniform(3, 10)
        return min(max(run_s, 0.5), self.walltime_s)


class Outcome(NamedTuple):
    """A prediction and the floor beside what happened; None: there was no interval."""

    case: Case | None
    floor: Case | None


# --- a cluster ---


class Cluster:
    """A world of equal nodes, and what has been predicted in it."""

    def __init__(self, seed: str, nodes: int, cpus: int) -> None:
        self.chance = random.Random(seed)
        machines = [node(f"n{number}", cpus=cpus) for number in range(1, nodes + 1)]
        self.world = World(*machines, policy=fifo.plan, config=settings())
        self.model = RobustModel()
        self.world.head.model = self.model
        self.slots = nodes * cpus

    def submit(self, kind: RunKind, *, array: str = "") -> int:
        """Submit the next run of a program."""
        owner = Caller(user=f"u{kind.owner}", uid=kind.owner, gid=100)
        return self.world.submit(
            f"ncpus={kind.cpus},walltime={kind.walltime_s:.0f}",
            by=owner,
            runs_s=kind.run_s(self.chance),
            kind=kind.name,
            name=kind.name,
            array=array,
        )

    def waiting(self) -> list[int]:
        """Return the jobs that wait, no arrays."""
        jobs = self.world.head.state.jobs.values()
        return [job.id for job in jobs if job.state == "queued" and job.spec.array is None]

    def predict(self, job: int, predictor: Predictor | None) -> Forecast:
        """Return the prediction for a job that waits."""
        return predicted(self.world, self.world.head.state.jobs[job], predictor)

    def both(self, job: int) -> tuple[float, Forecast, Forecast]:
        """Return now, the prediction and the floor."""
        return self.world.elapsed_s, self.predict(job, self.model), self.predict(job, None)

    def outcome(self, job: int, said: tuple[float, Forecast, Forecast]) -> Outcome:
        """Return predictions beside the start, which is awaited."""
        while self.world.started_s(job) is None:
            self.world.run_for(600.0)
        started_s = self.world.started_s(job)
        assert started_s is not None
        return outcome_of(started_s, *said)


def predicted(world: World, job: Job, predictor: Predictor | None) -> Forecast:
    """Return the prediction for a job of a world."""
    head = world.head
    seen = snapshot(head.state, head.settings, world.now_s, predictor)
    question = question_of(job, state=head.state, settings=head.settings, seen=seen)
    return answer_to(question, world.policy).starts[job.id]


def outcome_of(started_s: float, at_s: float, said: Forecast, floor: Forecast) -> Outcome:
    """Return predictions beside a start; times are seconds since the beginning."""
    return Outcome(case_of(started_s, at_s, said), case_of(started_s, at_s, floor))


def case_of(started_s: float, at_s: float, said: Forecast) -> Case | None:
    """Return a prediction beside what happened; None: it had no interval."""
    spread, zero_s = said.interval, BEGIN_S + at_s
    if spread is None or spread.expected_s is None or spread.late_s is None:
        return None
    return Case(
        waited_s=started_s - at_s,
        expected_s=spread.expected_s - zero_s,
        early_s=spread.early_s - zero_s,
        late_s=spread.late_s - zero_s,
        planned_s=(said.start_s or spread.expected_s) - zero_s,
        learned=spread.known.learned / max(spread.known.counted, 1),
    )


# --- scenarios ---


def new_cluster(seed: str, durations: Sequence[float]) -> Outcome | None:
    """Two to six users send their first jobs to a cluster that has never run any."""
    cluster = Cluster(seed, nodes=2, cpus=8)
    chance, world = cluster.chance, cluster.world
    drawn = Kinds(chance, durations)
    owners = range(1001, 1001 + chance.randint(2, 6))
    kinds = [drawn.draw(owner) for owner in owners for _ in range(chance.randint(1, 3))]
    work_s = sum(each.typical_s * each.cpus for each in kinds) / len(kinds)
    gap_s = work_s / cluster.slots / chance.uniform(1.0, 3.0)
    first = chance.randint(3, 25)
    said = job = None
    for number in range(first + 15):
        world.run_for(chance.expovariate(1 / gap_s))
        cluster.submit(chance.choice(kinds))
        if said is None and number >= first and (waiting := cluster.waiting()):
            world.run_for(chance.uniform(0, gap_s))
            job = chance.choice(waiting)
            if world.state(job) == "queued":
                said = cluster.both(job)
    if said is None or job is None:
        return None
    return cluster.outcome(job, said)


def new_user(seed: str, durations: Sequence[float]) -> Outcome | None:
    """A user whom a busy cluster does not know sends jobs among those of eight others."""
    cluster = Cluster(seed, nodes=2, cpus=8)
    chance, world = cluster.chance, cluster.world
    drawn = Kinds(chance, durations)
    known = [drawn.draw(owner) for owner in range(1001, 1009) for _ in range(3)]
    for number in range(300):
        teach(cluster.model, chance.choice(known), chance, 10.0 * number)
    new = [drawn.draw(2000) for _ in range(chance.randint(1, 3))]
    work_s = sum(each.typical_s * each.cpus for each in known) / len(known)
    gap_s = work_s / cluster.slots / chance.uniform(1.0, 2.0)
    first = chance.randint(8, 20)
    for _ in range(first):
        world.run_for(chance.expovariate(1 / gap_s))
        cluster.submit(chance.choice(known))
    mine = [cluster.submit(chance.choice(new)) for _ in range(chance.randint(2, 8))]
    behind = [cluster.submit(chance.choice(known)) for _ in range(2)]
    world.run_for(chance.uniform(0, gap_s))
    waiting = [job for job in (*mine[1:], *behind) if world.state(job) == "queued"]
    if not waiting:
        return None
    job = chance.choice(waiting)
    said = cluster.both(job)
    for _ in range(10):
        world.run_for(chance.expovariate(1 / gap_s))
        cluster.submit(chance.choice(known))
    return cluster.outcome(job, said)


def teach(model: RobustModel, kind: RunKind, chance: random.Random, at_s: float) -> None:
    """Let a model learn of a past run, on a node like those of the cluster."""
    run_s = kind.run_s(chance)
    model.learn(
        Record(
            kind=Kind(
                key=f"{kind.owner}:kind:{kind.name}",
                program=f"{kind.owner}:name:{kind.name}",
                owner_uid=kind.owner,
                cpus=kind.cpus,
                walltime_s=kind.walltime_s,
            ),
            node=chance.choice(("n1", "n2")),
            rates=NodeRates(cores=8, memory_bytes=16 * 1024**3),
            wall_s=run_s,
            used=Use(cpu_cores=kind.cpus),
            ended_s=BEGIN_S - 10_000 + at_s,
        )
    )


def behind_array(seed: str, durations: Sequence[float]) -> Outcome | None:
    """A job waits behind an array of which between none and sixty elements have ended."""
    chance = random.Random(seed)
    cluster = Cluster(f"{seed} array", nodes=chance.randint(1, 4), cpus=chance.choice((4, 8)))
    world, drawn = cluster.world, Kinds(chance, durations)
    kind, mine = drawn.draw(1001, cpus=(1, 1, 2)), drawn.draw(1002, cpus=(1,))
    for number in range(chance.choice((0, 0, 1, 40))):  # of other programs, or of none
        teach(cluster.model, drawn.draw(1001 + number % 5), chance, 10.0 * number)
    runs_s = [kind.run_s(chance) for _ in range(ELEMENTS)]
    array = cluster.submit(kind, array=f"0-{ELEMENTS - 1}")
    for index in range(600):
        world.programs[element_number(array, index)] = Program(runs_s=runs_s[index])
    world.run_for(0)
    job = cluster.submit(mine)
    after = chance.choice((0, 1, 3, 6, 20, 60))
    while world.head.state.jobs[array].elements.succeeded < after:  # type: ignore[union-attr]  # it is an array
        world.run_for(kind.typical_s / 20)
    world.run_for(chance.uniform(0, 0.5 * kind.typical_s))
    said = cluster.both(job)
    started_s = dealt_s(runs_s, cluster.slots // kind.cpus)
    return outcome_of(started_s, *said)


def dealt_s(runs_s: Sequence[float], places: int) -> float:
    """Return when the first job behind elements starts that are dealt to places as they free up.

    Args:
        runs_s: how long each element runs, in their order, seconds; they begin at 0.
    """
    ends_s = [0.0] * places
    for run_s in runs_s:
        heapq.heapreplace(ends_s, ends_s[0] + run_s)
    return ends_s[0]


# --- cases whose answer is known ---


def exact(seed: str, durations: Sequence[float]) -> Outcome | None:
    """All jobs run exactly for their walltimes: the planned start is the start, to the second.

    No two jobs end at the same moment: the order in which the head learns of such ends decides
    which jobs backfill, and no forecast can know that order. So each job has a walltime and a
    time of submission of its own.
    """
    cluster = Cluster(seed, nodes=2, cpus=8)
    chance, world = cluster.chance, cluster.world
    drawn = Kinds(chance, durations)
    kinds = [drawn.draw(1001 + number) for number in range(4)]
    world.head.model = None
    jobs: list[int] = []
    for _ in range(20):
        kind = chance.choice(kinds)
        walltime_s = round(kind.walltime_s * chance.uniform(0.7, 1.3))
        kind = kind._replace(typical_s=1e4 * walltime_s, spread=0.0, walltime_s=walltime_s)
        jobs.append(cluster.submit(kind))
        world.run_for(chance.uniform(0, 1))
    world.run_for(chance.uniform(0, 300))
    waiting = [job for job in jobs if world.state(job) == "queued"]
    if not waiting:
        return None
    job = waiting[-1]  # others may be overtaken by jobs behind them
    at_s, _, floor = cluster.both(job)
    planned_s = (floor.start_s or 0.0) - BEGIN_S - at_s
    got = cluster.outcome(job, (at_s, floor, floor)).floor
    return got and Outcome(got._replace(early_s=planned_s, late_s=planned_s), got)


def uniform(seed: str, durations: Sequence[float]) -> Outcome | None:
    """One job is ahead and uses any part of its walltime with equal probability.

    The interval holds in as many cases as its width is of the walltime; so the floor is exact.
    """
    cluster = Cluster(seed, nodes=1, cpus=1)
    kind = Kinds(cluster.chance, durations).draw(1001, cpus=(1,))
    part = cluster.chance.random()
    kind = kind._replace(typical_s=max(part * kind.walltime_s, 0.5))
    cluster.submit(kind)
    first = cluster.world.head.state.running
    for number in first:
        cluster.world.programs[number].runs_s = kind.typical_s
    job = cluster.submit(Kinds(cluster.chance, durations).draw(1002, cpus=(1,)))
    if cluster.world.state(job) != "queued":
        return None
    at_s, said, floor = cluster.both(job)
    return outcome_of(kind.typical_s, at_s, said, floor)


SCENARIOS: Final[Mapping[str, Callable[[str, Sequence[float]], Outcome | None]]] = {
    "exact": exact,
    "uniform": uniform,
    "cluster": new_cluster,
    "user": new_user,
    "array": behind_array,
}


@cache
def read_durations(names: tuple[str, ...]) -> tuple[float, ...]:
    """Return the run times of recorded jobs, seconds."""
    found: list[float] = []
    for name in names:
        with (shared_data("elasticflow") / f"{name}.csv").open(encoding="utf-8") as file:
            found += [float(row["duration"]) for row in csv.DictReader(file)]
    return tuple(found)


def summary(cases: Iterable[Case | None]) -> list[str]:
    """Return coverage, misses, median error and median width of cases, as cells."""
    known = [case for case in cases if case is not None]
    count = max(len(known), 1)
    got = sum(case.is_covered for case in known) / count
    early = sum(case.waited_s < case.early_s - 1 for case in known) / count
    late = sum(case.waited_s > case.late_s + 1 for case in known) / count
    # medians are of parts of the wait: cases differ by factors of a thousand
    error = quantile((abs(c.expected_s - c.waited_s) / max(c.waited_s, 60) for c in known), 0.5)
    width = quantile(((c.late_s - c.early_s) / max(c.waited_s, 60) for c in known), 0.5)
    return [f"{got:.1%}", f"{early:.1%}", f"{late:.1%}", f"{error:.0%}", f"{width:.0%}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the coverage in each scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="for each scenario")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--durations", default="", help="recorded jobs: cluster04,cluster05")
    asked = parser.parse_args(arguments)
    names = tuple(filter(None, asked.durations.split(",")))
    durations = read_durations(names) if names else ()
    print(f"predicted starts, run times: {', '.join(names) or 'log-normal'}; asked {COVERAGE:.0%}")
    titles = ("got", "earlier", "later", "error", "width")
    print(f"{'scenario':<9}{'cases':>6}{'none':>6}" + "".join(f"{each:>9}" for each in titles * 2))
    for name in asked.scenarios.split(","):
        found: list[Outcome] = []
        seed = asked.first
        while len(found) < asked.cases:
            outcome = SCENARIOS[name](f"{name} {seed}", durations)
            seed += 1
            if outcome is not None:
                found.append(outcome)
        none = sum(each.case is None for each in found)
        cells = summary(each.case for each in found) + summary(each.floor for each in found)
        print(f"{name:<9}{len(found):>6}{none:>6}" + "".join(f"{each:>9}" for each in cells))
    print("second half: from walltimes alone; error, width: medians, as parts of the wait")
    return 0


if __name__ == "__main__":
    sys.exit(main())
