"""What terminal sessions cost: a real head, gnode, shells and clients, each client on a terminal.

echo     from a key that is typed at the client to its echo on the client's screen
status   ``GET /v1/status``, a request that the head answers from memory

Both are measured alone, and beside sessions that show output without end (``yes``).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from figures import quantile  # noqa: E402 - the path comes first

from tests.support.cluster import Cluster  # noqa: E402 - as above
from tests.support.commands import command_environment  # noqa: E402 - as above
from tests.support.ptys import Sitting  # noqa: E402 - as above

PAUSE_S = 0.02


def sit(cluster: Cluster) -> Sitting:
    """Return a user at the shell of an interactive job."""
    made = Sitting(
        [sys.executable, "-m", "gsched.cli.commands.gsub", "-I", "-S", "/bin/sh"],
        env=command_environment(cluster.socket, TERM="dumb"),
        cwd=cluster.jobs,
    )
    made.match(r"[$#] ")
    return made


def measure(cluster: Cluster, user: Sitting, samples: int) -> tuple[list[float], list[float]]:
    """Return the times of echoes and of requests, seconds."""
    echoes: list[float] = []
    requests: list[float] = []
    for number in range(samples):
        begun_s = time.perf_counter()
        user.type("abcdefgh"[number % 8])
        user.until("abcdefgh"[number % 8])
        echoes.append(time.perf_counter() - begun_s)
        begun_s = time.perf_counter()
        cluster.head.status()
        requests.append(time.perf_counter() - begun_s)
        time.sleep(PAUSE_S)
    user.type("\x15")  # the shell forgets the line
    return echoes, requests


def show(measured: tuple[list[float], list[float]]) -> None:
    """Print a line of figures for each."""
    for name, seconds in (("echo", measured[0]), ("status", measured[1])):
        p50, p99 = statistics.median(seconds) * 1e3, quantile(seconds, 0.99) * 1e3
        print(f"  {name:8} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floods", type=int, default=8, help="sessions that show without end")
    parser.add_argument("--samples", type=int, default=200, help="keys and requests")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gsched-bench-") as top:
        cluster = Cluster(Path(top), "bench")
        drains: list[subprocess.Popen[bytes]] = []
        opened: list[Sitting] = []
        try:
            cluster.start_head()
            cluster.start_node("n1", cpus=given.floods + 4)
            user = sit(cluster)
            opened.append(user)
            print(f"load average {os.getloadavg()[0]:.1f}; one session alone:")
            show(measure(cluster, user, given.samples))
            for _ in range(given.floods):
                opened.append(sit(cluster))
                opened[-1].type("yes\n")
                cat = ["cat"]
                drains.append(
                    subprocess.Popen(cat, stdin=opened[-1].master, stdout=subprocess.DEVNULL)
                )
            time.sleep(2.0)
            print(f"load average {os.getloadavg()[0]:.1f}; beside {given.floods} that flood:")
            show(measure(cluster, user, given.samples))
        finally:
            for drain in drains:
                drain.kill()
                drain.wait()
            for each in opened:
                each.close()
            cluster.stop()


if __name__ == "__main__":
    main()
