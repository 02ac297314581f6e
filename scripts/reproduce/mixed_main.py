"""What shares and pre-emption do for the users of a cluster: beside a flood, and over a week.

With --flood rigid GPU jobs of twenty users arrive at random on 4 nodes of 8 GPUs, and another user
submits 1,500 jobs at once. Each list is simulated as it is and with the flood, by four rules: no
shares; shares, where all users are members of one project with one share each; these with
pre-emption by QOS, where that of the twenty preempts that of the flood; and with pre-emption by
share. Printed are the mean wait of the twenty users' jobs, how far the flood changes it, the work
lost to pre-emption as a part of the GPU time of all jobs, how many jobs gave way, the shortest time
between two times of one job, and the longest wait.

With --week four users with 1, 2, 3 and 4 shares submit jobs for a week, each for the load's part of
what its shares are. Printed is what each got of the GPU time, and what its job got that held the
most of it at the end of the week, as a part of what the user is due: jobs start in the order of
usage, and what a job that has just started will use shows in that order only later.
"""

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Final

from msgspec import Struct, structs

from gsched.config.limits import ResourceLimits
from gsched.config.preemption import PreemptionConfig, PreemptRule
from gsched.config.shares import PriorityConfig, ProjectConfig, QosConfig
from gsched.config.tables import Config
from gsched.model.resources import WHOLE_PERCENT, percent_held
from gsched.model.training import Training
from gschedd.core.state import facts as f
from gschedd.policies.queue import balance, fifo
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import BEGIN_S, Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.arguments import count_of, positive_of, seeds_of
from scripts.reproduce.mixed_causes import CAUSES, Causes

EXAMPLES: Final = """examples:
  scripts/reproduce/mixed --flood --load 0.6 --hours 16
  scripts/reproduce/mixed --flood --seeds 0-9 --max-loss 0.05
  scripts/reproduce/mixed --flood --seeds 0-1 --hours 8 --floors --why
  scripts/reproduce/mixed --flood --flood-saves --load 0.6 --hours 16 --seeds 0-9 --settings
  scripts/reproduce/mixed --week --load 1.2 --check
"""
HOUR_S: Final = 3600.0
WEEK_S: Final = 168 * HOUR_S
NODES: Final = 4
GPUS: Final = 8
USERS: Final = [f"user{number}" for number in range(20)]
FLOOD: Final = "flood"
#: Users and shares of --week.
SHARES: Final = {"one": 1, "two": 2, "three": 3, "four": 4}
#: Users state walltimes in multiples of this, seconds.
ROUND_S: Final = 600.0
#: GPUs that the QOS of the flood leaves to others with --settings.
RESERVE: Final = 4
#: Weights of the numbers of GPUs of a job.
SIZES: Final = {1: 50, 2: 20, 4: 20, 8: 10}
POLICIES: Final = {"balance": balance.plan, "fifo": fifo.plan}
#: Aims: how far the mean wait changes, how much GPU time is lost, the least time between two times
#: that a job gives way, and how far users are off their shares.
MOST_CHANGE: Final = 0.10
MOST_LOST: Final = 0.02
LEAST_AGAIN_S: Final = 1800.0
MOST_OFF: Final = 0.05
RESAMPLES: Final = 2000  # of the lists, for an interval


class Wanted(Struct, frozen=True, kw_only=True):
    """What is simulated: see the options."""

    hours: float
    load: float
    jobs: int
    runs_s: float
    policy: str
    max_loss: float | None = None
    flood_saves: bool = False
    floors: bool = False
    settings: bool = False
    why: bool = False


class Outcome(Struct, kw_only=True):
    """What came of one list of jobs.

    Attributes:
        waits_s: of the jobs of all but the flood.
        work_s: GPU time of all jobs, without what was lost.
        lost_s: GPU time that was lost to pre-emption.
        preempted: how often jobs gave way.
        again_s: the shortest time between two times of one job.
        causes_s: why the jobs waited, if that was asked for.
    """

    waits_s: list[float] = []
    causes_s: dict[str, float] = {}
    work_s: float = 0.0
    lost_s: float = 0.0
    preempted: int = 0
    again_s: float = math.inf

    @property
    def lost(self) -> float:
        """Return the lost part of the GPU time of all jobs."""
        return self.lost_s / (self.work_s + self.lost_s)

    def add(self, other: "Outcome") -> None:
        """Add what came of another list."""
        self.waits_s = self.waits_s + other.waits_s
        self.work_s += other.work_s
        self.lost_s += other.lost_s
        self.preempted += other.preempted
        self.again_s = min(self.again_s, other.again_s)
        for cause, waits_s in other.causes_s.items():
            self.causes_s[cause] = self.causes_s.get(cause, 0.0) + waits_s


