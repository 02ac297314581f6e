"""A thousand simulated hosts, which join, connect, come back and renew at the same time.

Each host has a key, a certificate, a directory and (without --nat) an address of its own. It joins
as gsched join does and is connected by gnode's own code, with its pauses and their jitter
(hosts_clients.py). Hosts share a few processes and the machine with the head; no host has jobs.

join       all hosts request a certificate with a token of their own in the same moment.
connect    all hosts connect in the same moment, as after a power failure of all but the head.
restart    the head is killed (SIGKILL) and started: until all are back, from its first answer.
renew      certificates of this run live for 1.5 times --renew-within, so that each host renews its
           own --renew-within after it was issued: as close together as the hosts have joined.

Printed for each: the time until all hosts are done and until 99 of 100 are, the longest turn of
the head's event loop by the clock and by CPU time, the head's CPU time, by host, its resident
memory at the end, and how many tries the hosts needed (join) or connections they made.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402 - the path comes first
from hosts_clients import Place, run  # noqa: E402 - as above
from watched_head import LongestTurn  # noqa: E402 - as above

from gsched.protocol.joining import CreateToken  # noqa: E402 - as above
from tests.support.cluster import Cluster  # noqa: E402 - as above

WATCHED = str(Path(__file__).with_name("watched_head.py"))
LOOK_S = 0.05
PATIENCE_S = 600.0


class Times(NamedTuple):
    """What a host tells; 0: it has not happened, or is over."""

    joined_s: float
    welcomed_s: float
    renewed_s: float
    tries: int
    welcomes: int


class Measured(NamedTuple):
    """One row of the table."""

    name: str
    all_s: float
    most_s: float
    turn_ms: float
    turn_cpu_ms: float
    cpu_s: float
    memory_mb: float
    tries: str
    load: float


class Bench:
    """A head and its hosts."""

    def __init__(self, cluster: Cluster, turns: LongestTurn, given: argparse.Namespace) -> None:
        self._cluster, self._turns, self._hosts = cluster, turns, given.hosts
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.Process] = []
        lines = [
            cluster.head.create_token(CreateToken(role="node", ttl_s=3600.0))
            for _ in range(given.hosts)
        ]
        place = Place(
            address=f"127.0.0.1:{cluster.node_port}",
            authority=lines[0].authority,
            directory=cluster.directory / "hosts",
            is_nat=given.nat,
        )
        tokens = [line.token for line in lines]
        for first in range(given.processes):
            here, there = multiprocessing.Pipe()
            numbers = range(first, given.hosts, given.processes)
            process = multiprocessing.Process(
                target=run, args=(there, numbers, [tokens[each] for each in numbers], place)
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def close(self) -> None:
        """End the hosts."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.terminate()
            process.join()

    def order(self, word: str) -> list[Times]:
        """Return the times of all hosts after an order."""
        for pipe in self._pipes:
            pipe.send(word)
        return [Times(*times) for pipe in self._pipes for times in pipe.recv()]

    def measure(
        self, name: str, begin: Callable[[], float], done: Callable[[Times], float]
    ) -> Measured:
        """Return what a phase took, from ``begin``, which returns when it was."""
        self._turns.take()
        before_s, pid = self._cpu_s(), self._cluster.head_process.pid
        begun_s = begin()
        if self._cluster.head_process.pid != pid:
            before_s = 0.0
        while True:
            times = self.order("times")
            ends = sorted(done(each) for each in times)
            if ends[0] > begun_s:
                break
            if time.time() > begun_s + PATIENCE_S:
                late = sum(end <= begun_s for end in ends)
                raise SystemExit(f"{name}: {late} hosts are not done after {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
        wall_s, cpu_s = self._turns.take()
        head = psutil.Process(self._cluster.head_process.pid)
        count = sum(each.tries if name == "join" else each.welcomes for each in times)
        return Measured(
            name=name,
            all_s=ends[-1] - begun_s,
            most_s=ends[int(0.99 * (len(ends) - 1))] - begun_s,
            turn_ms=wall_s * 1000,
            turn_cpu_ms=cpu_s * 1000,
            cpu_s=self._cpu_s() - before_s,
            memory_mb=head.memory_info().rss / 2**20,
            tries=f"{count / self._hosts:.2f}",
            load=os.getloadavg()[0],
        )

    def _cpu_s(self) -> float:
        times = psutil.Process(self._cluster.head_process.pid).cpu_times()
        return float(times.user + times.system)

    def restart(self) -> float:
        """Kill the head and start it; return when it answered."""
        self._cluster.kill_head()
        self._cluster.start_head()
        self._turns.take()
        return time.time()


def print_table(rows: Sequence[Measured], hosts: int) -> None:
    """Print the table in Markdown."""
    print(
        "| | all done, s | 99 % done, s | longest turn, ms | of it CPU, ms | CPU of the head, s "
        "| by host, ms | memory, MB | tries or connections by host | load |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print(
            f"| {row.name} | {row.all_s:.1f} | {row.most_s:.1f} | {row.turn_ms:.0f} "
            f"| {row.turn_cpu_ms:.0f} | {row.cpu_s:.2f} | {row.cpu_s / hosts * 1000:.2f} "
            f"| {row.memory_mb:.0f} | {row.tries} | {row.load:.1f} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="of all hosts [4]")
    parser.add_argument("--nat", action="store_true", help="all hosts have one address")
    parser.add_argument("--renew-within", type=float, default=120.0, metavar="S", help="[120]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gsched-hosts-") as directory:
        turns = LongestTurn(Path(directory, "turns"))
        cluster = Cluster(Path(directory, "c"), f"bench-{os.getpid()}")
        cluster.wrapper = cluster.wrapper.after(
            sys.executable, WATCHED, str(Path(directory, "turns"))
        )
        cluster.tls = f"[tls]\nlifetime_s = {1.5 * given.renew_within}\n"
        bench = None
        try:
            cluster.start_head()
            bench = Bench(cluster, turns, given)
            print_table(list(phases(bench)), given.hosts)
        finally:
            if bench is not None:
                bench.close()
            log = (cluster.directory / "head.log").read_text(errors="replace")
            cluster.stop()
    print(f"{log.count('Traceback')} tracebacks in the head's log")


def phases(bench: Bench) -> list[Measured]:
    """Return the rows of the table."""

    def times_of(word: str) -> Callable[[], float]:
        def begin() -> float:
            begun_s = time.time()
            bench.order(word)
            return begun_s

        return begin

    return [
        bench.measure("join", times_of("join"), lambda each: each.joined_s),
        bench.measure("connect", times_of("serve"), lambda each: each.welcomed_s),
        bench.measure("restart", bench.restart, lambda each: each.welcomed_s),
        bench.measure("renew", time.time, lambda each: each.renewed_s),
    ]


if __name__ == "__main__":
    main()
