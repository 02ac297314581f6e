"""Users submit jobs that share GPUs, while everything that serves them is killed at random."""

import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from gnode.gpushare.addresses import CONTROL_SOCKET
from gnode.gpushare.interception import FOLDER
from gsched.client import HeadClient, new_job
from gsched.errors import GschedError, HeadUnreachableError, TryAgainError
from gsched.model.ids import read_job_id
from gsched.model.states import OutcomeKind
from gsched.unix_address import address_of
from gschedd.core.state import facts as f
from tests.support import records
from tests.support.chaos_faults import kill_supervisor
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import run_command
from tests.support.gpu_device import Device
from tests.support.judge import Judge, facts_of, verdict
from tests.support.processes import attempts
from tests.support.share_watch import GpuKey, Watch, book_problems

NODES: Final = ("n1", "n2")  # let jobs share their GPUs
PLAIN_NODE: Final = "n3"  # does not
ALL_NODES: Final = (*NODES, PLAIN_NODE)
GPUS: Final = 2
CPUS: Final = 16
#: Kinds of faults.
FAULTS: Final = ("head", "gnode", "tokend", "holder", "supervisor", "both", "freeze", "migrate")
UNFINISHED_MAX: Final = 14
QUIET_S_MAX: Final = 1.6  # between two faults
LOOKS_FOR_WAITERS: Final = 30
ANSWER_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 4 << 20
PATIENCE_S: Final = 3.0  # until there is a victim of a kind
DRAIN_TIMEOUT_S: Final = 180.0
DRAIN_MAX_S: Final = 0.5  # drain_max_s of [gpu_share], by default
OVERLAPS_OF_A_FREEZE: Final = 4
SLOW_PART: Final = 0.1  # of all drains
DRAINS_MIN: Final = 50
USR1: Final = int(signal.SIGUSR1)
KILLED: Final = 128 + int(signal.SIGKILL)  # what a shell ends with whose program was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of jobs.

    Attributes:
        share: for ``--gpu-share``; empty: one whole GPU.
        program: options of the program.
        code: with which it ends when nothing happens to it.
    """

    share: str = ""
    high: bool = False
    program: str = ""
    code: int = 0

    @property
    def resources(self) -> str:
        """Return the term for ``-l``."""
        if not self.share:
            return "gpus=1"
        return f"gpu_share={self.share.replace(',', ':')}:{'high' if self.high else 'low'}"


KINDS: Final[Mapping[str, Kind]] = {
    "high": Kind(share="40%,4gb", high=True, program="--steps 40"),
    "low": Kind(share="30%,3gb", program="--steps 40"),
    "small": Kind(share="10%", program="--steps 60"),
    "pair": Kind(share="20%,5gb", program="--steps 25 --pair"),
    "fails": Kind(share="30%", program="--steps 10 --code 3", code=3),
    "all": Kind(share="100%", program="--steps 15"),
    "whole": Kind(program="--steps 30"),
    "moves": Kind(program='--steps 300 --state "state.$GSCHED_JOB_NUMBER"'),
}
WEIGHTS: Final = (4, 4, 4, 2, 1, 1, 2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderKilled:
    """A process of the job that held the token was killed while others waited for it."""

    at_ns: int
    node: str
    gpu: int
    waiting: frozenset[str]


@dataclass(slots=True)
class ShareFaults:
    """One cluster, its users, and what happens to it.

    Attributes:
        cluster: of which nothing is started yet.
        seed: of everything that is random here; the operating system adds its own.
        drains: of each token daemon, by node and process: drains, and how many were overtaken.
        slack_s: added to the bound of a wait for a dead holder: for a machine with other load.
    """

    cluster: Cluster
    driver: Path
    libraries: Path
    seed: int
    faults: Sequence[str] = FAULTS
    slack_s: float = 2.0
    kills: Counter[str] = field(default_factory=Counter)
    checks: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[int, str] = field(default_factory=dict)
    released_s: list[float] = field(default_factory=list)
    disturbed: int = 0
    drains: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    watch: Watch = field(init=False)
    _chance: random.Random = field(init=False)
    _judge: Judge = field(init=False)
    _killed_holders: set[str] = field(default_factory=set)
    _waits: list[HolderKilled] = field(default_factory=list)
    _faults_at_ns: list[tuple[int, str]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _broken: list[Exception] = field(default_factory=list)
    _found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._judge = Judge(self.cluster.jobs)

    # ---- the run ----

    def run(self, seconds: float) -> list[str]:
        """Run, let the cluster come to rest, and return what is wrong."""
        self._set_up()
        user = threading.Thread(target=self._submit, name="share-user", daemon=True)
        try:
            self.watch.start()
            user.start()
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                time.sleep(self._chance.uniform(0.1, QUIET_S_MAX))
                self._count_drains()
                self._happen(self._chance.choice(self.faults))
                assert not self._broken, self._broken
        finally:
            self._over.set()
            user.join(DRAIN_TIMEOUT_S)
        try:
            self._drain()
            time.sleep(0.3)
            self.watch.look()
        finally:
            self.watch.stop()
        assert not self._broken, self._broken
        return self._verdict()

    def _set_up(self) -> None:
        cluster = self.cluster
        self.libraries.mkdir(exist_ok=True)
        cluster.cuda_driver = str(self.driver)
        devices: dict[GpuKey, Device] = {}
        journal = cluster.directory / "programs"
        journal.touch()
        for name in NODES:
            cluster.share_runtimes[name] = "interception"
            folder = cluster.node_dir(name) / FOLDER
            folder.mkdir(parents=True)
            (folder / "lib").symlink_to(self.libraries)
        for name in ALL_NODES:
            for index in range(GPUS):
                devices[name, index] = Device(cluster.directory / f"device.{name}.{index}")
        self.watch = Watch(devices, journal, cluster.state_dir / "gsched.db")
        for name, kind in KINDS.items():
            path = cluster.jobs / f"{name}.sh"
            path.write_text(self._script(kind, journal), encoding="ascii")
        cluster.start_head()
        for name in ALL_NODES:
            cluster.start_node(name, cpus=CPUS, gpus=GPUS, wait=False)
        for name in ALL_NODES:
            cluster.wait_for_node(name)

    def _script(self, kind: Kind, journal: Path) -> str:
        device = f"{self.cluster.directory}/device.$GSCHED_NODE.$CUDA_VISIBLE_DEVICES"
        program = f"{sys.executable} -m tests.support.share_program {journal} {kind.program}"
        lines = [
            f'export GSCHED_FAKE_STATE="{device}" PYTHONPATH="{ROOT}"',
            f'[ -n "$GSCHED_SHARE_SOCKET" ] || export LD_LIBRARY_PATH="{self.driver.parent}"',
            program,
            "code=$?",
        ]
        return self._judge.script("\n".join(lines), code="$code")

    # ---- users ----

    def _submit(self) -> None:
        """Submit by gsub and by the client in turn, as long as few jobs are unfinished."""
        chance = random.Random(self.seed + 1)
        head = HeadClient(str(self.cluster.socket), patience_s=0.2)
        number = 0
        try:
            while not self._over.is_set():
                with contextlib.suppress(HeadUnreachableError, TryAgainError):
                    if len(head.jobs().jobs) >= UNFINISHED_MAX:
                        self._over.wait(0.2)
                        continue
                number += 1
                (name,) = chance.choices(list(KINDS), WEIGHTS)
                submit = self._by_command if number % 3 == 0 else self._by_client
                told = submit(head, name, KINDS[name])
                if told is not None:
                    self.acknowledged[told] = name
        except (AssertionError, GschedError, OSError) as error:  # looked at after each fault
            self._broken.append(error)

    def _by_client(self, head: HeadClient, name: str, kind: Kind) -> int | None:
        job = new_job(
            name=name,
            workdir=str(self.cluster.jobs),
            script=(self.cluster.jobs / f"{name}.sh").read_text(encoding="ascii"),
            resources=(kind.resources,),
            grace_s=2.0,
            checkpoint_signal=USR1 if name == "moves" else 0,
        )
        for _ in attempts(DRAIN_TIMEOUT_S, 0.1):  # one key, so it is the same job
            with contextlib.suppress(HeadUnreachableError, TryAgainError):
                (result,) = head.submit([job]).results
                assert result.error is None, result.error
                return result.id
        raise AssertionError("no head answers")

    def _by_command(self, _head: HeadClient, name: str, kind: Kind) -> int | None:
        """Submit by gsub; without an id nobody was guaranteed anything."""
        options = ["--grace", "2", "-N", name]
        if kind.share:
            options += ["--gpu-share", kind.share, "--share-class", "high" if kind.high else "low"]
        else:
            options += ["-l", "gpus=1"]
        if name == "moves":
            options += ["--checkpoint-signal", "USR1"]
        done = run_command(
            "gsub", *options, f"{name}.sh", head=self.cluster.socket, cwd=self.cluster.jobs
        )
        assert done.status in {0, 69, 75}, done
        return read_job_id(done.stdout.strip()).number if done.status == 0 else None

    # ---- faults ----

    def _happen(self, fault: str) -> None:
        actions: dict[str, Callable[[], bool]] = {
            "head": self._kill_head,
            "gnode": lambda: self._kill_gnode(self._chance.choice(ALL_NODES)),
            "tokend": lambda: self._kill_tokend(self._a_node()),
            "holder": self._kill_holder,
            "supervisor": self._kill_supervisor,
            "both": self._kill_gnode_and_tokend,
            "freeze": self._freeze_holder,
            "migrate": self._migrate,
        }
        began_ns = time.monotonic_ns()
        if actions[fault]():
            self.kills[fault] += 1
            self._faults_at_ns.append((began_ns, fault))

    def _a_node(self) -> str:
        return self._chance.choice(NODES)

    def _kill_head(self) -> bool:
        self.cluster.kill_head()
        time.sleep(self._chance.uniform(0, 1.0))
        self.cluster.start_head()
        return True

    def _kill_gnode(self, name: str) -> bool:
        self.cluster.kill_node(name)
        time.sleep(self._chance.uniform(0, 0.5))
        self.cluster.start_node(name, cpus=CPUS, gpus=GPUS, wait=False)
        return True

    def _kill_tokend(self, name: str) -> bool:
        metrics = self.metrics(name)
        return bool(metrics) and kill_process(int(metrics["pid"]))

    def _kill_gnode_and_tokend(self) -> bool:
        """Kill both, so that nobody starts the token daemon again for a while."""
        name = self._a_node()
        metrics = self.metrics(name)
        if not metrics:
            return False
        self.cluster.kill_node(name)
        kill_process(int(metrics["pid"]))
        time.sleep(self._chance.uniform(0, 1.0))
        self.cluster.start_node(name, cpus=CPUS, gpus=GPUS, wait=False)
        return True

    def _kill_holder(self) -> bool:
        """Kill one for whom another job waits, if there is one within a while."""
        for look, (node, gpu, group, pids, waiting) in enumerate(self._holders()):
            if not waiting and look < LOOKS_FOR_WAITERS:
                continue
            self._killed_holders.add(group)
            at_ns = time.monotonic_ns()
            if not kill_process(self._chance.choice(pids)):
                continue
            # Processes of the same job that are left keep the token.
            if waiting and len(pids) == 1:
                self._waits.append(
                    HolderKilled(at_ns=at_ns, node=node, gpu=gpu, waiting=frozenset(waiting))
                )
            return True
        return False

    def _freeze_holder(self) -> bool:
        """Stop a holder for longer than others wait for it, and let it run on."""
        for _, _, _, pids, _ in self._holders():
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(pids[0])
                try:
                    signal.pidfd_send_signal(process, signal.SIGSTOP)
                    time.sleep(self._chance.uniform(0.1, 3 * DRAIN_MAX_S))
                    signal.pidfd_send_signal(process, signal.SIGCONT)
                finally:
                    os.close(process)
                return True
        return False

    def _holders(self) -> Iterator[tuple[str, int, str, list[int], set[str]]]:
        """Yield node, GPU, group and processes of a holder, and who waits; for a while."""
        for _ in attempts(PATIENCE_S):
            name = self._a_node()
            metrics = self.metrics(name)
            groups = cast("dict[str, Any]", metrics.get("groups", {}))
            for gpu, row in metrics.get("gpus", {}).items():
                group = row["holder"]
                if group in groups and groups[group]["pids"]:
                    others = {
                        other
                        for other, one in groups.items()
                        if one["gpu"] == gpu and one["waiting"] and other != group
                    }
                    yield name, int(gpu), group, groups[group]["pids"], others

    def _kill_supervisor(self) -> bool:
        for _ in attempts(PATIENCE_S):
            running = [
                path
                for name in ALL_NODES
                for path in records.running(self.cluster.node_dir(name) / "attempts")
            ]
            if running and kill_supervisor(self._chance.choice(sorted(running))):
                return True
        return False

    def _migrate(self) -> bool:
        """Ask for the migration of a job with a whole GPU; it may end before."""
        for _ in attempts(PATIENCE_S, 0.2):
            with contextlib.suppress(GschedError):
                rows = self.cluster.head.jobs(states=["running"]).jobs
                moving = [row.id for row in rows if row.name == "moves"]
                if moving:
                    job = str(self._chance.choice(moving))
                    ran = run_command("gmigrate", job, head=self.cluster.socket)
                    return ran.status == 0  # else no node has room, or it has ended
        return False

    def metrics(self, node: str) -> dict[str, Any]:
        """Return what the token daemon of a node says; empty: none answers."""
        path = self.cluster.node_dir(node) / FOLDER / CONTROL_SOCKET
        with (
            contextlib.suppress(OSError, ValueError),
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel,
            address_of(path) as address,
        ):
            channel.settimeout(ANSWER_S)
            channel.connect(address)
            channel.send(b'{"order": "metrics"}')
            return dict(json.loads(channel.recv(ANSWER_BYTES_MAX)))
        return {}

    # ---- the end ----

    def _drain(self) -> None:
        for name in ALL_NODES:
            self.cluster.wait_for_node(name)

        def is_over() -> bool:
            with contextlib.suppress(HeadUnreachableError, TryAgainError):
                return not self.cluster.head.jobs().jobs
            return False

        wait_until(is_over, DRAIN_TIMEOUT_S, what="all jobs to end")
        wait_until(self._is_told, PATIENCE_S * 5, what="token daemons to know no job")
        self._count_drains()

    def _is_told(self) -> bool:
        return not any(self.metrics(name).get("groups") for name in NODES)

    def _verdict(self) -> list[str]:
        database = self.cluster.state_dir / "gsched.db"
        watch = self.watch
        self._check("live processes, memory, tables at every look", list(watch.problems))
        self._check("the devices' logs: who launched at once", watch.log_problems())
        self._check("the devices' counters: memory of each process", watch.memory_problems())
        self._check("the head's facts: shares given at once", book_problems(database))
        self._check(
            "every acknowledged job ends once", verdict(self._judge, database, self.acknowledged)
        )
        self._check("outcomes", self._outcomes(database))
        self._check("waits for a dead holder", self._long_waits())
        self._check("jobs leave the GPU in time", self.slow_drains())
        self._check("all memory is free", self._left_memory())
        return self._found

    def _check(self, name: str, problems: Sequence[str] | Iterator[str]) -> None:
        found = list(problems)
        self.checks[name] = f"{len(found)} wrong" if found else "ok"
        self._found += [f"{name}: {problem}" for problem in found]

    def _outcomes(self, database: Path) -> Iterator[str]:
        last: dict[int, int] = {}
        for fact in facts_of(database):
            match fact:
                case f.AttemptAssigned() | f.AttemptRecovered():
                    last[fact.job] = fact.attempt
                case f.JobEnded():
                    name = self.acknowledged.get(fact.job)
                    if name is None:
                        continue  # its gsub was told nothing
                    right = {KINDS[name].code}
                    if f"{fact.job}.{last.get(fact.job)}" in self._killed_holders:
                        right.add(KILLED)
                    outcome = fact.outcome
                    if outcome.kind is not OutcomeKind.EXITED or outcome.exit_code not in right:
                        yield f"job {fact.job} ({name}) has {outcome}"
                case _:
                    pass

    def _long_waits(self) -> Iterator[str]:
        bound_s = DRAIN_MAX_S + self.slack_s
        for one in self._waits:
            next_ns = self.watch.next_launch_ns((one.node, one.gpu), one.at_ns, set(one.waiting))
            until_ns = next_ns or one.at_ns + int(bound_s * 1e9)
            if any(one.at_ns < at_ns <= until_ns for at_ns, _ in self._faults_at_ns):
                self.disturbed += 1  # something else was killed before the waiter could launch
                continue
            if next_ns is None:
                yield f"none of {sorted(one.waiting)} launched after the death of a holder"
                continue
            waited_s = (next_ns - one.at_ns) / 1e9
            self.released_s.append(waited_s)
            if waited_s > bound_s:
                yield f"{sorted(one.waiting)} waited {waited_s:.2f} s for a dead holder"

    def _count_drains(self) -> None:
        """Keep what each token daemon has counted, for it is lost when the daemon is killed."""
        for name in NODES:
            metrics = self.metrics(name)
            if metrics:
                rows = metrics["gpus"].values()
                counted = sum(row["drains"] for row in rows), sum(row["overlaps"] for row in rows)
                self.drains[name, metrics["pid"]] = counted

    def slow_drains(self) -> Iterator[str]:
        """A job is overtaken while it is frozen; others only where this machine is too slow."""
        drains, overlaps = self.drains_and_overlaps()
        allowed = OVERLAPS_OF_A_FREEZE * self.kills["freeze"] + SLOW_PART * drains
        if drains >= DRAINS_MIN and overlaps > allowed:
            yield f"{overlaps} of {drains} drains were overtaken: {allowed:.0f} may be"

    def drains_and_overlaps(self) -> tuple[int, int]:
        """Return how often jobs had to leave a GPU, and how often they did not in time."""
        counted = list(self.drains.values())
        return sum(one for one, _ in counted), sum(one for _, one in counted)

    def _left_memory(self) -> Iterator[str]:
        for gpu, device in self.watch.devices.items():
            for pid, size in device.used_by_process().items():
                if Path(f"/proc/{pid}").exists():
                    yield f"process {pid} has {size} bytes of {gpu}"


def kill_process(pid: int) -> bool:
    """Kill a process; return whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
