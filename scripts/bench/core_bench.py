"""CPU time of the head's core and store for a no-op job, without sockets, threads and other parts.

Jobs are submitted, 50 to a commit; then four of 16 running jobs end at a time, and a cycle starts
others, with one commit. Each commit is that of the real store, on a file system in memory. What is
told is the CPU time of a job in microseconds: ``submit``, ``report`` (the end of the attempt and
all that follows), ``cycle`` and ``store``. With ``--other DIR`` the rounds alternate with those of
another checkout, by that one's interpreter and code: its medians, and those of the ratios.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
#: The checkout whose code is measured: this process may run for another one.
CHECKOUT = Path(os.environ.get("GSCHED_BENCH_ROOT", ROOT))
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "scripts" / "bench")]

from growth_bench import DIGEST, new_head, registration  # noqa: E402 - the path comes first
from msgspec import structs  # noqa: E402 - as above

from gsched.client import new_job  # noqa: E402 - as above
from gsched.model.job import ExitRecord  # noqa: E402 - as above
from gsched.model.resources import Inventory, Load, Usage  # noqa: E402 - as above
from gsched.model.states import OutcomeKind  # noqa: E402 - as above
from gsched.protocol import node as n  # noqa: E402 - as above
from gschedd.core.requests.commands import Submit  # noqa: E402 - as above
from gschedd.core.state.effects import SendLaunch  # noqa: E402 - as above
from gschedd.core.state.settings import Caller  # noqa: E402 - as above
from gschedd.core.state.state import State  # noqa: E402 - as above
from gschedd.core.state.step import Step  # noqa: E402 - as above
from gschedd.daemon.garbage import GC_THRESHOLDS  # noqa: E402 - as above
from gschedd.store.sqlite import Store  # noqa: E402 - as above
from tests.support.books import batch_of  # noqa: E402 - as above

PARTS = ("submit", "report", "cycle", "store")
SLICE, AT_ONCE, CPUS = 50, 4, 16
IN_MEMORY = "/dev/shm"
CALLER = Caller(user="user", uid=2000, gid=2000)


class Measured:
    """A head with one node, whose work is timed by its parts."""

    def __init__(self, directory: str) -> None:
        self._store = Store(directory)
        self._store.open()
        self._head = new_head(State())
        self._now_s = float(int(time.time()))
        self.cpu_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        inventory = Inventory(cpus=CPUS, memory_bytes=64 << 30)
        register = structs.replace(registration("n1"), inventory=inventory)
        self._commit([self._head.registered("n1", register, self._now_s)])

    def run(self, jobs: int) -> None:
        """Submit so many jobs, and let them all run."""
        self.cpu_s = dict.fromkeys(PARTS, 0.0)
        for begin in range(0, jobs, SLICE):
            self._submit(min(SLICE, jobs - begin))
        left, running = jobs, list[tuple[int, int]]()
        while left:
            self._now_s += 0.01
            ended, running = running[:AT_ONCE], running[AT_ONCE:]
            with self._timed("report"):
                steps = [self._end(*each) for each in ended]
            with self._timed("cycle"):
                steps.append(self._head.cycle(self._now_s))
            self._commit(steps)
            left -= len(ended)
            effects = (effect for step in steps for effect in step.effects)
            running += [
                (each.job, each.attempt) for each in effects if isinstance(each, SendLaunch)
            ]

    def _submit(self, count: int) -> None:
        jobs = [
            new_job(name="noop", workdir="/", script="#!/bin/sh\n:\n", shell="/bin/sh")
            for _ in range(count)
        ]
        commands = [Submit(caller=CALLER, submitted=job, digests=(DIGEST, DIGEST)) for job in jobs]
        with self._timed("submit"):
            steps = [self._head.command(each, self._now_s) for each in commands]
        self._commit(steps)

    def _end(self, job: int, attempt: int) -> Step:
        record = ExitRecord(
            job=job,
            attempt=attempt,
            kind=OutcomeKind.EXITED,
            exit_code=0,
            started_s=self._now_s - 0.02,
            ended_s=self._now_s - 0.01,
            wall_s=0.01,
            cpu_s=0.001,
            memory_peak_bytes=1 << 20,
        )
        report = n.Exited(record=record, usage=Usage(), load=Load())
        step: Step = self._head.reported("n1", report, self._now_s)
        return step

    def _commit(self, steps: Sequence[Step]) -> None:
        facts = [fact for step in steps for fact in step.facts]
        runs = [run for step in steps for run in step.runs]
        errors = [step.error for step in steps if step.error is not None]
        if errors:
            raise errors[0]
        batch = batch_of(facts, self._head.state, runs=runs)
        with self._timed("store"):
            self._store.commit(batch)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        begin_s = time.thread_time()
        yield
        self.cpu_s[part] += time.thread_time() - begin_s


def measure(jobs: int) -> dict[str, float]:
    """Return the microseconds of a job by part."""
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory(prefix="gsched-core-", dir=IN_MEMORY) as directory:
        measured = Measured(directory)
        measured.run(jobs)
    found = {part: 1e6 * measured.cpu_s[part] / jobs for part in PARTS}
    return found | {"sum": sum(found.values())}


def measure_apart(checkout: Path, jobs: int) -> dict[str, float]:
    """Return the same of a checkout, from a process of its own."""
    command = [str(checkout / ".venv" / "bin" / "python"), __file__, "--jobs", str(jobs), "--json"]
    environment = os.environ | {"GSCHED_BENCH_ROOT": str(checkout)}
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print what a job takes, in alternating rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other", type=Path, help="another checkout that has been set up")
    parser.add_argument("--json", action="store_true", help="one round of this process, as JSON")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(measure(options.jobs)))
        return
    others = [options.other.resolve()] if options.other else []
    rounds = [
        [measure_apart(each, options.jobs) for each in (ROOT, *others)]
        for _ in range(options.rounds)
    ]
    print(f"CPU us a job, medians of {options.rounds} rounds; load {os.getloadavg()[0]:.0f}")
    for place, name in enumerate(("here", *map(str, others))):
        words = (
            f"{part} {median(each[place][part] for each in rounds):.1f}" for part in rounds[0][0]
        )
        print(f"{name}: {', '.join(words)}")
    if others:
        ratios = sorted(each[0]["sum"] / each[1]["sum"] for each in rounds)
        print(f"here over other: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
