"""What users wait for while one job ends on which thousands of others depend.

A job on hold has --dependants dependants, a half with afterany, which become queued, and a half
with afterok, which are cancelled. It is deleted, so that all of them follow. Meanwhile a user
submits jobs and asks for one line of `gstat`, with pauses of 20 ms, and each request is timed; so
is the time until the last dependant has followed.

"turn" is the longest turn of the head's event loop, by the clock and by its thread's CPU time
(watched_head.py). Aims: longest turn 50 ms of CPU time, gsub p99 100 ms. The exit code says nothing
about the aims.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from figures import quantile  # noqa: E402 - as above
from watched_head import LongestTurn  # noqa: E402 - as above

from gsched.client import HeadClient, new_job  # noqa: E402 - the path comes first
from gsched.model.states import JobState  # noqa: E402 - as above
from gsched.protocol.actions import DeleteJob  # noqa: E402 - as above
from tests.support.cluster import Cluster  # noqa: E402 - as above

BATCH = 500
PAUSE_S = 0.02


class User(threading.Thread):
    """Submits a job and looks at it, again and again, until `over` is set."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._head = HeadClient(address)
        self.over = threading.Event()
        self.submissions_ms: list[float] = []
        self.looks_ms: list[float] = []

    def run(self) -> None:
        """Time each request."""
        while not self.over.is_set():
            started_s = time.perf_counter()
            job = submit(self._head, 1)[0]
            self.submissions_ms.append((time.perf_counter() - started_s) * 1e3)
            started_s = time.perf_counter()
            self._head.jobs([str(job)])
            self.looks_ms.append((time.perf_counter() - started_s) * 1e3)
            self.over.wait(PAUSE_S)


def submit(head: HeadClient, count: int, *depends: str, holds: tuple[str, ...] = ()) -> list[int]:
    """Queue jobs and return their ids."""
    jobs = [
        new_job(name="step", workdir="/", script="#!/bin/sh\n:\n", depends=depends, holds=holds)
        for _ in range(count)
    ]
    return [result.id for result in head.submit(jobs).results]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dependants", type=int, default=10_000)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(prefix="gsched-dependants-") as directory:
        turns = LongestTurn(Path(directory, "turns"))
        cluster = Cluster(Path(directory, "c"), f"bench-{os.getpid()}")
        cluster.wrapper = cluster.wrapper.after(
            *(sys.executable, str(Path(__file__).parent / "watched_head.py")),
            str(Path(directory, "turns")),
        )
        try:
            cluster.start_head()
            measure(cluster, turns, options.dependants)
        finally:
            cluster.stop()
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


def measure(cluster: Cluster, turns: LongestTurn, dependants: int) -> None:
    """Delete a job with dependants, and print what a user waited for meanwhile."""
    head = cluster.head
    first = submit(head, 1, holds=("user",))[0]
    waiting: list[int] = []
    for number in range(0, dependants, BATCH):
        kind = "afterany" if number % (2 * BATCH) == 0 else "afterok"
        waiting += submit(head, min(BATCH, dependants - number), f"{kind}:{first}")
    user = User(str(cluster.socket))
    user.start()
    time.sleep(2)
    turns.take()
    user.submissions_ms.clear()
    user.looks_ms.clear()
    started_s = time.monotonic()
    head.act(DeleteJob(ids=(str(first),)))
    deleted_s = time.monotonic() - started_s
    last = [str(job) for job in (waiting[0], waiting[-1])]
    while any(row.state == JobState.HELD for row in head.jobs(last).jobs):
        time.sleep(0.05)
    followed_s = time.monotonic() - started_s
    time.sleep(2)
    user.over.set()
    user.join()
    wall_s, cpu_s = turns.take()
    print(f"{len(waiting)} dependants of one job that is deleted")
    print(f"gdel                {deleted_s * 1e3:8.0f} ms")
    print(f"all have followed   {followed_s * 1e3:8.0f} ms")
    print(f"longest turn        {wall_s * 1e3:8.0f} ms, {cpu_s * 1e3:.0f} ms of CPU time (aim 50)")
    for name, values in (("gsub", user.submissions_ms), ("gstat JOB", user.looks_ms)):
        print(
            f"{name:12}        {max(values):8.0f} ms at most, p99 {quantile(values, 0.99):.0f} ms, "
            f"{len(values)} requests"
        )


if __name__ == "__main__":
    main()
