"""What one user waits for the head while another one sends the worst requests (aim: p99 <= 100 ms).

A head and a node are started for this. One user submits held jobs, lists and looks at them, one
request after the other, and each is timed; first alone, then beside each kind of the worst
requests of tests/support/worst_requests.py, sent without a pause over some connections by a second
user. As root that is another user (uid 54321); else it is the same one, who then also shares the
limits of one user. Times hold for this run on this machine only.

Two lines are of no requests at all: nothing, and a process that copies 16 MiB to itself on as many
connections. What is slow beside that, too, is slow by the machine's share.

``turn ms`` and ``cpu ms`` are the longest turn of the head's event loop beside that kind: by the
clock, and by the CPU time of its thread. The CPU time is the head's own share (aim: <= 50 ms); what
the clock has beyond it, and what requests take beyond some turns, is the machine's: attacker, head
and whatever else runs share its cores. ``--nice 19`` takes the attacker's share away, mostly.

With ``--minutes`` a user attacks a whole cluster in all ways at once: see hostile_minutes.py.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
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

import hostile_minutes  # noqa: E402 - needs the path above
from watched_head import LongestTurn  # noqa: E402 - as above

from gsched.client import HeadClient, new_job  # noqa: E402 - the path comes first
from gsched.errors import GschedError  # noqa: E402 - as above
from gsched.head_address import HeadAddress  # noqa: E402 - as above
from gsched.model import limits  # noqa: E402 - as above
from gsched.transport import Transport  # noqa: E402 - as above
from tests.support.cluster import Cluster  # noqa: E402 - as above
from tests.support.worst_requests import WORST, Worst  # noqa: E402 - as above

OTHER_UID = 54321
AIM_MS = 100.0
TURN_AIM_MS = 50.0
WAIT_S = 30.0
NOTHING, BUSY = "nothing", "no requests, copies of 16 MiB"
WATCHED = str(Path(__file__).with_name("watched_head.py"))


def keep_busy(given: argparse.Namespace, over: Event) -> None:
    """In a process: send a large body again and again, but to itself, not to the head."""
    os.nice(given.nice)
    body = bytes(limits.MAX_SUBMIT_BYTES)

    def copy() -> None:
        left, right = socket.socketpair()
        with left, right:
            reader = threading.Thread(target=_read_all, args=(right,))
            reader.start()
            while not over.is_set():
                left.sendall(body)
            left.close()
            reader.join()

    threads = [threading.Thread(target=copy) for _ in range(given.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read_all(end: socket.socket) -> None:
    while end.recv(256 * 1024):
        pass


def attack(path: str, worst: Worst, given: argparse.Namespace, over: Event) -> None:
    """In a process: send a request again and again over some connections, as another user."""
    os.nice(given.nice)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(OTHER_UID)
        os.setuid(OTHER_UID)
    body = worst.make()

    def send() -> None:
        transport = Transport(HeadAddress(path, source="bench", path=path))
        while not over.is_set():
            with contextlib.suppress(GschedError):
                transport.exchange(worst.method, worst.target, body, timeout_s=WAIT_S)

    threads = [threading.Thread(target=send) for _ in range(given.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def attacked(path: str, beside: Worst | str, given: argparse.Namespace) -> Iterator[None]:
    """Have the head attacked meanwhile, or only its machine, or neither."""
    if beside == NOTHING:
        yield
        return
    context = multiprocessing.get_context("fork")
    over = context.Event()
    if isinstance(beside, Worst):
        attacker = context.Process(target=attack, args=(path, beside, given, over))
    else:
        attacker = context.Process(target=keep_busy, args=(given, over))
    attacker.start()
    try:
        yield
    finally:
        over.set()
        attacker.join()


def work(head: HeadClient, seconds: float) -> list[float]:
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


def line(name: str, taken_ms: list[float], turn: tuple[float, float]) -> str:
    """Return one line of figures."""
    ordered = sorted(taken_ms)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    wall_ms, cpu_ms = (seconds * 1000 for seconds in turn)
    verdict = "" if p99 <= AIM_MS else f"  p99 above {AIM_MS:.0f}"
    verdict += "" if cpu_ms <= TURN_AIM_MS else f"  turn above {TURN_AIM_MS:.0f}"
    return (
        f"{name:32} {len(ordered):6} {statistics.median(ordered):8.1f} {p99:8.1f} "
        f"{ordered[-1]:8.1f} {wall_ms:8.1f} {cpu_ms:8.1f}{verdict}"
    )


def main() -> None:
    """Measure and print one line for each kind of request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kind (default 5)")
    parser.add_argument("--connections", type=int, default=4, help="of the attacker (default 4)")
    parser.add_argument("--nice", type=int, default=0, help="of the attacker (default 0)")
    parser.add_argument(
        "--minutes", type=float, help="instead: all kinds of attack at once, so long"
    )
    parser.add_argument("--seed", type=int, default=1, help="of these attacks (default 1)")
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    given = parser.parse_args()
    if given.minutes is not None:
        sys.exit(hostile_minutes.main(given))
    with tempfile.TemporaryDirectory(prefix="gsched-hostile-") as directory:
        os.chmod(directory, 0o755)
        cluster = Cluster(Path(directory, "c"), f"bench-{os.getpid()}")
        cluster.head_settings = {"single_user": False}
        longest = LongestTurn(Path(directory, "turn"))
        plain = cluster.wrapper
        cluster.wrapper = plain.after(sys.executable, WATCHED, str(Path(directory, "turn")))
        try:
            cluster.start_head()
            cluster.wrapper = plain
            cluster.start_node("n1")
            head = HeadClient(str(cluster.socket))
            work(head, 1.0)  # the first requests load what all others find
            names = ("count", "p50 ms", "p99 ms", "max ms", "turn ms", "cpu ms")
            print(f"{'beside':32} {names[0]:>6} " + " ".join(f"{each:>8}" for each in names[1:]))
            chosen = [each for each in WORST if given.only in each.name]
            for beside in (NOTHING, BUSY, *chosen, BUSY, NOTHING):
                longest.take()
                with attacked(str(cluster.socket), beside, given):
                    taken_ms = work(head, given.seconds)
                name = beside.name if isinstance(beside, Worst) else beside
                print(line(name, taken_ms, longest.take()), flush=True)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
