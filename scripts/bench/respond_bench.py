"""What users and nodes wait for at a busy head: through its API, with simulated nodes.

A user submits a job, asks for one line of `gstat` and for one job's story, again and again with
pauses of 20 ms, and each request is timed.

training jobs   1,000 training jobs wait for GPUs, and a plan for them takes 2 s
(tests/support/odd_head).
            Beside it the same head whose plans take no such time. Further jobs run on nodes without
            GPUs: "gap" is the time from the report of an end to the next launch on that node.
            Aim: with slow plans at most 1.5 times as long as without.
drain       100,000 jobs are queued, then 200 nodes come, on which 10,000 of them can start at once
            and take 5 s each. Every few seconds a second user lists all jobs.
            Aims: story 100 ms, gsub p99 100 ms, list 2 s, longest turn of the head's loop 50 ms.

"turn" is the longest turn of the head's event loop, by the clock and by its thread's CPU time
(watched_head.py). The machine's load average stands beside the figures, which hold for this run
only: simulated nodes and users share the machine with the head.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from figures import quantile  # noqa: E402 - as above
from query_bench import queue_jobs  # noqa: E402 - as above
from watched_head import LongestTurn, at_share  # noqa: E402 - as above

from gsched.client import HeadClient, new_job  # noqa: E402 - the path comes first
from gsched.model.training import Training  # noqa: E402 - as above
from tests.support.cluster import Cluster, wait_until  # noqa: E402 - as above

PAUSE_S = 0.02
TURN_MS = 30.0  # the longest turn aimed at, CPU time
LIST_PAUSE_S = 3.0
GPU_NODES, GPUS = 8, 8
CPU_NODES = 4
KINDS = ("gsub", "gstat JOB", "gstat -f JOB")
BENCH = Path(__file__).parent

Times = dict[str, list[float]]


class World:
    """A head in a directory of its own, and the simulated nodes that were started for it."""

    def __init__(self, directory: Path) -> None:
        self._turns = directory / "turns"
        self.turns = LongestTurn(self._turns)
        self.cluster = Cluster(directory / "c", f"bench-{os.getpid()}")
        watched = (sys.executable, str(BENCH / "watched_head.py"), str(self._turns))
        self.cluster.wrapper = self.cluster.wrapper.after(*watched)
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def head(self) -> HeadClient:
        """Return a client."""
        return self.cluster.head

    def start_nodes(self, prefix: str, count: int, *, seconds: float, **has: int | str) -> None:
        """Start simulated nodes and wait until they are up."""
        command = [sys.executable, str(BENCH / "nodes_bench.py"), str(count), "--json"]
        command += ["--config", str(self.cluster.directory / "head.toml"), "--prefix", prefix]
        command += ["--seconds", str(seconds)]
        for name, value in has.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with open(self._report(prefix), "wb") as stream:
            self._nodes[prefix] = subprocess.Popen(command, stdout=stream)
        wait_until(lambda: self._up(prefix) == count, 120.0, what=f"{count} nodes to be up")

    def _report(self, prefix: str) -> Path:
        return self.cluster.directory / f"{prefix}.json"

    def _up(self, prefix: str) -> int:
        lines = self._report(prefix).read_text().splitlines()
        return int(json.loads(lines[-1])["nodes"]) if lines else 0

    def size(self, prefix: str) -> int:
        """Return how long the report of the nodes is, in lines."""
        return len(self._report(prefix).read_text().splitlines())

    def gaps_ms(self, prefix: str, since: int) -> list[float]:
        """Return the gaps that the nodes have reported after so many lines, in ms."""
        lines = self._report(prefix).read_text().splitlines()[since:]
        return [1000 * gap for line in lines for gap in json.loads(line)["gaps_s"]]

    def ends(self, prefix: str) -> int:
        """Return how many parts have ended."""
        return int(json.loads(self._report(prefix).read_text().splitlines()[-1])["ends"])

    def stop(self) -> None:
        """End everything."""
        for process in self._nodes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._nodes.values():
            process.wait(30)
        self.cluster.stop()


@contextmanager
def world() -> Iterator[World]:
    """Yield a head that is not started yet; everything is ended and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="gsched-respond-") as directory:
        made = World(Path(directory))
        try:
            yield made
        finally:
            made.stop()