def regular_jobs(wanted: Wanted, draw: random.Random) -> list[TraceJob]:
    """Return the jobs of all but one: run times are log-normal, one hour on average."""
    size = mean(random.Random(0).choices(list(SIZES), list(SIZES.values()), k=100_000))
    rate_s = wanted.load * NODES * GPUS / (size * HOUR_S)
    found: list[TraceJob] = []
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(rate_s)) < wanted.hours * HOUR_S:
        gpus = draw.choices(list(SIZES), list(SIZES.values()))[0]
        runs_s = draw.lognormvariate(-0.5, 1.0) * HOUR_S
        found.append(_job(draw.choice(USERS), at_s, gpus, runs_s, "regular"))
    return found


def flood_jobs(wanted: Wanted, draw: random.Random) -> list[TraceJob]:
    """Return the jobs of the flood, all submitted after a quarter of the time."""
    at_s = wanted.hours * HOUR_S / 4
    jobs = [
        _job(FLOOD, at_s, 1, draw.lognormvariate(-0.5, 1.0) * wanted.runs_s, "scavenger")
        for _ in range(wanted.jobs)
    ]
    return [_saving(job) for job in jobs] if wanted.flood_saves else jobs


def _saving(job: TraceJob) -> TraceJob:
    """Return a job of one GPU as a training job that saves its state."""
    training = Training(iterations=job.duration_s, rates=((1, 1.0),))
    words = f"select=1:ncpus=1:ngpus=1,place=free,walltime={job.walltime_s:.0f}"
    return structs.replace(job, training=training, resources=words)


def week_jobs(load: float, draw: random.Random) -> list[TraceJob]:
    """Return jobs for a week; each user's are the load's part of what its shares are."""
    found: list[TraceJob] = []
    for user, shares in SHARES.items():
        left_s = load * shares / sum(SHARES.values()) * NODES * GPUS * WEEK_S
        while left_s > 0:
            gpus = draw.choices(list(SIZES), list(SIZES.values()))[0]
            runs_s = draw.lognormvariate(-0.5, 1.0) * HOUR_S
            found.append(_job(user, draw.uniform(0, WEEK_S), gpus, runs_s))
            left_s -= gpus * found[-1].duration_s
    return found


def _job(user: str, at_s: float, gpus: int, runs_s: float, qos: str = "") -> TraceJob:
    runs_s = max(60.0, runs_s)
    walltime_s = math.ceil(runs_s * 1.5 / ROUND_S) * ROUND_S
    return TraceJob(
        submit_s=at_s,
        duration_s=runs_s,
        user=user,
        cpus=gpus,
        gpus=gpus,
        walltime_s=walltime_s,
        qos=qos,
    )


def sites(
    max_loss: float | None, *, floors: bool = False, settings: bool = False
) -> dict[str, Config]:
    """Return the configurations that are compared.

    Args:
        max_loss: of [preemption]; None: its default.
        floors: with two that no site can have.
        settings: with two by share that a site can: no minimum run, and a reserve.
    """
    project = ProjectConfig(name="all", users=(*USERS, FLOOD))
    shares = Config(
        project=(project,),
        priority=PriorityConfig(),
        qos=(QosConfig(name="regular", preempts=("scavenger",)), QosConfig(name="scavenger")),
    )
    found = {"no shares": Config(), "shares": shares}
    rules: tuple[PreemptRule, ...] = ("qos", "share")
    for rule in rules:
        config = PreemptionConfig(by=(rule,))
        if max_loss is not None:
            config = structs.replace(config, max_loss=max_loss)
        found[f"by {rule}"] = structs.replace(shares, preemption=config)
    for name, min_run_s in (("at once", 0.0), ("min run", 60.0)) if floors else ():
        config = PreemptionConfig(by=("qos",), min_run_s=min_run_s, again_s=0.0)
        found[name] = structs.replace(shares, preemption=config)
    if settings:
        by_share = found["by share"].preemption
        found["no min run"] = structs.replace(
            shares, preemption=structs.replace(by_share, min_run_s=0.0)
        )
        most = ResourceLimits(max_gpus=NODES * GPUS - RESERVE)
        regular, scavenger = shares.qos
        limited = (regular, structs.replace(scavenger, total=most))
        found["reserve"] = structs.replace(found["by share"], qos=limited)
    return found


