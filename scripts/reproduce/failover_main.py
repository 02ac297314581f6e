"""How long a cluster of two heads goes without a head that rules, and what users see of it.

Two heads share a PostgreSQL server with a synchronous replica. --nodes simulated nodes run jobs of
half a second. Users submit --rate jobs a second, half of them held, and hold, release, delete and
look at them, at whichever head takes a request. In each of --rounds rounds the ruling head is
killed (SIGKILL), stopped (SIGSTOP, and continued once the other one rules) or cut off from
PostgreSQL until then, and is started again afterwards. At the end the primary is lost as well
(SIGQUIT), and the replica is promoted a second later.

rules      from the fault to the moment at which the other head serves
gap        from the fault to the first submission that is acknowledged afterwards
beyond     the same less the lease, which nobody can shorten for a head that is only silent
lost       acknowledged jobs that the last ruling head does not have
twice      keys for which it has two jobs
orders     jobs of which users and nodes have seen what no order of operations explains
reads      with the addresses of both heads and the patience of gstat: those that nobody answered,
           and the longest time between two answers
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from scripts.reproduce.failover_history import Operation, violations
from scripts.reproduce.failover_nodes import Nodes
from scripts.reproduce.failover_users import Users
from tests.support.cluster import Cluster, wait_until
from tests.support.postgres import Postgres, postgres_server

FAULTS = ("kill", "stop", "cut")
RULES = "rules"
PROMOTED_S = 1.0  # after the primary was lost
PATIENCE_S = 120.0
REASONS = 4  # of reads that nobody answered, printed


class Databases:
    """A primary and its replica, and the ways by which heads reach them."""

    def __init__(self, primary: Postgres, scratch: Path) -> None:
        self.primary = primary
        self.replica = primary.replica(primary.directory / "replica")
        self._scratch = scratch

    def _ways(self, head: str) -> list[tuple[Path, Path]]:
        servers = (self.primary, self.replica)
        return [
            (self._scratch / f"{head}-{at}", server.directory) for at, server in enumerate(servers)
        ]

    def url(self, head: str) -> str:
        """Return the URL by which a head finds the server that can be written."""
        hosts = ",".join(str(way) for way, _ in self._ways(head))
        return f"postgresql:///postgres?user=gsched&host={hosts}&target_session_attrs=read-write"

    def open_way(self, head: str) -> None:
        """Let a head reach both."""
        for way, directory in self._ways(head):
            way.symlink_to(directory)

    def close_way(self, head: str, name: str) -> None:
        """Cut a head off; ``name`` is that of its connections."""
        for way, _ in self._ways(head):
            way.unlink()
        is_its = f"application_name LIKE '%{name[-40:]}'"
        self.primary.psql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {is_its}")

    def lose_primary(self) -> None:
        """Stop the primary for good, and promote the replica."""
        self.primary.stop()
        time.sleep(PROMOTED_S)
        self.replica.promote()


def _head(databases: Databases, directory: Path, lease_s: float) -> Cluster:
    made = Cluster(directory, f"failover-{os.getpid()}-{directory.name}")
    databases.open_way(directory.name)
    made.queues = f'[store]\nurl = "{databases.url(directory.name)}"\nlease_s = {lease_s}\n'
    # nobody dials these: the nodes know both heads by their Unix sockets
    addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    made.head_settings = {"max_queued_per_user": 1_000_000, "addresses": addresses}
    return made


def _stands_by(head: Cluster) -> bool:
    return "standing by" in head.log("head.log")[-2000:]


def _fail(fault: str, ruling: Cluster, databases: Databases) -> None:
    if fault == "kill":
        ruling.kill_head()
    elif fault == "stop":
        ruling.head_process.send_signal(signal.SIGSTOP)
    else:
        databases.close_way(ruling.directory.name, str(ruling.state_dir))


def _rounds(
    heads: tuple[Cluster, Cluster],
    databases: Databases,
    users: Users,
    options: argparse.Namespace,
) -> dict[str, list[float]]:
    """Return the gaps of each fault; ``rules``: how soon the other head served."""
    gaps: dict[str, list[float]] = {fault: [] for fault in (*FAULTS, "primary", RULES)}
    ruling, other = heads
    chance = random.Random(options.seed)
    for number in range(options.rounds):
        wait_until(partial(_stands_by, other), PATIENCE_S, what="the other head to stand by")
        time.sleep(chance.uniform(0.2, 1.0))
        fault = FAULTS[number % len(FAULTS)]
        begun_s = time.monotonic()
        _fail(fault, ruling, databases)
        port = other.state_dir / "gschedd.port"
        wait_until(port.exists, PATIENCE_S, what="the other head to rule")
        gaps[RULES].append(time.monotonic() - begun_s)
        gaps[fault].append(_first_after(users, time.monotonic(), other) - begun_s)
        if fault == "stop":
            ruling.head_process.send_signal(signal.SIGCONT)
        if fault == "cut":
            databases.open_way(ruling.directory.name)
        if fault != "kill":
            ruling.head_process.wait(PATIENCE_S)
        (ruling.directory / "head.log").write_text("")
        ruling.start_head(wait=False)
        ruling, other = other, ruling
        took_s = f"{gaps[fault][-1]:6.2f} s, rules after {gaps[RULES][-1]:.2f} s"
        print(f"{number + 1:>4}  {fault:<7} {took_s}, load {os.getloadavg()[0]:.1f}", flush=True)
    wait_until(partial(_stands_by, other), PATIENCE_S, what="the other head to stand by")
    begun_s = time.monotonic()
    databases.lose_primary()
    gaps["primary"].append(_first_after(users, begun_s + PROMOTED_S, ruling) - begun_s)
    print(f"      primary {gaps['primary'][-1]:6.2f} s", flush=True)
    return gaps


def _first_after(users: Users, begun_s: float, head: Cluster) -> float:
    """Return when the first job was acknowledged that was requested after a moment."""

    def first() -> float:
        return next((at_s for at_s in users.times_s[-1000:] if at_s > begun_s), 0.0)

    try:
        return wait_until(first, PATIENCE_S, what="a submission")
    except AssertionError:
        print(head.log("head.log"))
        raise


def _print_gaps(gaps: dict[str, list[float]], lease_s: float) -> None:
    print(f"{'fault':<8}{'rounds':>8}{'median':>9}{'p95':>9}{'most':>9}{'beyond p95':>12}")
    heads = [each for fault in FAULTS for each in gaps[fault]]
    for fault, times_s in {**gaps, "heads": heads}.items():
        if times_s:
            ordered = sorted(times_s)
            p95_s = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
            print(
                f"{fault:<8}{len(ordered):>8}{statistics.median(ordered):>8.2f}s{p95_s:>8.2f}s"
                f"{ordered[-1]:>8.2f}s{p95_s - lease_s:>11.2f}s"
            )


def _judged(users: Users, operations: list[Operation], found: list[int]) -> bool:
    """Print what users have seen; return whether all is well."""
    numbers = set(users.acknowledged.values())
    lost = numbers - set(found)
    twice = len(users.acknowledged) - len(numbers)
    extra = len(set(found)) - len(numbers)
    print(f"acknowledged {len(numbers)}, lost {len(lost)}, twice {twice}, ", end="")
    print(f"not acknowledged but there {extra}")
    kinds = Counter(f"{each.verb} {each.result or 'unknown'}" for each in operations)
    print("operations:", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    wrong = violations(operations)
    print(f"jobs {len({each.job for each in operations})}, orders without explanation {len(wrong)}")
    for bad in list(wrong.values())[:5]:
        for each in bad:
            print("  ", msgspec.json.encode(each).decode())
    times_s = [at_s for at_s, _ in users.reads]
    longest_s = max((after - before for before, after in pairwise(times_s)), default=0.0)
    stood_by = sum(is_warned for _, is_warned in users.reads)
    print(
        f"reads {len(users.reads)}, with a warning {stood_by}, not answered {len(users.unread)}, "
        f"longest time between two answers {longest_s:.2f} s"
    )
    for words, count in Counter(users.unread).most_common(REASONS):
        print(f"  {count} not answered: {words}")
    return not (lost or twice or wrong)


def _history(users: Users, nodes: Nodes) -> list[Operation]:
    """Return all that was seen of acknowledged jobs.

    A job that no node was given can have been started and ended by the head alone.
    """
    known = {str(number) for number in users.acknowledged.values()}
    seen = [each for each in nodes.operations if each.job in known]
    for verb in ("start", "outcome"):
        unseen = known - {each.job for each in seen if each.verb == verb}
        seen += [Operation(job=job, verb=verb, begun_s=0.0) for job in unseen]
    return [*users.operations, *seen]


def main() -> None:  # noqa: PLR0915 # one run
    """Run the rounds and print what they took and lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20.0, help="submissions a second")
    parser.add_argument("--nodes", type=int, default=200, help="simulated nodes")
    parser.add_argument("--users", type=int, default=12)
    parser.add_argument("--lease", type=float, default=5.0, help="lease_s of the heads")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory(prefix="gsched-failover-") as scratch, postgres_server() as db:
        databases = Databases(db, Path(scratch))
        heads = tuple(_head(databases, Path(scratch, name), options.lease) for name in ("a", "b"))
        assert len(heads) == 2
        try:
            heads[0].start_head()
            shutil.copytree(heads[0].state_dir / "pki", heads[1].state_dir / "pki")
            heads[1].start_head(wait=False)
            channels = tuple(str(each.directory / "head-node.sock") for each in heads)
            sockets = tuple(str(each.socket) for each in heads)
            with Nodes(channels, options.nodes) as nodes:
                wait_until(lambda: nodes.connected == options.nodes, PATIENCE_S, what="the nodes")
                users = Users(sockets, rate=options.rate, count=options.users, seed=options.seed)
                with users:
                    gaps = _rounds(heads, databases, users, options)
                    time.sleep(options.lease)
                wait_until(lambda: nodes.connected == options.nodes, PATIENCE_S, what="the nodes")
            ruler = next(each for each in heads if (each.state_dir / "gschedd.port").exists())
            found = [row.id for row in ruler.head.jobs(finished=True).jobs]
        except AssertionError:
            for each in heads:
                print(f"--- {each.state_dir}", each.log("head.log")[-3000:], sep="\n")
            raise
        finally:
            for each in heads:
                each.stop()
            databases.replica.stop()
    _print_gaps(gaps, options.lease)
    is_well = _judged(users, _history(users, nodes), found)
    print(f"load average after: {os.getloadavg()[0]:.1f}")
    if not is_well:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
