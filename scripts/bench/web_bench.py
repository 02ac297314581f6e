"""The page with a long queue: how soon it is there, and what it costs the head.

--jobs held jobs are in the queue of a head with --nodes simulated nodes. Short jobs run through it,
--batch of them in each round. In every other round a browser loads pages of the queue at the same
time: the first, later ones, sorted and filtered. Rounds without it are the floor for those with it.

page, no load   wall time from the request to the last byte, head and nodes idle (ms)
page, load      the same while short jobs run
jobs a second   of the short jobs, from their submission to their end, without and with the browser
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from figures import quantile

from gsched.client import HeadClient, new_job
from tests.support.cluster import Cluster, wait_until
from tests.support.monitor import UnixConnection, is_ready, send, socket_of

HERE = Path(__file__).resolve().parent
BATCH = 2000
PAUSE_S = 0.2  # of the browser: five pages a second
PATHS = (
    *("/", "/?number=500", "/?sort=-name", "/?state=held&number=20", "/?name=held-77"),
    *("/?user=nobody", "/?sort=queue&number=900", "/?state=running"),
)


def load_page(cluster: Cluster, path: str) -> float:
    """Return the milliseconds that a page takes."""
    begun_s = time.perf_counter()
    found = send(UnixConnection(socket_of(cluster)), "GET", path, headers={"Host": "localhost"})
    if found.status != 200:
        sys.exit(f"{path}: status {found.status}")
    return (time.perf_counter() - begun_s) * 1000


def fill(head: HeadClient, jobs: int) -> None:
    """Queue so many jobs that are held."""
    for first in range(0, jobs, BATCH):
        names = range(first, min(jobs, first + BATCH))
        held = [
            new_job(
                name=f"held-{at}", workdir="/", script=":\n", holds=("user",),
                resources=(f"nodes=1:ppn={at % 8 + 1},walltime=1:0:0",),
            )
            for at in names
        ]  # fmt: skip
        head.submit(held)


def run_short(cluster: Cluster, count: int) -> float:
    """Run so many short jobs and return how many ended a second."""
    begun_s = time.perf_counter()
    short = [new_job(name="short", workdir="/", script=":\n") for _ in range(count)]
    last = cluster.head.submit(short).results[-1].id
    cluster.head.wait([last])
    wait_until(lambda: cluster.head.status().jobs.get("queued", 0) == 0, what="all to start")
    wait_until(lambda: cluster.head.status().jobs.get("running", 0) == 0, what="all to end")
    return count / (time.perf_counter() - begun_s)


@contextmanager
def browser(cluster: Cluster) -> Iterator[list[float]]:
    """Load pages until the end; yield how long they take, milliseconds."""
    taken: list[float] = []
    ended = threading.Event()

    def browse() -> None:
        while not ended.wait(PAUSE_S):
            taken.append(load_page(cluster, PATHS[len(taken) % len(PATHS)]))

    thread = threading.Thread(target=browse)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="held (default 100000)")
    parser.add_argument("--nodes", type=int, default=20, help="simulated (default 20)")
    parser.add_argument("--batch", type=int, default=1000, help="short jobs a round (default 1000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gsched-bench-") as directory:
        cluster = Cluster(Path(directory), "web-bench")
        cluster.has_monitor = True
        nodes: subprocess.Popen[bytes] | None = None
        try:
            cluster.start_head()
            config = str(cluster.directory / "head.toml")
            words = [sys.executable, HERE / "nodes_bench.py", str(given.nodes), "--config", config]
            nodes = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            fill(cluster.head, given.jobs)
            wait_until(lambda: is_ready(cluster), 120.0, what="the monitor to be ready")
            wait_until(lambda: cluster.head.status().nodes_up == given.nodes, what="all nodes")
            for path in PATHS:
                load_page(cluster, path)
            alone: list[float] = []
            for _ in range(25):
                for path in PATHS:
                    time.sleep(0.02)
                    alone.append(load_page(cluster, path))
            floor, watched, under = [], [], []
            run_short(cluster, given.batch)
            for _ in range(given.rounds):
                floor.append(run_short(cluster, given.batch))
                with browser(cluster) as taken:
                    watched.append(run_short(cluster, given.batch))
                under += taken
        finally:
            if nodes is not None:
                nodes.kill()
            cluster.stop()
    if given.json:
        print(json.dumps({"alone": alone, "under": under, "floor": floor, "watched": watched}))
        return
    for name, values in (("page, no load", alone), ("page, load", under)):
        print(
            f"{name:14} p50 {quantile(values, 0.5):6.0f} ms, p99 {quantile(values, 0.99):6.0f} ms,"
            f" {len(values)} pages (aim: p99 300)"
        )
    without, beside = statistics.median(floor), statistics.median(watched)
    print(
        f"jobs a second  {without:.0f} without, {beside:.0f} with the browser: "
        f"{100 * beside / without:.0f} % (aim: 95)"
    )


if __name__ == "__main__":
    main()
