"""What one user waits for the head while another one sends the worst requests (aim: p99 <= 100 ms).

A head and a node are started for this. One user submits held jobs, lists and looks at them, one
request after the other, and each is timed; first alone, then beside each kind of the worst
requests of tests/support/worst_requests.py, sent without a pause over some connections by a second
user. As root that is another user (uid 54321); else it is the same one, who then also shares the
limits of one user. Times hold for this run on this machine only.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gsched.client import Head, new_job  # noqa: E402 - the path comes first
from gsched.errors import GschedError  # noqa: E402 - as above
from gsched.transport import Address, Transport  # noqa: E402 - as above
from tests.support.cluster import Cluster  # noqa: E402 - as above
from tests.support.worst_requests import WORST, Worst  # noqa: E402 - as above

OTHER_UID = 54321
AIM_MS = 100.0
WAIT_S = 30.0


def attack(path: str, worst: Worst, connections: int, over: Event) -> None:
    """In a process: send a request again and again over some connections, as another user."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(OTHER_UID)
        os.setuid(OTHER_UID)
    body = worst.make()

    def send() -> None:
        transport = Transport(Address(path, source="bench", path=path))
        while not over.is_set():
            with contextlib.suppress(GschedError):
                transport.exchange(worst.method, worst.target, body, timeout_s=WAIT_S)

    threads = [threading.Thread(target=send) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def attacked(path: str, worst: Worst | None, connections: int) -> Iterator[None]:
    """Have the head attacked meanwhile."""
    if worst is None:
        yield
        return
    context = multiprocessing.get_context("fork")
    over = context.Event()
    attacker = context.Process(target=attack, args=(path, worst, connections, over))
    attacker.start()
    try:
        yield
    finally:
        over.set()
        attacker.join()


def work(head: Head, seconds: float) -> list[float]:
    """Work as a user does, and return how long each request took, in ms."""
    taken_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        job = 0
        for kind in ("submit", "list", "story"):
            begin_s = time.perf_counter()
            if kind == "submit":
                held = new_job(name="bench", workdir="/", script="#!/bin/sh\n", holds=("user",))
                job = head.submit([held]).results[0].id
            elif kind == "list":
                head.jobs([job])
            else:
                head.job(job)
            taken_ms.append((time.perf_counter() - begin_s) * 1000)
    return taken_ms


def line(name: str, taken_ms: list[float]) -> str:
    """Return one line of figures."""
    ordered = sorted(taken_ms)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    verdict = "" if p99 <= AIM_MS else f"  above {AIM_MS:.0f} ms"
    return (
        f"{name:32} {len(ordered):6} {statistics.median(ordered):8.1f} {p99:8.1f} "
        f"{ordered[-1]:8.1f}{verdict}"
    )


def main() -> None:
    """Measure and print one line for each kind of request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kind (default 5)")
    parser.add_argument("--connections", type=int, default=4, help="of the attacker (default 4)")
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gsched-hostile-") as directory:
        os.chmod(directory, 0o755)
        cluster = Cluster(Path(directory, "c"), f"bench-{os.getpid()}")
        cluster.head_settings = {"single_user": False}
        try:
            cluster.start_head()
            cluster.start_node("n1")
            head = Head(str(cluster.socket))
            work(head, 1.0)  # the first requests load what all others find
            print(f"{'beside':32} {'count':>6} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
            chosen = [each for each in WORST if given.only in each.name]
            for worst in (None, *chosen, None):
                with attacked(str(cluster.socket), worst, given.connections):
                    taken_ms = work(head, given.seconds)
                print(line("nothing" if worst is None else worst.name, taken_ms), flush=True)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
