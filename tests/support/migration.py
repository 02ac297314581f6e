"""A real training on a real cluster that is moved while daemons, supervisors and ranks are killed.

The whole path: head, two node daemons, torchrun under supervisors, gsched.elastic. Whatever
happens, the training ends well with the weights of one that nobody disturbed, and no two of its
attempts ever live at once.
"""

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from gsched.client import new_job
from gsched.errors import GschedError
from gsched.protocol import actions as a
from gsched.protocol.job_rows import JobStory
from tests.support import records
from tests.support.cluster import Cluster, wait_until
from tests.support.elastic_runs import SCRIPT, Run, release
from tests.support.forks import ForkServer, training_server
from tests.support.processes import PATIENCE_S, environment_of
from tests.support.torch_python import TRAINING_PATH, torch_python

OPTIONS = ("--model=transformer", "--epochs=3", "--global-batch=8")  # 72 steps
HOLD_AT = 10  # the training waits there until the move has been requested
LATE_HOLD_AT = 60  # by then it has saved a checkpoint of its own
TIMEOUT_S = 240.0
PHASES = ("requested", "prepared", "checkpointed", "stopped", "placed", "starting", "done")
VICTIMS = ("source", "target", "supervisor", "rank")
#: A phase of the training's own: its next attempt is to flush what this one has published.
FLUSHING = "flushing"
#: Another one: it writes a copy of its state for processes that wait, and trains on.
COPYING = "copying"
PREPARED_VICTIMS = ("prepared-supervisor", "prepared-rank")
#: Steps of a move that are committed: asked for, checkpoint taken, left, first step.
HEAD_STEPS = 4


class Watch:
    """Looks again and again which attempts of a cluster's jobs have processes.

    One that is prepared does not count before its launch, which its node has written down.
    """

    def __init__(self, directory: Path) -> None:
        self._below = f"\0GSCHED_JOB_DIR={directory}".encode()
        self._directory = directory
        self._known: dict[int, tuple[int, int] | None] = {}
        self._gated: set[int] = set()
        self._older = frozenset(os.listdir("/proc"))  # none of its jobs' processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.overlaps: list[str] = []
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._over.wait(0.03):
            self._look()

    def _look(self) -> None:
        seen: dict[int, dict[int, psutil.Process]] = {}
        for name in os.listdir("/proc"):
            if name in self._older or not name.isdigit():
                continue
            key = self._key(int(name))
            if key is None or (int(name) in self._gated and not self._is_launched(key)):
                continue
            try:
                process = psutil.Process(int(name))
                if process.status() != psutil.STATUS_ZOMBIE:
                    seen.setdefault(key[0], {})[key[1]] = process
            except psutil.NoSuchProcess:
                continue
        for job, attempts in seen.items():
            if len(attempts) > 1:
                first = min(attempts)
                if attempts[first].is_running():  # still there after the newer one was seen
                    self.overlaps.append(f"job {job}: attempts {sorted(attempts)}")

    def _key(self, pid: int) -> tuple[int, int] | None:
        """Return the job and attempt that a process is of; a process keeps its environment."""
        if pid in self._known and self._known[pid] is not None:
            if os.path.exists(f"/proc/{pid}"):
                return self._known[pid]
            del self._known[pid]
            return None
        environment = environment_of(str(pid))
        if self._below not in environment:
            return None
        variables = dict(item.split(b"=", 1) for item in environment.split(b"\0") if b"=" in item)
        key = (int(variables[b"GSCHED_JOB_NUMBER"]), int(variables[b"GSCHED_ATTEMPT"]))
        self._known[pid] = key
        if variables.get(b"GSCHED_GATE", b"open") != b"open":
            self._gated.add(pid)
        return key

    def _is_launched(self, key: tuple[int, int]) -> bool:
        name = f"{key[0]}.{key[1]}"
        return any(self._directory.glob(f"*/attempts/{name}/launched.json"))


