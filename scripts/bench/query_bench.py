"""A long queue: what gstat takes, what the head holds, how soon it is back after a restart.

--jobs jobs are queued at one head whose one node is drained, so that all of them wait. Measured
from outside, as a user sees it:

gstat           wall time of the whole command into a pipe, all jobs listed
gstat ID        wall time of the whole command for one job in the middle
gstat -f ID     its full story
memory          VmRSS of the head, after the queries
restart         from SIGKILL of the head until a new one has answered for the last job; the start of
                `gsched up` itself is in it

Medians of --rounds, and the aims beside them. The exit code says nothing about the aims.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from cluster import BIN, Cluster, one_node

from gsched.client import HeadClient, new_job
from gsched.protocol import actions as a

BATCH = 2000
SHAPES = 20  # different requests among the jobs, as a queue of several users has them
#: Measure, unit and aim.
AIMS = {
    "gstat": ("ms", 1000.0),
    "gstat ID": ("ms", 100.0),
    "gstat -f ID": ("ms", 100.0),
    "memory": ("MB", 300.0),
    "restart": ("ms", 5000.0),
}


def fill(cluster: Cluster, jobs: int) -> list[int]:
    """Drain the node, queue the jobs and return their ids."""
    head = HeadClient(cluster.address)
    node = cluster.layout.nodes()[0].name
    head.node_action(a.DrainNode(nodes=(node,), reason="benchmark"))
    return queue_jobs(head, jobs)


def queue_jobs(head: HeadClient, jobs: int) -> list[int]:
    """Queue so many jobs of SHAPES requests and return their ids."""
    ids: list[int] = []
    started_s = time.monotonic()
    while len(ids) < jobs:
        count = min(BATCH, jobs - len(ids))
        reply = head.submit(
            [
                new_job(
                    name=f"train-{number}",
                    workdir="/",
                    script="#!/bin/sh\n:\n",
                    resources=(
                        f"nodes=1:ppn={1 + number % SHAPES % 8},walltime={number % 5 + 1}:0:0",
                    ),
                    environment={"HOME": "/", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                )
                for number in range(len(ids), len(ids) + count)
            ]
        )
        ids += [result.id for result in reply.results]
    rate = jobs / (time.monotonic() - started_s)
    print(f"queued {jobs} jobs, {rate:.0f} a second in requests of {BATCH}", file=sys.stderr)
    return ids


def command_ms(cluster: Cluster, *arguments: str, lines: int) -> float:
    """Return the wall time of a gstat; it must print at least so many lines."""
    started_s = time.perf_counter()
    done = subprocess.run(
        [BIN / "gstat", *arguments],
        check=True,
        env=cluster.environment,
        stdout=subprocess.PIPE,
    )
    elapsed_s = time.perf_counter() - started_s
    if done.stdout.count(b"\n") < lines:
        sys.exit(f"gstat {' '.join(arguments)} printed less than {lines} lines")
    return elapsed_s * 1000


def memory_mb(cluster: Cluster) -> float:
    """Return what the head has in memory, in units of 1,000,000 bytes."""
    return float(cluster.head_process().memory_info().rss) / 1e6


def restart_ms(cluster: Cluster, job: int) -> float:
    """Kill the head, bring it up and return how long it did not answer."""
    process = cluster.head_process()
    process.kill()
    process.wait()
    started_s = time.monotonic()
    up = [BIN / "gsched", "up", "--dir", cluster.layout.directory]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(up, stdout=quiet, stderr=quiet) as bringing:
        if HeadClient(cluster.address, patience_s=60.0).job(job).row.id != job:
            sys.exit(f"the new head does not know job {job}")
        elapsed_s = time.monotonic() - started_s
        if bringing.wait():
            sys.exit("gsched up failed")
    return elapsed_s * 1000


def main() -> None:
    """Measure and print one line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="queued (default 100000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    with one_node(cpus=8) as cluster:
        ids = fill(cluster, options.jobs)
        one = str(ids[len(ids) // 2])
        measures: dict[str, Callable[[], float]] = {
            "gstat": lambda: command_ms(cluster, lines=options.jobs),
            "gstat ID": lambda: command_ms(cluster, one, lines=1),
            "gstat -f ID": lambda: command_ms(cluster, "-f", one, lines=5),
            "memory": lambda: memory_mb(cluster),
            "restart": lambda: restart_ms(cluster, ids[-1]),
        }
        figures = {
            name: [measure() for _ in range(options.rounds)] for name, measure in measures.items()
        }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{options.jobs} queued jobs, median of {options.rounds}:")
    for name, values in figures.items():
        unit, aim = AIMS[name]
        print(
            f"{name:12} {statistics.median(values):8.0f} {unit}  "
            f"({min(values):.0f} to {max(values):.0f}; aim: {aim:.0f})"
        )


if __name__ == "__main__":
    main()
