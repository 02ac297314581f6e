"""Daemons killed at seeded random moments while users submit, and the judge's verdict after it."""

import contextlib
import getpass
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import psutil

from gsched.errors import HeadUnreachableError, TryAgainError
from tests.support import chaos_fair, records
from tests.support.chaos_faults import (
    Latencies,
    Twins,
    fill_for_a_moment,
    kill_launcher,
    kill_supervisor,
    restore_snapshot,
    take_snapshot,
)
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.judge import Judge, facts_of, verdict
from tests.support.processes import MARKER, attempts
from tests.support.users import User

SUBMITTERS = 4  # the last one uses gsub
NODES = ("n1", "n2")
NODE_CPUS = 16
QUIET_S_MAX = 0.6  # between two faults
KILL_PATIENCE_S = 1.0
DRAIN_TIMEOUT_S = 240.0
#: Kinds of faults; those of `ROOTS` need root, as small file systems are mounted for them.
FAULTS = ("head", "node", "pause", "supervisor", "launcher", "twin", "restore", "worst", "disk")
ROOTS = ("disk",)
#: Faults after which a job may have another attempt: one is gone without a record, or could not
#: start.
LOSING = ("supervisor", "launcher", "disk")
REST_TIMEOUT_S = 240.0
SENT_S = 0.3  # in which a head that runs takes in what users have sent


