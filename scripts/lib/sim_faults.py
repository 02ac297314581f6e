"""Runs fault worlds for a range of seeds, on as many processes as asked for, and adds them up."""

import argparse
import sys
import traceback
from collections import Counter
from functools import partial
from multiprocessing import Pool

from scripts.reproduce.arguments import seeds_of
from tests.fault_world.bookkeeping import InvariantError
from tests.fault_world.leases import LeaseWorld
from tests.fault_world.mixed import MixedWorld
from tests.fault_world.moves import NAMED, MovingWorld
from tests.fault_world.shares import ShareWorld
from tests.fault_world.warm import WarmWorld
from tests.fault_world.world import FaultWorld, Story

SHOWN_FAILURES = 20


RANDOM = "random"
LEASES = "leases"
WARM = "warm"
SHARES = "shares"
MIXED = "mixed"


def live(seed: int, policy: str) -> "Story | tuple[int, str]":
    """Return the story of a seed, or the seed and what is wrong.

    Args:
        seed: of the world.
        policy: that moves training jobs about; `LEASES`: jobs have leases; `WARM`: attempts are
            prepared; `SHARES`: jobs share GPUs; `MIXED`: beside others that migrate; empty: none
            of that.
    """
    try:
        if policy == LEASES:
            return LeaseWorld(seed).run()
        if policy == WARM:
            return WarmWorld(seed).run()
        if policy == SHARES:
            return ShareWorld(seed).run()
        if policy == MIXED:
            return MixedWorld(seed).run()
        if policy:
            return MovingWorld(seed, policy=policy.removeprefix(RANDOM)).run()
        return FaultWorld(seed).run()
    except InvariantError as error:
        return seed, str(error)
    except Exception:  # noqa: BLE001 - whatever a seed finds is a finding
        return seed, traceback.format_exc(limit=-5)


def main() -> int:
    """Run them and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, required=True, metavar="A-B")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worlds at a time")
    parser.add_argument(
        "--policy",
        choices=(RANDOM, LEASES, WARM, SHARES, MIXED, *NAMED),
        default="",
        help="most jobs are training jobs, which this policy migrates; leases: most jobs have one; "
        "warm: next attempts are prepared; shares: most jobs share GPUs; mixed: jobs share GPUs "
        "beside training jobs that are moved about at random",
    )
    wanted = parser.parse_args()
    faults: Counter[str] = Counter()
    oddities: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    told = partial(live, policy=wanted.policy)
    with Pool(wanted.jobs) as pool:
        for number, result in enumerate(pool.imap(told, wanted.seeds, chunksize=20), 1):
            if isinstance(result, Story):
                faults.update(result.faults)
                oddities.update(result.oddities)
                totals.update(jobs=result.jobs, attempts=result.attempts, events=result.events)
            else:
                failures.append(result)
                print(f"seed {result[0]}: {result[1]}", flush=True)
            if not number % 500:
                print(f"{number} seeds, {len(failures)} failed", flush=True)
    print(f"worlds: {len(wanted.seeds)}, {dict(totals)}")
    print(f"faults: {dict(sorted(faults.items()))}")
    print(f"oddities that the head met: {dict(sorted(oddities.items()))}")
    if failures:
        seeds = " ".join(str(seed) for seed, _ in failures[:SHOWN_FAILURES])
        print(f"FAILED: {len(failures)} seeds: {seeds}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
