"""No-op jobs per second, end to end: gsched, HyperQueue, Slurm and bare posix_spawn in one run.

What is measured, for each system: the time from before the submission until the system itself says
that every task has ended, for the same number of tasks, as many at a time (the CPUs that its one
node declares), output discarded. Each task is /bin/sh that does nothing. Every system has one
controller and one node on this machine, is started once, does a few tasks to get warm, and the
rounds of the systems alternate, so that a busy moment of the machine meets all of them.

gsched       one request of gsched.client.HeadClient.submit with N jobs, until the head shows no
             job: each was queued durably (SQLite, synchronous=FULL), placed, run by gnode under a
             supervisor of its own, its exit record flushed to disk on the node, and its outcome
             durable at the head. Afterwards every job's exit code is checked to be 0.
gsched:POLICY, gsched:POLICY:unlearned
             the same under another policy than the default, and with a head that learns nothing
             of jobs that have run ([history] learn = false): to compare them in one run.
gsched+script
             the same with jobs that are scripts: gsched keeps each in a file of its job.
gsched+python
             the same without the native supervisor (native_supervisor = false).
gsched+root
             the same with jobs of this user, where --user says that they are another one's.
gsched+tls, gsched+postgresql
             the same with a node that connects over TLS on loopback instead of a Unix socket, or
             a head whose state is in a PostgreSQL server of its own, fsync on, on a Unix socket.
gsched@DIR   gsched of another checkout, which scripts/test has set up: to compare two versions.
gsub loop    a shell loop of gsub, one process and one job after the other (--loop jobs).
hyperqueue   one job of N tasks through the Python API of its wheel, server and worker in one
             process (LocalCluster), stdout and stderr None. No journal: nothing of it is durable.
             Ended tasks are looked for every 10 ms instead of the API's 1 s.
slurm        sbatch --array of N tasks (an array, Slurm's fastest way), until squeue shows none.
posix_spawn  the floor: /bin/sh -c : N times, as many at a time, from this process.

A system that is not here is left out, with the reason. HyperQueue is installed from the package
index into an environment of its own (--hyperqueue).
"""

import argparse
import json
import os
import pwd
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import budget
import checkout_system
import gsched_system
import hyperqueue_system
import slurm_system
from cluster import CpuTimes
from floor import NOOP, spawn_seconds
from missing import NotHereError

FLOOR = "posix_spawn"
GSCHED = "gsched"
SYSTEMS = (GSCHED, "hyperqueue", "slurm", FLOOR)
WARM_UP = 50
ENVIRONMENT = Path(tempfile.gettempdir()) / f"gsched-bench-hyperqueue-{os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class System:
    """One system that is here.

    Attributes:
        measure: runs so many tasks and returns the seconds they took.
        cpu_s: returns the CPU time used up to now, tasks included; None where it cannot be told.
    """

    measure: Callable[[int], float]
    cpu_s: Callable[[], float] | None = None