def use(head: HeadClient, ids: Sequence[int], seconds: float, kinds: Sequence[str]) -> Times:
    """Work as a user does, and return how long each request took, in ms."""
    chance = random.Random(1)
    times: Times = {kind: [] for kind in kinds}
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for kind in kinds:
            job = chance.choice(ids)
            begin_s = time.perf_counter()
            if kind == "gsub":
                head.submit([plain()])
            elif kind == "gstat JOB":
                head.jobs([job])
            else:
                head.job(job)
            times[kind].append((time.perf_counter() - begin_s) * 1000)
        time.sleep(PAUSE_S)
    return times


def plain() -> object:
    """Return a job that needs one CPU."""
    return new_job(
        name="plain", workdir="/", script="#!/bin/sh\n", resources=("nodes=1:ppn=1,walltime=1:0:0",)
    )


def training(number: int) -> object:
    """Return a training that needs all GPUs of a node."""
    return new_job(
        name=f"train-{number}",
        workdir="/",
        script="#!/bin/sh\n",
        resources=(f"nodes=1:ppn={GPUS}:gpus={GPUS},walltime=2:0:0",),
        training=Training(iterations=5.0 + number % 7, rates=((GPUS, 1.0),)),
        deadline_after_s=3600.0 * (1 + number % 20),
    )


# --- 1,000 waiting training jobs ---


def training_jobs(policy: str, given: argparse.Namespace) -> Times:
    """Return the times of a run under a policy for training jobs, in ms, with gaps and turns."""
    with world() as made:
        made.cluster.head_module = "tests.support.odd_head"
        made.cluster.start_head({"ODD_POLICY": policy})
        made.start_nodes("gpu", GPU_NODES, seconds=5.0, cpus=GPUS, gpus=GPUS)
        made.start_nodes("cpu", CPU_NODES, seconds=0.2, cpus=1)
        reply = made.head.submit([training(number) for number in range(given.training_jobs)])
        ids = [result.id for result in reply.results]
        made.head.submit([plain() for _ in range(2000)])
        time.sleep(5.0)  # the first plans
        made.turns.take()
        since = {prefix: made.size(prefix) for prefix in ("cpu", "gpu")}
        times = use(made.head, ids, given.seconds, given.kinds)
        wall_s, cpu_s = made.turns.take()
        times["gap"] = made.gaps_ms("cpu", since["cpu"])
        times["gap of training jobs"] = made.gaps_ms("gpu", since["gpu"])
        times["turn"], times["turn, CPU"] = [wall_s * 1000], [cpu_s * 1000]
        return times


