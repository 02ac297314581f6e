"""Runs in the environment that HyperQueue is installed in: one cluster, rounds on demand.

``python hyperqueue_driver.py CORES`` starts server and worker (both are threads of this process, as
HyperQueue's own ``LocalCluster`` does it), prints ``ready``, then reads numbers of tasks, one a
line, and prints for each how many seconds they took.
"""

import os
import sys
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.client import Client
from hyperqueue.cluster import WorkerConfig

COMMAND = ["/bin/sh", "-c", ":"]
LOOK_S = 0.01


class LookedError(Exception):
    """Ends a wait after its first look."""


def measure(client: Client, tasks: int) -> float:
    """Return the seconds from before the submission until the server says that all have ended."""
    started_s = time.monotonic()
    job = Job()
    for _ in range(tasks):
        job.program(COMMAND, stdout=None, stderr=None)
    submitted = client.submit(job)
    seen: dict[str, int] = {}

    def look(states: dict[int, dict[str, int]]) -> None:
        seen.update(states[submitted.id])
        raise LookedError

    while not seen.get("completed"):
        # Left to itself, the wait looks once a second, and every result would be a whole number
        # of seconds. So it is broken off after each look.
        try:
            client.connection.wait_for_jobs([submitted.id], look)
        except LookedError:
            time.sleep(LOOK_S)
    if seen["finished"] != tasks:
        sys.exit(f"{tasks - seen['finished']} of {tasks} tasks failed")
    elapsed_s = time.monotonic() - started_s
    client.forget(submitted)
    return elapsed_s


def main() -> None:
    """Serve."""
    # The library prints a banner to descriptor 1, so what we say goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with LocalCluster(worker_config=WorkerConfig(cores=int(sys.argv[1]))) as cluster:
        client = cluster.client()
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            print(measure(client, int(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