class Rounds:
    """The systems that are here, and what their rounds gave.

    Attributes:
        rates: tasks per second of each round, by system.
        cpu_ms: CPU time of a task in each round, by system.
        submissions: acknowledged per second in each round, by gsched of this checkout.
        parts: what gsched's parts used in each round, by system.
        missing: why a system is left out, by system.
    """

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._systems: dict[str, System] = {}
        self._gsched: dict[str, gsched_system.Gsched | checkout_system.Checkout] = {}
        self.rates: dict[str, list[float]] = {}
        self.cpu_ms: dict[str, list[float]] = {}
        self.submissions: dict[str, list[float]] = {}
        self.parts: dict[str, list[CpuTimes]] = {}
        self.missing: dict[str, str] = {}

    def start(self) -> None:
        """Start every system that is wanted and here, and warm it."""
        starts = {
            "hyperqueue": self._start_hyperqueue,
            "slurm": self._start_slurm,
            FLOOR: self._start_floor,
        }
        for name in self._options.only:
            try:
                if name.startswith(f"{GSCHED}@"):
                    system = self._start_checkout(name)
                elif _kind(name) == GSCHED:
                    system = self._start_gsched(name)
                else:
                    system = starts[name]()
                system.measure(WARM_UP)
            except NotHereError as error:
                self.missing[name] = str(error)
            else:
                self._systems[name] = system

    def _start_gsched(self, name: str) -> System:
        kind, policy, unlearned = (*name.split(":"), "", "")[:3]
        ways = kind.split("+")[1:]
        running = gsched_system.running(
            cpus=self._options.cpus,
            cgroup=self._options.cgroup,
            policy=policy or "balance",
            learn=not unlearned,
            tls="tls" in ways,
            postgresql="postgresql" in ways,
            native="python" not in ways,
            script="script" in ways,
            user="" if "root" in ways else self._options.user,
        )
        system = self._gsched[name] = self._stack.enter_context(running)
        return System(measure=system.measure)

    def of_here(self) -> dict[str, gsched_system.Gsched]:
        """Return each gsched of this checkout, by name."""
        running = self._gsched.items()
        return {name: each for name, each in running if isinstance(each, gsched_system.Gsched)}

    def _start_checkout(self, name: str) -> System:
        directory = Path(name.partition("@")[2])
        running = checkout_system.running(
            directory,
            cpus=self._options.cpus,
            cgroup=self._options.cgroup,
            user=self._options.user,
        )
        system = self._gsched[name] = self._stack.enter_context(running)
        return System(measure=system.measure)

    def _start_hyperqueue(self) -> System:
        running = hyperqueue_system.running(
            cpus=self._options.cpus, environment=self._options.hyperqueue
        )
        system = self._stack.enter_context(running)
        return System(measure=system.measure, cpu_s=system.cpu_s)

    def _start_slurm(self) -> System:
        running = slurm_system.running(cpus=self._options.cpus, tasks=self._options.jobs)
        return System(measure=self._stack.enter_context(running).measure)

    def _start_floor(self) -> System:
        return System(
            measure=lambda tasks: spawn_seconds(tasks, self._options.cpus, NOOP),
            cpu_s=lambda: sum(os.times()[:4]),
        )

    def run(self) -> None:
        """Run one round of each system."""
        jobs = self._options.jobs
        for name, system in self._systems.items():
            before_s = system.cpu_s() if system.cpu_s else 0.0
            rate = jobs / system.measure(jobs)
            used_s = None
            if system.cpu_s:
                used_s = system.cpu_s() - before_s
            elif name in self._gsched:
                used = self._gsched[name].used
                self.parts.setdefault(name, []).append(used)
                used_s = used.total
            self.rates.setdefault(name, []).append(rate)
            if used_s is not None:
                self.cpu_ms.setdefault(name, []).append(used_s * 1000 / jobs)
            print(f"  {name} {rate:.0f}/s", end="", file=sys.stderr, flush=True)
        singly = self._options.submissions
        for name, each in self.of_here().items() if singly else ():
            rate = singly / each.measure_submissions(singly)
            self.submissions.setdefault(name, []).append(rate)
        print(file=sys.stderr)

    def run_loop(self) -> float | None:
        """Run the shell loop of gsub once and return the seconds of one gsub."""
        jobs = self._options.loop
        gsched = self._gsched.get(GSCHED)
        if not isinstance(gsched, gsched_system.Gsched) or not jobs or self._options.user:
            return None
        submitted_s, elapsed_s = gsched.measure_loop(jobs)
        self.rates["gsub loop"] = [jobs / elapsed_s]
        return submitted_s / jobs


def table(rounds: Rounds) -> list[str]:
    """Return the lines of the result: one for each system."""
    medians = {name: statistics.median(rates) for name, rates in rounds.rates.items()}
    lines = [
        f"{'system':22} {'tasks/s':>8} {'min':>7} {'max':>7} {'x hyperqueue':>13} {'x floor':>8}"
    ]
    for name, rates in rounds.rates.items():
        ratios = [
            f"{medians[name] / medians[other]:.2f}" if other in medians else "-"
            for other in ("hyperqueue", FLOOR)
        ]
        lines.append(
            f"{name:22} {medians[name]:8.0f} {min(rates):7.0f} {max(rates):7.0f} "
            f"{ratios[0]:>13} {ratios[1]:>8} {_median_ms(rounds.cpu_ms.get(name)):>12}"
        )
    lines += [f"{name:22} skipped: {why}" for name, why in rounds.missing.items()]
    return lines


def _median_ms(times: list[float] | None) -> str:
    return f"{statistics.median(times):.2f}" if times else "-"