class Chaos:
    """One cluster, its users, and what happens to it.

    Args:
        cluster: of which nothing is started yet.
        marker: what marks this test's processes.
        seed: of everything that is random here; the operating system adds its own.
        faults: of `FAULTS`, in any number; one is drawn for each round.
        stranger: who sends the worst requests; None: the user whose jobs these are.
        users: whose jobs they are, in turn; empty: ours.
        fair: there are projects, limits and a reservation, and what was used is compared.
    """

    def __init__(
        self,
        cluster: Cluster,
        marker: str,
        *,
        seed: int,
        faults: Sequence[str] = ("head",),
        stranger: User | None = None,
        users: Sequence[User] = (),
        fair: bool = False,
    ) -> None:
        self._cluster = cluster
        self._marker = marker
        self._seed = seed
        self._random = random.Random(seed)
        self._faults = tuple(faults)
        self._accounts = tuple(users)
        self._is_fair = fair
        self._users: list[subprocess.Popen[bytes]] = []
        self._stop_file = cluster.directory / "stop"
        self._acks = cluster.directory / "acks"
        self._judge = Judge(cluster.jobs)
        self._twins = Twins(cluster, marker)
        self._snapshot = cluster.directory / "snapshot"
        self.latencies = Latencies(cluster, marker, stranger)
        self.happened: Counter[str] = Counter()
        self.usage = chaos_fair.Usage()
        self.peaks: Mapping[tuple[str, str], tuple[int, int]] = {}

    def run(self, rounds: int, *, until_s: float | None = None) -> list[str]:
        """Run the rounds, let the cluster come to rest, and return what is wrong.

        Args:
            rounds: faults, at most.
            until_s: of the monotonic clock: no further round begins after that.
        """
        cluster = self._cluster
        cluster.is_native = True  # jobs of other users are run without it nevertheless
        if self._is_fair:
            names = [user.name for user in self._accounts] or [getpass.getuser()]
            cluster.queues = chaos_fair.config(names)
        cluster.start_head()
        for name in NODES:
            self._start_node(name)
        for name in NODES:
            cluster.wait_for_node(name)
        if self._is_fair:
            chaos_fair.reserve(cluster.head, time.time())
        if "restore" in self._faults:
            take_snapshot(cluster, self._snapshot)
        self._start_users()
        for _ in range(rounds):
            if until_s is not None and time.monotonic() >= until_s:
                break
            time.sleep(self._random.uniform(0, QUIET_S_MAX))
            fault = self._random.choice(self._faults)
            self.happened[fault] += 1
            self._do(fault)
            self._check_users()
        self._end_users()
        self._drain()
        attempts_max = None if set(LOSING) & set(self._faults) else 1
        database = cluster.state_dir / "gsched.db"
        problems = verdict(self._judge, database, self.acknowledged(), attempts_max=attempts_max)
        if self._is_fair:
            facts, lines = facts_of(database), self._judge.lines()
            self.peaks = chaos_fair.peaks_of(lines, facts)
            problems += chaos_fair.over_limits(self.peaks)
            problems += chaos_fair.outside_reservation(facts)
            self.usage = chaos_fair.usage_of(lines, facts)
        return problems + self._unclear()

    def acknowledged(self) -> list[int]:
        """Return the ids that users were told."""
        lines = self._acks.read_text(encoding="ascii").splitlines()
        return [int(line.split()[0]) for line in lines]

    def end(self) -> None:
        """Kill the users that are left."""
        for user in self._users:
            if user.poll() is None:
                user.kill()
                user.wait()

    def lines(self) -> int:
        """Return how many lines the jobs have written."""
        return len(self._judge.lines())

    # --- users ---

    def _start_users(self) -> None:
        script = self._cluster.jobs / "job.sh"
        whole = "$(($$ % 3))" if self._is_fair else "0"  # long enough to reach limits
        script.write_text(self._judge.script(f'sleep "{whole}.$(($$ % 4))"'), encoding="ascii")
        self._acks.touch()
        if self._accounts:
            self._cluster.jobs.chmod(0o1777)
            for path in (self._acks, self._judge.path):
                path.chmod(0o666)
        for number in range(SUBMITTERS):
            paths = {
                "socket": self._cluster.socket,
                "jobs": self._cluster.jobs,
                "script": script,
                "acks": self._acks,
                "stop": self._stop_file,
            }
            arguments = [word for name in paths for word in (f"--{name}", str(paths[name]))]
            arguments += ["--seed", str(self._seed * SUBMITTERS + number)]
            if number == SUBMITTERS - 1:
                arguments.append("--cli")
            if self._is_fair:
                project = chaos_fair.PROJECTS[number % 2]
                arguments += ["--account", project]
                if project == chaos_fair.PROJECTS[0]:
                    arguments += ["--reservation", chaos_fair.RESERVATION]
            user = self._accounts[number % len(self._accounts)] if self._accounts else None
            with open(self._cluster.directory / f"user{number}.log", "ab") as log:
                self._users.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.support.submitter", *arguments],
                        cwd=ROOT,
                        env={**os.environ, MARKER: self._marker},
                        stdout=log,
                        stderr=log,
                        # the kernel lets stopped ones of our group go on when our shell ends
                        start_new_session=True,
                        user=None if user is None else user.uid,
                        group=None if user is None else user.gid,
                        extra_groups=None if user is None else [user.gid],
                    )
                )

    def _check_users(self) -> None:
        for number, user in enumerate(self._users):
            assert user.poll() is None, self._cluster.log(f"user{number}.log")

    def _end_users(self) -> None:
        self._stop_file.touch()
        for number, user in enumerate(self._users):
            code = user.wait(DRAIN_TIMEOUT_S)
            assert code == 0, self._cluster.log(f"user{number}.log")

    # --- faults ---

    def _do(self, fault: str) -> None:
        actions: dict[str, Callable[[], None]] = {
            "head": self._kill_head,
            "node": self._kill_node,
            "pause": self._pause_something,
            "supervisor": self._kill_supervisor,
            "launcher": self._kill_launcher,
            "twin": lambda: self._twins.appear(self._random.choice(NODES), self._random),
            "restore": self._restore,
            "worst": lambda: self.latencies.measure(self._random),
            "disk": self._fill_a_disk,
        }
        actions[fault]()

    def _kill_head(self) -> None:
        """Kill the head, at times right upon an answer, at times again while it is starting."""
        if self._random.random() < 0.5:
            self._wait_for_answer()
        self._cluster.kill_head()
        if self._random.random() < 0.25:
            self._cluster.start_head(wait=False)
            time.sleep(self._random.uniform(0, 0.4))
            self._cluster.kill_head()
        self._cluster.start_head()

    def _wait_for_answer(self) -> None:
        """Return at the very moment a user has been told an id: now it must be durable."""
        before = self._acks.stat().st_size
        for _ in attempts(KILL_PATIENCE_S, interval_s=0.0):
            if self._acks.stat().st_size > before:
                return

    def _kill_node(self) -> None:
        name = self._random.choice(NODES)
        self._cluster.kill_node(name)
        time.sleep(self._random.uniform(0, 0.3))
        self._start_node(name)

    def _start_node(self, name: str) -> None:
        gpus = chaos_fair.NODE_GPUS if self._is_fair else 0
        self._cluster.start_node(name, cpus=NODE_CPUS, gpus=gpus, wait=False)

    def _pause_something(self) -> None:
        processes = [self._cluster.head_process, *map(self._cluster.node_process, NODES)]
        process = self._random.choice(processes)
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0, 0.5))
        process.send_signal(signal.SIGCONT)

    def _kill_supervisor(self) -> None:
        """Kill a supervisor over a job, as soon as there is one that can be found."""
        for _ in attempts(KILL_PATIENCE_S):
            running = [
                path
                for name in NODES
                for path in records.running(self._cluster.node_dir(name) / "attempts")
            ]
            if running and kill_supervisor(self._random.choice(sorted(running))):
                self.happened["supervisor killed"] += 1
                return

    def _kill_launcher(self) -> None:
        if kill_launcher(self._cluster, self._random.choice(NODES)):
            self.happened["launcher killed"] += 1

    def _fill_a_disk(self) -> None:
        places = [self._cluster.state_dir, *map(self._cluster.node_dir, NODES)]
        fill_for_a_moment(self._random.choice(places), self._random)

    def _restore(self) -> None:
        """Restore an old state once every job that users were told of has reached a node.

        What no node has seen is lost with the state, which nobody can mend. So users are stopped
        with the commands that they run, and the head takes in what these have sent already.
        """
        self._signal_users(signal.SIGSTOP)
        try:
            for _ in range(2):
                wait_until(self._is_known_to_nodes, REST_TIMEOUT_S, what="nodes to know all jobs")
                time.sleep(SENT_S)
            wait_until(self._is_known_to_nodes, REST_TIMEOUT_S, what="nodes to know all jobs")
            restore_snapshot(self._cluster, snapshot=self._snapshot, nodes=NODES)
            take_snapshot(self._cluster, self._snapshot)
        finally:
            self._signal_users(signal.SIGCONT)

    def _signal_users(self, number: int) -> None:
        self._check_users()
        for user in self._users:
            user.send_signal(number)
            for command in psutil.Process(user.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    command.send_signal(number)

    def _is_known_to_nodes(self) -> bool:
        with contextlib.suppress(HeadUnreachableError, TryAgainError):
            return all(row.started_s is not None for row in self._cluster.head.jobs().jobs)
        return False

    # --- the end ---

    def _drain(self) -> None:
        for name in NODES:
            self._cluster.wait_for_node(name)

        def is_over() -> bool:
            try:
                return not self._cluster.head.jobs().jobs
            except (HeadUnreachableError, TryAgainError):
                return False

        wait_until(is_over, DRAIN_TIMEOUT_S, what="all jobs to be over")

    def _unclear(self) -> list[str]:
        """Return keys that got two ids and ids that got two keys."""
        pairs = [tuple(line.split()) for line in self._acks.read_text().splitlines()]
        keys = Counter(key for _, key in pairs)
        return [f"key {key} was answered {n} times" for key, n in keys.items() if n > 1]
