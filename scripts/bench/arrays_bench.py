"""A large array: what it costs to submit, to list, to delete, and to keep; and how fast it runs.

First an array of --elements elements on a drained node, so that all of them wait. Measured from
outside, as a user sees it; wall time, and the CPU time of the head in that time:

gsub            wall time of the whole command
gstat           wall time of the whole command into a pipe: one line
gstat -t        the same with a line for each element
gdel            wall time of the whole command for the whole array
memory          how much the head's resident memory has grown since before the submission
restart         from SIGKILL of the head until a new one has answered for the array; the start of
                `gsched up` itself is in it

Then arrays of --tasks elements that do nothing run on one node of --cpus CPUs, in turn with a job
of as many tasks of HyperQueue (see throughput_bench.py for what it is given): the time from before
the submission until the system says that all have ended. With --slurm a Slurm of one node runs the
same as one job array (Debian: slurm-wlm, munge). --tasks 0 leaves this out, --no-queue the rest.

Medians of --rounds, and the aims beside them. The exit code says nothing about the aims.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import hyperqueue_system
import slurm_system
from cluster import BIN, Cluster, one_node
from gsched_system import SCRIPT, noop
from missing import NotHereError

from gsched.client import HeadClient
from gsched.errors import GschedError
from gsched.protocol import actions as a

ENVIRONMENT = Path(tempfile.gettempdir()) / f"gsched-bench-hyperqueue-{os.getuid()}"
WARM_UP = 50
#: Measure, unit and aim; None: there is none.
AIMS: dict[str, tuple[str, float | None]] = {
    "gsub": ("ms", 1000.0),
    "gsub, head": ("CPU ms", None),
    "gstat": ("ms", 1000.0),
    "gstat -t": ("ms", None),
    "gdel": ("ms", 2000.0),
    "gdel, head": ("CPU ms", None),
    "memory": ("MB", 60.0),
    "restart": ("ms", 5000.0),
}


class Bench:
    """One head whose only node is drained, and what was measured on it."""

    def __init__(self, cluster: Cluster, elements: int) -> None:
        self._cluster = cluster
        self._elements = elements
        self._script = Path(cluster.layout.directory, "noop.sh")
        self._script.write_text(SCRIPT)
        self._head = HeadClient(cluster.address)
        self.figures: dict[str, list[float]] = {name: [] for name in AIMS}
        node = cluster.layout.nodes()[0].name
        self._head.node_action(a.DrainNode(nodes=(node,), reason="benchmark"))

    def round(self) -> None:
        """Submit an array, look at it, restart the head, and delete it."""
        empty_mb = self._memory_mb()
        array = self._timed("gsub", "gsub", "-t", f"0-{self._elements - 1}", str(self._script))
        self._timed("gstat", "gstat")
        listed = self._timed("gstat -t", "gstat", "-t")
        if listed.count("\n") != self._elements + 1:  # with the titles
            raise SystemExit(f"gstat -t shows {listed.count(chr(10)) - 1} elements")
        self.figures["memory"].append(self._memory_mb() - empty_mb)
        self.figures["restart"].append(self._restart_ms(array.strip()))
        self._timed("gdel", "gdel", "-y", array.strip())
        if self._head.jobs(elements=True).jobs:
            raise SystemExit("gdel has left something")

    def _memory_mb(self) -> float:
        return float(self._cluster.head_process().memory_info().rss) / 1e6

    def _timed(self, figure: str, name: str, *arguments: str) -> str:
        """Run a command, note what it took, and return what it printed."""
        before = self._cluster.cpu_times().head
        started_s = time.monotonic()
        done = subprocess.run(
            [str(BIN / name), *arguments],
            check=True,
            env=self._cluster.environment,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.figures[figure].append((time.monotonic() - started_s) * 1e3)
        if f"{figure}, head" in self.figures:
            used_s = self._cluster.cpu_times().head - before
            self.figures[f"{figure}, head"].append(used_s * 1e3)
        return done.stdout

    def _restart_ms(self, array: str) -> float:
        process = self._cluster.head_process()
        process.kill()
        process.wait()
        started_s = time.monotonic()
        self._cluster.up()
        while True:
            try:
                self._head.job(array)
            except GschedError:
                time.sleep(0.02)
            else:
                return (time.monotonic() - started_s) * 1e3


def run_array(head: HeadClient, tasks: int) -> float:
    """Return the seconds from before the submission of an array until its end is durable."""
    started_s = time.monotonic()
    (result,) = head.submit([noop(array=f"0-{tasks - 1}")]).results
    (story,) = head.wait([result.id])
    elapsed_s = time.monotonic() - started_s
    outcome, array = story.row.outcome, story.row.array
    if outcome is None or outcome.exit_code != 0 or array is None or array.succeeded != tasks:
        raise SystemExit(f"the array has ended otherwise: {story.row}")
    return elapsed_s


def run_tasks(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return tasks per second of each round, by system; the rounds alternate."""
    with ExitStack() as stack:
        systems: dict[str, Callable[[int], float]] = {}
        cluster = stack.enter_context(one_node(cpus=options.cpus))
        head = HeadClient(cluster.address)
        systems["gsched"] = lambda tasks: run_array(head, tasks)
        try:
            queue = stack.enter_context(
                hyperqueue_system.running(cpus=options.cpus, environment=options.hyperqueue)
            )
            systems["hyperqueue"] = queue.measure
        except NotHereError as error:
            print(f"hyperqueue is left out: {error}")
        if options.slurm:
            try:
                slurm = stack.enter_context(
                    slurm_system.running(cpus=options.cpus, tasks=options.tasks)
                )
                systems["slurm"] = slurm.measure
            except NotHereError as error:
                print(f"slurm is left out: {error}")
        for measure in systems.values():
            measure(WARM_UP)
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, measure in systems.items():
                rates[name].append(options.tasks / measure(options.tasks))
    return rates


def queue_figures(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return what an array costs that waits on a drained node."""
    with one_node(cpus=options.cpus) as cluster:
        bench = Bench(cluster, options.elements)
        for _ in range(options.rounds):
            bench.round()
        return bench.figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--cpus", type=int, default=16)
    parser.add_argument("--slurm", action="store_true", help="also a job array of Slurm's")
    parser.add_argument("--no-queue", action="store_true", help="leave out the drained node")
    parser.add_argument("--hyperqueue", type=Path, default=ENVIRONMENT, metavar="DIR")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    for name, values in ({} if options.no_queue else queue_figures(options)).items():
        unit, aim = AIMS[name]
        wanted = "" if aim is None else f", aim {aim:g}"
        spread = f"{min(values):.0f} to {max(values):.0f}"
        print(f"{name:12} {statistics.median(values):8.0f} {unit} ({spread}{wanted})")
    rates = run_tasks(options) if options.tasks else {}
    for name, values in rates.items():
        spread = f"{min(values):.0f} to {max(values):.0f}"
        print(f"{name:12} {statistics.median(values):8.0f} tasks/s ({spread})")
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