class Migration:
    """One training on two nodes, and its moves."""

    def __init__(self, cluster: Cluster, *, warm: bool = False) -> None:
        self.cluster = cluster
        self.warm = warm
        self.python = torch_python("sklearn")
        cluster.trains = training_server()
        cluster.queues = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'  # it fills n1 first
        self.directory = cluster.jobs
        self.number = ""
        self.watch = Watch(cluster.directory)

    def begin(
        self,
        *options: str,
        hold_at: int = HOLD_AT,
        head_env: dict[str, str] | None = None,
        job_env: Mapping[str, str] = MappingProxyType({}),
        nodes: Mapping[str, int] = MappingProxyType({"n1": 2, "n2": 2}),
        **changes: object,
    ) -> None:
        """Start the cluster, and the training on two GPUs of a node; it holds at a step.

        Args:
            options: further ones of the script.
            hold_at: the step.
            head_env: added to the head's environment.
            job_env: added to the job's.
            nodes: their names and numbers of GPUs.
            changes: of the job, as `new_job` has them.
        """
        command: tuple[str, ...] = (str(SCRIPT), str(self.directory), *OPTIONS, "--step-s=0.02")
        command += ("--ready",) if self.warm else ()
        self.start(
            *command,
            f"--hold-at={hold_at}",
            *options,
            head_env=head_env,
            job_env=job_env,
            nodes=nodes,
            **changes,
        )
        held = self.directory / f"held-{hold_at}"
        wait_until(held.exists, TIMEOUT_S, what=f"step {hold_at}")
        wait_until(lambda: self.story().progress, TIMEOUT_S, what="its first word")

    def start(
        self,
        *command: str,
        head_env: dict[str, str] | None = None,
        job_env: Mapping[str, str] = MappingProxyType({}),
        nodes: Mapping[str, int] = MappingProxyType({"n1": 2, "n2": 2}),
        **changes: object,
    ) -> None:
        """Start the cluster, and a script as a training, with its arguments; it has done a step."""
        self.cluster.start_head(env=head_env)
        for name, gpus in nodes.items():
            self.cluster.start_node(name, cpus=4, gpus=gpus)
        said: dict[str, Any] = {
            "resources": ("nodes=1:ppn=2:gpus=2",),
            "requeue_on": "node-failure",
            **changes,
        }
        job = new_job(
            name="train",
            workdir=str(self.directory),
            launch="torchrun",
            python=self.python,
            arguments=command,
            environment={
                "PYTHONPATH": TRAINING_PATH,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "PATH": os.environ["PATH"],
                "GSCHED_COPY_MIN_BYTES": "0",  # small states are copied, too
                **job_env,
            },
            movable=True,
            grace_s=20.0,
            join="oe",
            **said,
        )
        result = self.cluster.head.submit([job]).results[0]
        assert result.error is None, result.error
        self.number = str(result.id)
        wait_until(lambda: self.story().progress, TIMEOUT_S, what="its first word")

    def release(self, hold_at: int = HOLD_AT, *, when_asked: bool = True) -> None:
        """Let the training go on, by default when it has heard of the move."""
        release(self.directory, hold_at, when_asked=when_asked)

    def story(self) -> JobStory:
        """Return what the head knows of it."""
        return self.cluster.head.job(self.number)

    def ask(self, *nodes: str) -> None:
        """Ask for a move; a head that dies of it has asked or not."""
        request = a.MigrateJob(ids=(self.number,), nodes=nodes)
        result = self.cluster.head.act(request).results[0]
        assert result.error is None, result.error

    def ask_gpus(self, count: int) -> None:
        """Ask for another number of GPUs."""
        request = a.MigrateJob(ids=(self.number,), gpus=count)
        result = self.cluster.head.act(request).results[0]
        assert result.error is None, result.error

    def phase(self) -> str:
        """Return how far the move is: one of `PHASES`, or nothing."""
        try:
            story = self.story()
        except GschedError:
            return ""  # the head is away
        if story.row.state == "done":
            return "done"
        if story.move is None:
            return ""
        if story.move.phase == "placed" and any(
            each.attempt > 1 and each.state != "assigned" for each in story.attempts
        ):
            return "starting"
        return story.move.phase

    def wait_for_phase(self, phase: str) -> None:
        """Wait until a move is that far, or farther: some phases take a hundredth of a second."""
        rank = PHASES.index(phase)
        wait_until(
            lambda: (now := self.phase()) and PHASES.index(now) >= rank, TIMEOUT_S, what=phase
        )

    def wait_for_mark(self) -> None:
        """Wait until a checkpoint is published that is not known to be on the disk, or was."""
        checkpoints = self.directory / "gsched-checkpoints"
        wait_until(
            lambda: any(checkpoints.rglob("*.unflushed")) or self.phase() == "done",
            TIMEOUT_S,
            what="a mark of its flush",
        )

    def wait_for_copy(self) -> None:
        """Wait until the training copies its state, or is past that."""
        checkpoints = self.directory / "gsched-checkpoints"
        wait_until(
            lambda: any(checkpoints.rglob("unfinished-*")) or self.phase() == "done",
            TIMEOUT_S,
            what="a copy of its state",
        )

    def strike(self, victim: str) -> None:
        """Kill a part of it with SIGKILL; daemons come back at once."""
        if victim in {"source", "target"}:
            node = "n1" if victim == "source" else "n2"
            self.cluster.kill_node(node)
            self.cluster.start_node(node, cpus=4, gpus=2)
            return
        for pid in self._pids(victim):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return

    def _pids(self, victim: str) -> list[int]:
        """Return the supervisor of the present attempt, or its ranks; none if nothing runs.

        Of a victim that is ``prepared-supervisor`` or ``prepared-rank`` those of the next one.
        """
        story = self.story()
        found: list[int] = []
        prepared = victim.startswith("prepared-")
        victim = victim.removeprefix("prepared-")
        nodes = story.move.to if prepared and story.move is not None else story.row.nodes
        for node in nodes:
            key = f"{self.number}.{story.row.attempt + prepared}"
            info = records.started(self.cluster.node_dir(node) / "attempts" / key)
            if info is None:
                continue
            if victim == "supervisor":
                found.append(info["pid"])
                continue
            try:
                found += [child.pid for child in psutil.Process(info["job_pid"]).children()]
            except psutil.NoSuchProcess:
                continue
        return found

    def finish(self) -> dict[str, object]:
        """Wait for the end; return the training's result."""
        wait_until(lambda: self._state() == "done", TIMEOUT_S, what=f"the end of job {self.number}")
        self.watch.stop()
        row = self.story().row
        assert row.outcome is not None
        assert row.outcome.exit_code == 0, (row.outcome, self._output())
        assert self.watch.overlaps == []
        result: dict[str, object] = json.loads((self.directory / "result.json").read_text())
        return result

    def _state(self) -> str:
        try:
            return self.story().row.state
        except GschedError:
            return ""

    def _output(self) -> str:
        return "".join(
            path.read_text(errors="replace")[-3000:] for path in self.directory.glob("train.o*")
        )