def compare(given: argparse.Namespace) -> dict[str, object]:
    """Alternate both policies, and print medians of the rounds."""
    runs: dict[str, list[Times]] = {"edf": [], f"slow {given.plan_s:g}": []}
    load = os.getloadavg()[0]
    for _ in range(given.rounds):
        for policy, done in runs.items():
            done.append(training_jobs(policy, given))
    base, slow = runs.values()
    print(
        f"{given.training_jobs} training jobs wait, plans of {given.plan_s:g} s or none; "
        f"{given.rounds} "
        f"rounds of {given.seconds:g} s; load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    print(f"{'ms':20} {'':3} {'base':>9} {'slow':>9} {'ratio':>6}  {'requests':>8}")
    for name in base[0]:
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            one, other = (
                statistics.median(quantile(times[name], part) for times in both)
                for both in (base, slow)
            )
            ratio = f"{other / one:6.2f}" if one else "     -"
            count = f"{len(base[0][name]):5}, {len(slow[0][name])}"
            print(f"{name:20} {label} {one:9.1f} {other:9.1f} {ratio}  {count:>8}")
    return {"training_jobs": runs}


# --- 100,000 queued jobs on 200 nodes ---


def list_all(address: str, over: Connection) -> None:
    """In a process: list all jobs again and again; send how long each list took, in ms."""
    head, taken_ms = HeadClient(address), []
    while not over.poll(LIST_PAUSE_S if taken_ms else 0.0):
        begin_s = time.perf_counter()
        head.jobs()
        taken_ms.append((time.perf_counter() - begin_s) * 1000)
    over.send(taken_ms)


def drain(given: argparse.Namespace) -> dict[str, object]:
    """Let nodes work on a long queue, and print what users wait for meanwhile."""
    with world() as made:
        made.cluster.start_head()
        ids = queue_jobs(made.head, given.jobs)
        load = os.getloadavg()[0]
        made.turns.take()
        before = use(made.head, ids, 3.0, given.kinds)
        times: Times = {f"{kind}, no nodes": values for kind, values in before.items()}
        idle = made.turns.take()
        here, there = multiprocessing.get_context("fork").Pipe()
        lister = multiprocessing.get_context("fork").Process(
            target=list_all, args=(str(made.cluster.socket), there)
        )
        lister.start()
        began_s = time.monotonic()
        made.start_nodes("n", given.nodes, seconds=5.0, cpus=given.cpus)
        times |= use(made.head, ids, given.seconds, given.kinds)
        here.send("over")
        times["list"] = here.recv()
        lister.join()
        counts = made.turns.counts()
        wall_s, cpu_s = made.turns.take()
        rate = made.ends("n") / (time.monotonic() - began_s)
        times["gap"] = made.gaps_ms("n", 0)
    times["turn, no nodes"], times["turn, CPU, no nodes"] = [idle[0] * 1000], [idle[1] * 1000]
    times["turn"], times["turn, CPU"] = [wall_s * 1000], [cpu_s * 1000]
    print(
        f"{given.jobs} jobs queued, {given.nodes} nodes of {given.cpus} CPUs, {given.seconds:g} s, "
        f"{rate:.0f} ends/s; load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    print(f"{'ms':24} {'count':>7} {'p50':>9} {'p99':>9} {'max':>9}")
    for name, values in times.items():
        print(
            f"{name:24} {len(values):7} {quantile(values, 0.5):9.1f} "
            f"{quantile(values, 0.99):9.1f} {max(values, default=0.0):9.1f}"
        )
    p50, p99, rare = (at_share(counts, share) for share in (0.5, 0.99, 0.999))
    many = sum(count for ms, count in counts.items() if ms >= TURN_MS)
    print(
        f"{'turns, CPU':24} {sum(counts.values()):7} {p50:9.1f} {p99:9.1f} {cpu_s * 1000:9.1f}"
        f"   p99.9 {rare:.1f}; {many} of at least {TURN_MS:g}"
    )
    return {"drain": times | {"turns": sorted(counts.items())}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("training_jobs", "drain"), help="one of both parts")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a measurement (15)")
    parser.add_argument("--rounds", type=int, default=2, help="training jobs: of each policy (2)")
    parser.add_argument("--training-jobs", type=int, default=1000, help="that wait (1000)")
    parser.add_argument("--plan-s", type=float, default=2.0, help="time of a slow plan, s (2)")
    parser.add_argument("--jobs", type=int, default=100_000, help="drain: queued (100000)")
    parser.add_argument("--nodes", type=int, default=200, help="drain: simulated (200)")
    parser.add_argument("--cpus", type=int, default=225, help="drain: of each node (225)")
    parser.add_argument(
        "--kinds",
        type=lambda text: text.split(","),
        default=list(KINDS),
        help=f"of a user's requests, with commas (default {','.join(KINDS)})",
    )
    parser.add_argument("--json", metavar="FILE", help="also write all times there")
    given = parser.parse_args()
    values: dict[str, object] = {}
    if given.only != "drain":
        values |= compare(given)
    if given.only != "training_jobs":
        values |= drain(given)
    if given.json:
        Path(given.json).write_text(json.dumps(values))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
