"""What a scrape of /metrics costs the head, and how many series it has, with simulated nodes.

A head with its monitor, N nodes of 8 GPUs and 4 jobs on each. Rounds without and with a scrape per
second alternate, on the monitor's socket or (--at-head) on the head's; of each the CPU time of the
head is measured. Printed are medians over the rounds: CPU time of the head per second without and
with scrapes, their difference (what a scrape costs), and of one scrape the time until it is
answered, its series and its bytes.

Aim: less than 20 ms of CPU time of the head for a scrape of 200 nodes, at most 3,000 series.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from respond_bench import World, plain, world  # noqa: E402 - the path comes first

from tests.support.cluster import wait_until  # noqa: E402 - as above
from tests.support.monitor import UnixConnection, is_ready, send, socket_of  # noqa: E402 - as above

JOBS_OF_NODE = 4


def scrape(path: Path) -> str:
    """Return the metrics on a socket."""
    response = send(UnixConnection(path), "GET", "/metrics")
    if response.status != 200:
        sys.exit(f"{path}: status {response.status}: {response.text}")
    return response.text


def cpu_ms(made: World, seconds: float, socket: Path | None) -> tuple[float, list[float]]:
    """Return the CPU time of the head per second, and how long scrapes of a socket took, in ms."""
    process = psutil.Process(made.cluster.head_process.pid)

    def used_s() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    begin_s, before_s, took_ms = time.perf_counter(), used_s(), []
    while time.perf_counter() - begin_s < seconds:
        next_s = time.perf_counter() + 1.0
        if socket is not None:
            scrape_s = time.perf_counter()
            scrape(socket)
            took_ms.append(1000 * (time.perf_counter() - scrape_s))
        time.sleep(max(0.0, next_s - time.perf_counter()))
    return 1000 * (used_s() - before_s) / (time.perf_counter() - begin_s), took_ms


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200, help="(default 200)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round (default 20)")
    parser.add_argument("--rounds", type=int, default=3, help="(default 3)")
    parser.add_argument("--at-head", action="store_true", help="scrape the head's own socket")
    given = parser.parse_args()
    with world() as made:
        made.cluster.has_monitor = True
        made.cluster.start_head()
        made.start_nodes("sim", given.nodes, seconds=3600.0, gpus=8)
        for begin in range(0, given.nodes * JOBS_OF_NODE, 100):
            count = min(100, given.nodes * JOBS_OF_NODE - begin)
            made.head.submit([plain() for _ in range(count)])
        wait_until(lambda: is_ready(made.cluster), what="the monitor to be ready")
        time.sleep(20.0)  # it has samples of all nodes
        socket = made.cluster.socket if given.at_head else socket_of(made.cluster)
        quiet, busy, took_ms = [], [], []
        for _ in range(given.rounds):
            quiet.append(cpu_ms(made, given.seconds, None)[0])
            used, took = cpu_ms(made, given.seconds, socket)
            busy.append(used)
            took_ms += took
        text = scrape(socket)
    without, together = statistics.median(quiet), statistics.median(busy)
    series = sum(not line.startswith("#") for line in text.splitlines())
    print(f"nodes               {given.nodes}, load {os.getloadavg()[0]:.1f}")
    print(f"series              {series}")
    print(f"bytes               {len(text)}")
    print(f"head without, ms/s  {without:.2f}  ({min(quiet):.2f} to {max(quiet):.2f})")
    print(f"head with, ms/s     {together:.2f}  ({min(busy):.2f} to {max(busy):.2f})")
    print(f"head per scrape, ms {together - without:.2f}")
    print(f"scrape answered, ms {statistics.median(took_ms):.1f}  (most {max(took_ms):.1f})")


if __name__ == "__main__":
    main()
