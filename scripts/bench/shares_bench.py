"""What the usage ledger and the factors of fair shares cost, each beside a floor.

A job's start and end are measured together, on a ledger with all users and ten running jobs of
each; the floor is one exponential and two look-ups. Factors are measured from the configuration
and the usage of all to the finished table; the floor is a look-up, a division and a sort.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Final

from gsched.config.shares import ROOT
from gschedd.shares.ledger import Held, UsageLedger
from gschedd.shares.tree import Association, ShareAccount, ShareTree, ShareUser

ROUNDS: Final = 15
JOBS: Final = 2_000
#: So many users have a project of their own level, and so many projects one above them.
USERS_OF_PROJECT: Final = 20
PROJECTS_OF_PARENT: Final = 10


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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