def simulation_of(
    jobs: Sequence[TraceJob],
    policy: str,
    site: Config,
    on_result: Callable[[JobResult], None] | None = None,
) -> Simulation:
    """Return the simulation of jobs on the cluster; without shares they have no QOS."""
    if not site.qos:
        jobs = [structs.replace(job, qos="") for job in jobs]
    return Simulation(
        read_cluster(f"{NODES}xcpus=64,gpus={GPUS},memory=512gb"),
        sorted(jobs, key=lambda job: job.submit_s),
        POLICIES[policy],
        options=Options(policy=policy, site=site),
        on_result=on_result,
    )


def outcome_of(jobs: Sequence[TraceJob], wanted: Wanted, site: Config) -> Outcome:
    """Return what comes of jobs."""
    found = Outcome(work_s=sum(job.gpus * job.duration_s for job in jobs), waits_s=[])
    last_s: dict[int, float] = {}

    def note(result: JobResult) -> None:
        if result.user != FLOOD:
            found.waits_s.append(result.wait_s)

    def see(facts: Sequence[f.AnyFact]) -> None:
        for fact in facts:
            if isinstance(fact, f.JobPreempted):
                found.preempted += 1
                found.lost_s += fact.gpus * fact.lost_s
                found.again_s = min(found.again_s, fact.at_s - last_s.get(fact.job, -math.inf))
                last_s[fact.job] = fact.at_s

    simulation = simulation_of(jobs, wanted.policy, site, note)
    simulation.recorder.on_facts = see
    if not wanted.why:
        simulation.run()
        return found
    causes = Causes(simulation, FLOOD)
    while simulation.run(turns=1):
        causes.see(simulation.next_s() - simulation.agenda.now_s)
    found.causes_s = dict(causes.waits_s)
    return found


class UserTime(Struct, kw_only=True):
    """The GPU time of a user in the week, and of the job that had the most of it at its end."""

    all_s: float = 0.0
    last_s: float = 0.0


def gpu_time_of(jobs: Sequence[TraceJob], policy: str, site: Config) -> dict[str, UserTime]:
    """Return the GPU time that each user had in the first week, seconds."""
    found = {user: UserTime() for user in SHARES}
    held: dict[int, tuple[str, float, float]] = {}
    simulation = simulation_of(jobs, policy, site)
    end_s = BEGIN_S + WEEK_S

    def bill(job: int, at_s: float) -> None:
        user, gpus, since_s = held.pop(job)
        used_s = gpus * max(0.0, min(at_s, end_s) - since_s)
        found[user].all_s += used_s
        if at_s >= end_s:
            found[user].last_s = max(found[user].last_s, used_s)

    def see(facts: Sequence[f.AnyFact]) -> None:
        for fact in facts:
            if isinstance(fact, f.AttemptAssigned):
                gpus = percent_held(fact.allocation) / WHOLE_PERCENT
                held[fact.job] = (simulation.recorder.traced[fact.job].user, gpus, fact.at_s)
            elif isinstance(fact, f.AttemptEnded):
                bill(fact.job, fact.at_s)

    simulation.recorder.on_facts = see
    while simulation.run(turns=100) and simulation.agenda.now_s < end_s:
        pass
    for job in list(held):
        bill(job, end_s)
    return found


