"""How long a cluster of two heads goes without a head that rules, and what is lost: nothing.

Two heads share a PostgreSQL server of their own. Users of each head submit held jobs at --rate,
each with a key of its own, which is sent again until it is acknowledged. In each of --rounds
rounds the ruling head is killed (SIGKILL), stopped (SIGSTOP, and continued once the other one
rules) or cut off from PostgreSQL until then, and is started again afterwards.

gap        from the fault to the first submission that is acknowledged afterwards
beyond     the same less the lease, which nobody can shorten for a head that is only silent
lost       acknowledged jobs that the last ruling head does not have
twice      keys for which it has two jobs
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Self

from gsched.client import HeadClient, new_job
from gsched.errors import GschedError
from tests.support.cluster import Cluster, wait_until
from tests.support.postgres import Postgres, postgres_server

FAULTS = ("kill", "stop", "cut")
PATIENCE_S = 0.2
RETRY_S = 0.02
THREADS = 3
STUCK_S = 5.0


class Users:
    """Submits until the end, to whichever head takes it."""

    def __init__(self, heads: tuple[Cluster, Cluster], rate: float) -> None:
        self._pause_s = THREADS / rate
        self._over = threading.Event()
        self.acknowledged: dict[str, int] = {}
        self.times_s: dict[str, list[float]] = {str(head.socket): [] for head in heads}
        self._threads = [
            threading.Thread(target=self._run, args=(str(head.socket),), daemon=True)
            for head in heads
            for _ in range(THREADS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(STUCK_S)

    def _run(self, head: str) -> None:
        client = HeadClient(head, patience_s=PATIENCE_S)
        job = None
        while not self._over.wait(RETRY_S if job else self._pause_s):
            job = job or new_job(name="failover", workdir="/", script="true", holds=("user",))
            try:
                (result,) = client.submit([job]).results
            except GschedError:
                continue
            if result.error is None:
                self.acknowledged[job.key] = result.id
                self.times_s[head].append(time.monotonic())
                job = None


def _head(store: Postgres, directory: Path, lease_s: float) -> Cluster:
    made = Cluster(directory, f"failover-{os.getpid()}-{directory.name}")
    way = _way(made)
    way.symlink_to(store.directory)
    url = store.url.replace(str(store.directory), str(way))
    made.queues = f'[store]\nurl = "{url}"\nlease_s = {lease_s}\n'
    made.head_settings = {"max_queued_per_user": 1_000_000}
    return made


def _way(head: Cluster) -> Path:
    """Return the link by which a head reaches PostgreSQL's socket."""
    return head.directory / "db"


def _stands_by(head: Cluster) -> bool:
    return "standing by" in head.log("head.log")[-2000:]


def _fail(fault: str, ruling: Cluster, store: Postgres) -> None:
    if fault == "kill":
        ruling.kill_head()
    elif fault == "stop":
        ruling.head_process.send_signal(signal.SIGSTOP)
    else:
        _way(ruling).unlink()
        is_its = f"application_name LIKE '%{str(ruling.state_dir)[-40:]}'"
        store.psql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {is_its}")


def _rounds(
    heads: tuple[Cluster, Cluster], store: Postgres, options: argparse.Namespace
) -> tuple[Users, dict[str, list[float]]]:
    gaps: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    ruling, other = heads
    chance = random.Random(options.seed)
    with Users(heads, options.rate) as users:
        for number in range(options.rounds):
            wait_until(partial(_stands_by, other), what="the other head to stand by")
            time.sleep(chance.uniform(0.2, 1.0))
            fault = FAULTS[number % len(FAULTS)]
            begun_s = time.monotonic()
            _fail(fault, ruling, store)
            port = other.state_dir / "gschedd.port"
            wait_until(port.exists, 60, what="the other head to rule")
            first_s = wait_until(
                partial(_first_after, users, other, begun_s), 60, what="a submission"
            )
            gaps[fault].append(first_s - begun_s)
            if fault == "stop":
                ruling.head_process.send_signal(signal.SIGCONT)
            if fault == "cut":
                _way(ruling).symlink_to(store.directory)
            if fault != "kill":
                ruling.head_process.wait(30)
            (ruling.directory / "head.log").write_text("")
            ruling.start_head(wait=False)
            ruling, other = other, ruling
            print(f"{number + 1:>4}  {fault:<5} {gaps[fault][-1]:6.2f} s", flush=True)
    wait_until(lambda: _stands_by(other), what="the other head to stand by")
    return users, gaps


def _first_after(users: Users, head: Cluster, begun_s: float) -> float:
    """Return when a head first acknowledged a job after a moment; 0: it has not."""
    return next((at_s for at_s in users.times_s[str(head.socket)] if at_s > begun_s), 0.0)


def main() -> None:
    """Run the rounds and print what they took and lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20.0, help="submissions a second")
    parser.add_argument("--lease", type=float, default=5.0, help="lease_s of the heads")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gsched-failover-") as scratch, postgres_server() as db:
        heads = (
            _head(db, Path(scratch, "one"), options.lease),
            _head(db, Path(scratch, "two"), options.lease),
        )
        try:
            heads[0].start_head()
            shutil.copytree(heads[0].state_dir / "pki", heads[1].state_dir / "pki")
            heads[1].start_head(wait=False)
            users, gaps = _rounds(heads, db, options)
            ruler = next(each for each in heads if (each.state_dir / "gschedd.port").exists())
            found = [row.id for row in ruler.head.jobs().jobs]
        except AssertionError:
            for each in heads:
                print(f"--- {each.state_dir}", each.log("head.log")[-3000:], sep="\n")
            raise
        finally:
            for each in heads:
                each.stop()
    print(f"{'fault':<8}{'rounds':>8}{'median':>9}{'p95':>9}{'most':>9}{'beyond p95':>12}")
    for fault, times_s in gaps.items():
        if times_s:
            ordered = sorted(times_s)
            p95_s = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
            print(
                f"{fault:<8}{len(ordered):>8}{statistics.median(ordered):>8.2f}s{p95_s:>8.2f}s"
                f"{ordered[-1]:>8.2f}s{p95_s - options.lease:>11.2f}s"
            )
    lost = set(users.acknowledged.values()) - set(found)
    twice = len(found) - len(set(found))
    extra = len(found) - len(users.acknowledged)
    print(f"acknowledged {len(users.acknowledged)}, lost {len(lost)}, twice {twice}, ", end="")
    print(f"not acknowledged but there {extra}")
    if lost or twice or len(set(users.acknowledged.values())) != len(users.acknowledged):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