def cpu_line(system: str, cpu: list[CpuTimes], jobs: int) -> str:
    """Return the median CPU time that a job costs in each part of a gsched, in ms."""
    parts = {
        name: statistics.median(getattr(each, name) for each in cpu) * 1000 / jobs
        for name in ("head", "workers", "gnode", "supervisors", "jobs", "database")
    }
    names = {"supervisors": "launcher and supervisors", "jobs": "the job itself"}
    told = [f"{names.get(name, name)} {value:.2f}" for name, value in parts.items()]
    return f"{system}: CPU time per job, ms: {', '.join(told)}"


def pair_line(rounds: Rounds, name: str) -> str:
    """Return how a gsched compares with the first one: medians of the ratios of each round."""
    told = []
    figures = {
        "tasks/s": rounds.rates,
        "CPU time": rounds.cpu_ms,
        "submissions/s": rounds.submissions,
    }
    for part in ("head", "gnode"):
        figures[part] = {
            system: [getattr(each, part) for each in used] for system, used in rounds.parts.items()
        }
    for what, values in figures.items():
        if name not in values:
            continue
        ratios = [mine / other for mine, other in zip(values[name], values[GSCHED], strict=True)]
        told.append(
            f"{what} x {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return f"{name} over {GSCHED}: {', '.join(told)}"


def _kind(name: str) -> str:
    """Return the system of a name, without policy and ways."""
    return name.partition(":")[0].partition("+")[0]


def budget_lines(system: str, running: gsched_system.Gsched, jobs: int) -> list[str]:
    """Return where the time of a gsched's jobs has gone, over all its rounds."""
    return [f"{system}, where it goes:", *budget.table(running.budget, jobs, running.elapsed_s)]


def arguments() -> argparse.Namespace:
    """Return what was requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000, help="tasks in a round (default 1000)")
    parser.add_argument("--cpus", type=int, default=16, help="tasks at a time (default 16)")
    parser.add_argument("--rounds", type=int, default=5, help="of each system (default 5)")
    parser.add_argument(
        "--submissions", type=int, default=0, help="of one job each, from one client; 0: none"
    )
    parser.add_argument(
        "--user",
        default="",
        metavar="NAME",
        help="of whom gsched's jobs are; needs root; without gsub loop (default: of this user)",
    )
    parser.add_argument("--loop", type=int, default=100, help="jobs of the gsub loop; 0: none")
    parser.add_argument(
        "--cgroup", default="auto", help="of gsched's node: auto (default), none, or a directory"
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(SYSTEMS),
        metavar="NAMES",
        help=f"of {','.join(SYSTEMS)} (default: all)",
    )
    parser.add_argument(
        "--hyperqueue",
        type=Path,
        default=ENVIRONMENT,
        metavar="DIR",
        help=f"environment that has HyperQueue, made if need be (default {ENVIRONMENT})",
    )
    parser.add_argument(
        "--budget", action="store_true", help="what each process and the disk do for a job"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    if options.user and (
        os.geteuid() != 0 or options.user not in {a.pw_name for a in pwd.getpwall()}
    ):
        parser.error(f"--user {options.user}: run it as root, with a user of this machine")
    wanted = {_kind(name.partition("@")[0]) for name in options.only}
    if unknown := wanted - set(SYSTEMS):
        parser.error(f"--only {','.join(sorted(unknown))}: one of {', '.join(SYSTEMS)}")
    return options


def main() -> None:
    """Measure and print."""
    options = arguments()
    with ExitStack() as stack:
        rounds = Rounds(options, stack)
        rounds.start()
        for each in rounds.of_here().values():
            each.reset()
        for _ in range(options.rounds):
            rounds.run()
        gsub_s = rounds.run_loop()
    if options.json:
        print(json.dumps({"tasks_per_s": rounds.rates, "skipped": rounds.missing}))
        return
    print(f"{options.jobs} tasks, {options.cpus} at a time, median of {options.rounds} rounds:")
    print("\n".join(table(rounds)))
    for name, parts in rounds.parts.items():
        print(cpu_line(name, parts, options.jobs))
    for name, rates in rounds.submissions.items():
        print(f"{name}: {statistics.median(rates):.0f} submissions/s of one client, one a request")
    for name in rounds.parts if GSCHED in rounds.parts else ():
        if name != GSCHED:
            print(pair_line(rounds, name))
    for name, each in rounds.of_here().items() if options.budget else ():
        print("\n".join(budget_lines(name, each, options.jobs * options.rounds)))
    if gsub_s is not None:
        print(f"one gsub in the loop of {options.loop}: {gsub_s * 1000:.0f} ms")


if __name__ == "__main__":
    main()