def undisturbed(
    directory: Path, forks: ForkServer, *options: str, ranks: int = 2
) -> dict[str, object]:
    """Return the result of the same training without a move, and without a cluster."""
    run = Run(directory, *OPTIONS, *options, forks=forks)
    run.start(ranks)
    return run.finish()


def fault_at(cluster: Cluster, victim: str, phase: str, *, warm: bool = False) -> dict[str, object]:
    """Move a training, kill something when the move is that far; return the training's result."""
    migration = Migration(cluster, warm=warm)
    try:
        if phase == FLUSHING:  # only where there is an older checkpoint
            migration.begin("--step-s=0.05", hold_at=LATE_HOLD_AT, checkpoint_interval_s=1.0)
        elif phase == COPYING:
            slow = {"GSCHED_FAIL": "training.copy.before:sleep=1"}
            migration.begin(job_env=slow)
        else:
            migration.begin()
        migration.ask("n2")
        if phase == FLUSHING:
            migration.release(LATE_HOLD_AT)
            migration.wait_for_mark()
            migration.strike(victim)
        elif phase == COPYING:
            migration.release()
            migration.wait_for_copy()
            migration.strike(victim)
            migration.release(when_asked=False)  # it may begin anew, with no move
        elif phase in {"requested", "prepared"}:
            migration.wait_for_phase(phase)
            migration.strike(victim)
            migration.release(when_asked=False)  # it may have heard, and have died since
        else:
            migration.release()
            migration.wait_for_phase(phase)
            migration.strike(victim)
        return migration.finish()
    finally:
        migration.watch.stop()


def head_dies_at(
    cluster: Cluster, when: str, step: int, *, warm: bool = False
) -> dict[str, object]:
    """Move a training, kill the head at a step of the move; return the training's result."""
    migration = Migration(cluster, warm=warm)
    try:
        migration.begin(head_env={"GSCHED_FAIL": f"head.move.{when}:{step}:kill"})
        try:
            migration.ask("n2")
        except GschedError:
            assert step == 1, "only the first step is in the command"
        migration.release(when_asked=(when, step) != ("before_commit", 1))
        wait_until(
            lambda: cluster.head_process.poll() is not None, TIMEOUT_S, what="the head's death"
        )
        cluster.start_head()
        if step == 1 and when == "before_commit":
            assert migration.story().moves_requested == 0
        return migration.finish()
    finally:
        migration.watch.stop()