def flood_table(wanted: Wanted, seeds: Sequence[int], *, flood: bool) -> Iterator[str]:
    """Print a line for each seed and rule, and for all seeds; yield the aims that are missed."""
    print("seed  rule        alone h  with flood h   change   lost  gave way  again min  longest h")
    compared = sites(wanted.max_loss, floors=wanted.floors, settings=wanted.settings)
    alones: dict[str, list[Outcome]] = {name: [] for name in compared}
    besides: dict[str, list[Outcome]] = {name: [] for name in compared}
    for seed in seeds:
        regular = regular_jobs(wanted, random.Random(seed))
        extra = flood_jobs(wanted, random.Random(seed + 1000)) if flood else []
        for name, site in compared.items():
            one = outcome_of(regular, wanted, site)
            both = outcome_of([*regular, *extra], wanted, site) if flood else one
            alones[name].append(one)
            besides[name].append(both)
            print(_line(str(seed), name, one, both), flush=True)
    alone = {name: together(found) for name, found in alones.items()}
    beside = {name: together(found) for name, found in besides.items()}
    for name, one in alone.items():
        print(_line("all", name, one, beside[name]))
    for name, found in alones.items() if flood and len(seeds) > 1 else ():
        _print_spread(name, seeds, found, besides[name])
    _print_part(wanted.load)
    if wanted.why:
        _print_causes(alone, beside)
    for name in ("by qos", "by share"):
        yield from _missed(name, alone[name], beside[name])


def _missed(name: str, alone: Outcome, beside: Outcome) -> Iterator[str]:
    """Yield the aims that a rule misses."""
    change = _change(alone, beside)
    if change is not None and change > MOST_CHANGE:
        yield f"{name}: the mean wait changes by {change:+.1%}, at most {MOST_CHANGE:.0%}"
    if beside.lost > MOST_LOST:
        yield f"{name}: {beside.lost:.2%} of the GPU time is lost, at most {MOST_LOST:.0%}"
    if beside.again_s < LEAST_AGAIN_S:
        yield f"{name}: a job gives way again after {beside.again_s:.0f} s"


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """Return what came of several lists."""
    found = Outcome()
    for each in outcomes:
        found.add(each)
    return found


def _print_spread(
    name: str, seeds: Sequence[int], alone: Sequence[Outcome], beside: Sequence[Outcome]
) -> None:
    """Print the median of the lists' changes, the change without one list, and how sure it is."""
    changes = [_change(one, both) for one, both in zip(alone, beside, strict=True)]
    known = [change for change in changes if change is not None]
    most = max(range(len(seeds)), key=lambda number: sum(alone[number].waits_s))
    rest = _change(
        together([*alone[:most], *alone[most + 1 :]]),
        together([*beside[:most], *beside[most + 1 :]]),
    )
    if known and rest is not None:
        print(
            f"{name}: median of the lists {median(known):+.1%}; without list {seeds[most]}, which "
            f"waits most, {rest:+.1%}; all: 95 % of {RESAMPLES} resamples of the lists are "
            "between {:+.1%} and {:+.1%}".format(*_interval(alone, beside))
        )


