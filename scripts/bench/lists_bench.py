"""The head's memory while one user repeats lists of the history.

--jobs jobs are queued at one head whose one node is drained, and deleted, so that all are finished.
Then one user asks --rounds times for each list, one after the other or --at-once at a time, and
reads the answers. Measured from outside:

before, after   VmRSS of the head before the first answer and one second after the last
most            the largest VmRSS meanwhile, looked at every 20 ms
list            wall time from the request to the last byte, median
"""

import argparse
import http.client
import json
import socket
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
from cluster import Cluster, one_node
from query_bench import BATCH, fill, memory_mb

from gsched.client import HeadClient
from gsched.protocol import actions as a

LISTS = {
    "ghist": "/v1/history?limit=100000",
    "gstat --all": "/v1/jobs?all=1",
}
LOOK_S = 0.02
PART_BYTES = 1 << 16


class _Most(threading.Thread):
    """The largest resident set of a process, until it is stopped."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__()
        self.most_mb = 0.0
        self._process, self._stopped = process, threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._stopped.wait(LOOK_S):
            self.most_mb = max(self.most_mb, self._process.memory_info().rss / 1e6)

    def stop(self) -> float:
        """Return the largest."""
        self._stopped.set()
        self.join()
        return self.most_mb


def read_list(address: str, target: str) -> tuple[float, int]:
    """Return how long one list took, seconds, and its bytes."""
    started_s = time.perf_counter()
    connection = http.client.HTTPConnection("head")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(address)
    connection.request("GET", target)
    answer = connection.getresponse()
    size = 0
    while part := answer.read(PART_BYTES):
        size += len(part)
    connection.close()
    if answer.status != http.HTTPStatus.OK:
        sys.exit(f"{target}: status {answer.status}")
    return time.perf_counter() - started_s, size


def measure(cluster: Cluster, target: str, *, rounds: int, at_once: int) -> dict[str, float]:
    """Return the figures of one list."""
    before_mb = memory_mb(cluster)
    most = _Most(cluster.head_process())
    most.start()
    with ThreadPoolExecutor(at_once) as pool:
        done = list(pool.map(lambda _: read_list(cluster.address, target), range(rounds)))
    time.sleep(1.0)
    most_mb = most.stop()
    return {
        "before_mb": before_mb,
        "most_mb": most_mb,
        "after_mb": memory_mb(cluster),
        "list_s": statistics.median(seconds for seconds, _ in done),
        "bytes": float(done[0][1]),
    }


def main() -> None:
    """Measure and print a line for each list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="finished (default 100000)")
    parser.add_argument("--rounds", type=int, default=20, help="of each list (default 20)")
    parser.add_argument("--at-once", type=int, default=1, help="requests (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    with one_node(cpus=8) as cluster:
        ids = fill(cluster, options.jobs)
        head = HeadClient(cluster.address)
        for begin in range(0, len(ids), BATCH):
            head.act(a.DeleteJob(ids=tuple(map(str, ids[begin : begin + BATCH]))))
        while head.status().jobs:
            time.sleep(0.2)
        figures = {
            name: measure(cluster, target, rounds=options.rounds, at_once=options.at_once)
            for name, target in LISTS.items()
        }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{options.jobs} finished jobs, {options.rounds} lists, {options.at_once} at once:")
    for name, each in figures.items():
        print(
            f"{name:12} before {each['before_mb']:.1f} MB, most {each['most_mb']:.1f} MB, "
            f"after {each['after_mb']:.1f} MB; list {each['list_s']:.2f} s, "
            f"{each['bytes'] / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
