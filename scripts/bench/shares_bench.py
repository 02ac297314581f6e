"""What the usage ledger and the factors of fair shares cost, each beside a floor.

A job's start and end are measured together, on a ledger with all users and ten running jobs of
each; the floor is one exponential and two look-ups. Factors are measured from the configuration
and the usage of all to the finished table; the floor is a look-up, a division and a sort.
Scheduling cycles are measured in pairs, with shares and without: 10,000 jobs of 1,000 users in four
classes wait for 100 nodes, and jobs end. Limits of each user make a class of each user's jobs of a
request: 1,500 jobs of 300 users wait for 20 nodes, with such limits and without.
"""

import argparse
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

from gsched.config.limits import ResourceLimits
from gsched.config.shares import ROOT, PriorityConfig, ProjectConfig
from gsched.config.tables import LimitsConfig
from gschedd.core.state.settings import Caller, Settings
from gschedd.policies.queue import balance
from gschedd.shares.ledger import Held, UsageLedger
from gschedd.shares.tree import Association, ShareAccount, ShareTree, ShareUser
from tests.support.world import Machine, World, node, settings

ROUNDS: Final = 15
JOBS: Final = 2_000
#: So many users have a project of their own level, and so many projects one above them.
USERS_OF_PROJECT: Final = 20
PROJECTS_OF_PARENT: Final = 10
CYCLE_USERS, CYCLE_WAITING, CYCLE_NODES = 1_000, 10_000, 100
LIMIT_USERS, LIMIT_WAITING, LIMIT_NODES = 300, 1_500, 20