def _interval(alone: Sequence[Outcome], beside: Sequence[Outcome]) -> tuple[float, float]:
    """Return between which changes 95 % of all resamples of the lists are (a bootstrap).

    A list has the same jobs on both sides, so the change of the mean is that of the sum.
    """
    chance = random.Random(0)
    waits_s = [
        (sum(one.waits_s), sum(both.waits_s)) for one, both in zip(alone, beside, strict=True)
    ]
    changes = []
    for _ in range(RESAMPLES):
        drawn = chance.choices(waits_s, k=len(waits_s))
        before_s, after_s = (sum(side) for side in zip(*drawn, strict=True))
        changes.append(after_s / before_s - 1 if before_s else 0.0)
    changes.sort()
    return changes[RESAMPLES // 40], changes[-RESAMPLES // 40 - 1]


def change_by_part(load: float, part: float) -> float:
    """Return how far the mean wait changes when one more user takes a part of all GPUs.

    That is in a queue with one server, whose load goes from ``load`` to load / (1 - part).
    """
    return part / (1 - part - load) if load + part < 1 else math.inf


def _print_part(load: float) -> None:
    part = 1 / (len(USERS) + 1)
    print(
        f"by share the flood's user is due {part:.1%} of the GPUs: in a queue with one server at "
        f"load {load:g}\nthe mean wait changes by {change_by_part(load, part):+.1%} while it uses "
        "them"
    )


def _print_causes(alone: Mapping[str, Outcome], beside: Mapping[str, Outcome]) -> None:
    print("\nwhy jobs wait, s on average  ", *(f"{cause:>13}" for cause in CAUSES))
    for name, one in alone.items():
        for title, found in ((name, one), (f"{name}, with flood", beside[name])):
            means = (found.causes_s.get(cause, 0.0) / len(found.waits_s) for cause in CAUSES)
            print(f"{title:29}", *(f"{each:13.1f}" for each in means))


def _change(alone: Outcome, both: Outcome) -> float | None:
    """Return how far the mean wait changes; None: nobody waited."""
    return mean(both.waits_s) / mean(alone.waits_s) - 1 if any(alone.waits_s) else None


def _line(seed: str, name: str, alone: Outcome, both: Outcome) -> str:
    change = _change(alone, both)
    changed = "-" if change is None else f"{change:+.1%}"
    again = f"{both.again_s / 60:.1f}" if both.again_s < math.inf else "-"
    return (
        f"{seed:4}  {name:10}  {mean(alone.waits_s) / HOUR_S:7.3f}  "
        f"{mean(both.waits_s) / HOUR_S:12.3f}  {changed:>7}  {both.lost:5.2%}  "
        f"{both.preempted:8}  {again:>9}  {max(both.waits_s) / HOUR_S:9.2f}"
    )


def week_table(wanted: Wanted, seeds: Sequence[int]) -> Iterator[str]:
    """Print a line for each seed, rule and user; yield the aims that are missed."""
    project = ProjectConfig(name="all", users=dict(SHARES))
    shares = Config(project=(project,), priority=PriorityConfig())
    rules = {
        "shares": shares,
        "by share": structs.replace(shares, preemption=PreemptionConfig(by=("share",))),
    }
    print("seed  rule      user   shares    due    got    off  last job")
    whole = sum(SHARES.values())
    for seed in seeds:
        jobs = week_jobs(wanted.load, random.Random(seed))
        for name, site in rules.items():
            times_s = gpu_time_of(jobs, wanted.policy, site)
            for user, number in SHARES.items():
                sum_s = sum(each.all_s for each in times_s.values())
                due, got = number / whole, times_s[user].all_s / sum_s
                off, last = got / due - 1, times_s[user].last_s / sum_s / due
                whose = f"{seed:4}  {name:8}  {user:5}  {number:6}"
                print(f"{whose}  {due:5.1%}  {got:5.1%}  {off:+6.1%}  {last:8.1%}", flush=True)
                if abs(off) > MOST_OFF:
                    most = f"at most {MOST_OFF:.0%}; of that its last job {last:+.1%}"
                    yield f"seed {seed}, {name}: {user} is {off:+.1%} off, {most}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    made = argparse.ArgumentParser(
        prog="scripts/reproduce/mixed",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kind = made.add_mutually_exclusive_group()
    kind.add_argument("--flood", action="store_true", help="with the flood")
    kind.add_argument("--week", action="store_true", help="four users of unequal shares")
    made.add_argument("--seeds", type=seeds_of, default=range(3), help="A-B; default 0-2")
    made.add_argument("--hours", type=positive_of, default=48.0, help="of arrivals; default 48")
    made.add_argument("--load", type=positive_of, default=0.9, help="of all GPUs; default 0.9")
    made.add_argument("--jobs", type=count_of, default=1500, help="of the flood; default 1500")
    made.add_argument("--runs", type=positive_of, default=600.0, help="of them, seconds")
    made.add_argument("--policy", choices=sorted(POLICIES), default="balance")
    made.add_argument("--max-loss", type=positive_of, help="of [preemption]; default: its own")
    made.add_argument("--flood-saves", action="store_true", help="its jobs save their state")
    made.add_argument("--floors", action="store_true", help="also two rules that are floors")
    made.add_argument(
        "--settings",
        action="store_true",
        help="also by share without a minimum run, "
        f"and with {RESERVE} GPUs that the flood's QOS may not use",
    )
    made.add_argument("--why", action="store_true", help="why jobs wait; takes three times as long")
    made.add_argument("--check", action="store_true", help="end with 1 if an aim is missed")
    asked = made.parse_args(arguments)
    wanted = Wanted(
        hours=asked.hours,
        load=asked.load,
        jobs=asked.jobs,
        runs_s=asked.runs,
        policy=asked.policy,
        max_loss=asked.max_loss,
        flood_saves=asked.flood_saves,
        floors=asked.floors,
        settings=asked.settings,
        why=asked.why,
    )
    if asked.week:
        missed = list(week_table(wanted, asked.seeds))
    else:
        missed = list(flood_table(wanted, asked.seeds, flood=asked.flood))
    print("\n".join(["missed:", *missed] if missed else ["all aims are met"]))
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