def median_s(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the CPU time of an action, the median."""
    times: list[float] = []
    for _ in range(rounds):
        begin_s = time.process_time()
        action()
        times.append(time.process_time() - begin_s)
    return statistics.median(times)


def make(users: int) -> tuple[UsageLedger, Callable[[float], object], list[Association]]:
    """Return a ledger with many users, what computes their factors, and the users."""
    rng = random.Random(1)
    book = UsageLedger()
    projects = [f"p{number}" for number in range(math.ceil(users / USERS_OF_PROJECT))]
    parents = [f"g{number}" for number in range(math.ceil(len(projects) / PROJECTS_OF_PARENT))]
    accounts = [ShareAccount(name=ROOT)]
    accounts += [ShareAccount(name=name, parent=ROOT, shares=rng.randint(1, 9)) for name in parents]
    accounts += [
        ShareAccount(name=name, parent=parents[number // PROJECTS_OF_PARENT], shares=3)
        for number, name in enumerate(projects)
    ]
    whose = [(projects[number // USERS_OF_PROJECT], f"u{number}") for number in range(users)]
    members = [ShareUser(account=project, user=user) for project, user in whose]
    for number, each in enumerate(whose):
        for run in range(10):
            held = Held(cpus=rng.randint(1, 64), gpus={"a100": float(rng.randint(0, 4))})
            book.hold(number * 10 + run, each, held, rng.random() * 1e5)
        book.bill(number * 10, 1e5, 1e5)

    def factors(now_s: float) -> object:
        return ShareTree(accounts, members).factors(book.usage(now_s))

    return book, factors, whose


class TimedWorld(World):
    """A world that measures cycles, once it has been filled."""

    def __init__(self, *machines: Machine, config: Settings) -> None:
        self.took_ms: list[float] = []
        self.is_filled = True  # nodes connect
        super().__init__(*machines, config=config, policy=balance.plan)
        self.is_filled = False

    def settle(self) -> None:
        """Let the head schedule, and note the CPU time of each cycle."""
        while self.is_filled:
            cycles, begin_s = self.head.cycles, time.process_time()
            step = self.head.cycle(self.now_s)
            if self.head.cycles > cycles:
                self.took_ms.append((time.process_time() - begin_s) * 1e3)
            self._take(step)
            if not self.head.unfinished:
                break


def cycles_ms(*, has_shares: bool) -> list[float]:
    """Return the CPU times of cycles in 150 s in which jobs end."""
    users = [Caller(user=f"u{at}", uid=2000 + at, gid=100) for at in range(CYCLE_USERS)]
    members: dict[str, list[str]] = {}
    for at, caller in enumerate(users):
        members.setdefault(f"p{at // USERS_OF_PROJECT}", []).append(caller.user)
    projects = {name: ProjectConfig(name=name, users=tuple(each)) for name, each in members.items()}
    config = settings(projects=projects, priority=PriorityConfig()) if has_shares else settings()
    world = filled_world(config, users, CYCLE_WAITING, CYCLE_NODES, has_projects=has_shares)
    return run_ms(world)


def limited_ms(*, has_limits: bool) -> list[float]:
    """Return the CPU times of cycles with limits of each user, or without."""
    users = [Caller(user=f"u{at}", uid=2000 + at, gid=100) for at in range(LIMIT_USERS)]
    limits = LimitsConfig(each_user=ResourceLimits(max_running=2))
    config = settings(limits=limits) if has_limits else settings()
    return run_ms(filled_world(config, users, LIMIT_WAITING, LIMIT_NODES))


def filled_world(
    config: Settings,
    users: Sequence[Caller],
    waiting: int,
    nodes: int,
    *,
    has_projects: bool = False,
) -> TimedWorld:
    """Return a world in which jobs wait for nodes that are full."""
    rng = random.Random(3)
    world = TimedWorld(*[node(f"n{at}", cpus=16) for at in range(nodes)], config=config)
    for _ in range(waiting + 8 * nodes):
        at, size = rng.randrange(len(users)), rng.randint(1, 4)
        walltime_s = 600 * size
        world.submit(
            f"ncpus={size},walltime={walltime_s}",
            runs_s=rng.uniform(100, walltime_s),
            by=users[at],
            account=f"p{at // USERS_OF_PROJECT}" if has_projects else "",
        )
    return world


def run_ms(world: TimedWorld) -> list[float]:
    """Return the CPU times of cycles in 150 s, milliseconds."""
    world.is_filled = True
    world.settle()
    world.took_ms.clear()
    gc.collect()
    world.run_for(150)
    return world.took_ms


def main() -> int:
    """Print what each costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10_000, help="users (default: 10000)")
    users: int = parser.parse_args().users
    book, factors, whose = make(users)
    held = Held(cpus=4, memory_bytes=1 << 34, gpus={"h100": 2.0})
    numbers = {each: book.usage_of(each, 1e5) for each in whose}

    def jobs() -> None:
        for number in range(JOBS):
            job = 10**9 + number
            book.hold(job, whose[number % users], held, 1e5)
            book.bill(job, 1e5 + 60, 1e5 + 60)

    def floor_of_jobs() -> None:
        for number in range(JOBS):
            each = whose[number % users]
            numbers[each] = numbers[each] * math.exp(-1e-6) + 60.0

    def floor_of_factors() -> None:
        whole = sum(numbers.values())
        sorted((numbers[each] / whole for each in whose), reverse=True)

    clock = iter(range(10**6, 10**9, 1000))
    jobs_s, jobs_floor_s = median_s(jobs) / JOBS, median_s(floor_of_jobs) / JOBS
    factors_s = median_s(lambda: factors(float(next(clock))))
    print(f"{users} users, {len(whose) * 9} running jobs; CPU time, medians of {ROUNDS} rounds")
    print(f"start and end of a job  {jobs_s * 1e6:9.1f} µs   floor {jobs_floor_s * 1e6:8.1f} µs")
    floor_s = median_s(floor_of_factors)
    print(f"factors of all users    {factors_s * 1e3:9.1f} ms   floor {floor_s * 1e3:8.1f} ms")
    for title, is_on in (("off", False), ("on", True)) * 2:
        print_cycles(f"shares {title:3}", cycles_ms(has_shares=is_on))
    for title, is_on in (("off", False), ("on", True)) * 2:
        print_cycles(f"limits {title:3}", limited_ms(has_limits=is_on))
    return 0


def print_cycles(title: str, took_ms: Sequence[float]) -> None:
    """Print what cycles took."""
    print(
        f"{title}: {len(took_ms)} cycles, median {statistics.median(took_ms):.2f} ms, "
        f"mean {statistics.mean(took_ms):.2f} ms, longest {max(took_ms):.2f} ms",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
