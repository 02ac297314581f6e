"""A process on a node's GPU that belongs to no job: seen, named, avoided, gone. By a fake NVML."""

import json
import os
import pwd
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.client import new_job
from gsched.head_calls import error_from
from gsched.model.gpu_outside import GpuUse
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import run_command
from tests.support.nvml_machine import build_nvml

pytestmark = pytest.mark.timeout(180)

GIB = 1 << 30
NOBODY = 65534


class Gpus:
    """A node with two GPUs, and the processes that its driver names.

    Args:
        tables: further tables of the head's configuration.
    """

    def __init__(self, directory: Path, library: Path, tables: str = "") -> None:
        self.cluster = Cluster(directory / "c", f"outside-{uuid.uuid4().hex}")
        self.library = library
        self._list = directory / "processes"
        self._rows: dict[int, str] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._use = directory / "utilisation"
        self.work(0, 0)
        self.cluster.queues = tables
        self.cluster.start_head()

    def work(self, *percents: int) -> None:
        """Let the GPUs be so busy, percent."""
        new = self._use.with_suffix(".new")
        new.write_text(" ".join(map(str, percents)))
        new.rename(self._use)

    def start(self, tables: str = "", **settings: object) -> None:
        """Start the node; ``settings`` are of ``[outside_gpu_use]``, ``tables`` others."""
        self.put({})
        keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        self.cluster.node_tables = f"[outside_gpu_use]\n{keys}{tables}"
        env = {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML_GPUS": "2",
            "FAKE_NVML_PROCESSES": str(self._list),
            "FAKE_NVML_UTILISATION": str(self._use),
        }
        self.cluster.start_node("n1", cpus=4, env=env, sample_s=0.2)

    def put(self, rows: dict[int, int]) -> None:
        """Let these processes be on the GPUs: the index of the GPU by number of the process."""
        text = "".join(f"{index} {pid} {GIB}\n" for pid, index in rows.items())
        new = self._list.with_suffix(".new")
        new.write_text(text)
        new.rename(self._list)

    def process(self, *words: str, user: int | None = None) -> int:
        """Start a process that belongs to no job."""
        made = subprocess.Popen(words or ["sleep", "600"], start_new_session=True, user=user)
        self._started.append(made)
        return made.pid

    def status(self, pid: int) -> int | None:
        """Return how a process that the test has started ended, None if it runs."""
        return next(each for each in self._started if each.pid == pid).poll()

    @property
    def use(self) -> GpuUse:
        (row,) = self.cluster.head.nodes().nodes
        return row.gpu_use or GpuUse()

    def submit(self, script: str, gpus: int = 1) -> int:
        job = new_job(
            name="gpu",
            workdir=str(self.cluster.jobs),
            script=f"#!/bin/sh\n{script}\n",
            resources=(f"nodes=1:gpus={gpus}",),
            grace_s=0.5,
        )
        result = self.cluster.head.submit([job]).results[0]
        if result.error is not None:
            raise error_from(result.error)
        return result.id

    def state(self, job: int) -> str:
        return self.cluster.head.job(job).row.state

    def process_of(self, job: int) -> int:
        """Return the process of a running job on the first of its nodes."""

        def pid() -> int:
            attempts = self.cluster.head.job(job).attempts
            return attempts[-1].parts[0].pid if attempts else 0

        wait_until(pid, what="the job's process")
        return pid()

    def gpus_of(self, job: int) -> tuple[int, ...]:
        """Return the GPUs that a running job has, by index."""
        attempt = self.cluster.head.job(job).attempts[-1]
        return tuple(index for part in attempt.parts for index in part.gpu_indices)

    def stop(self) -> None:
        for each in self._started:
            each.kill()
            each.wait()
        self.cluster.stop()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(tmp_path: Path, library: Path) -> Iterator[Gpus]:
    made = Gpus(tmp_path, library)
    yield made
    made.stop()


def test_the_life_of_a_process_outside(gpus: Gpus) -> None:
    gpus.start()
    pid = gpus.process()
    began_s = time.time()
    gpus.put({pid: 0})
    wait_until(lambda: gpus.use.outside, what="the process to be seen")

    (row,) = gpus.use.outside
    assert (row.index, row.pid, row.program, row.memory_bytes) == (0, pid, "sleep", GIB)
    assert began_s - 1 <= row.since_s <= time.time()
    assert row.user == run_user()
    shown = run_command("gnodes", head=str(gpus.cluster.socket)).stdout
    assert "\t1/2\t0:outside\t" in shown
    assert f"GPU 0: sleep of {row.user} (pid {pid}) is in no job" in shown
    details = run_command("gnodes", "n1", head=str(gpus.cluster.socket)).stdout
    assert f"gpu_0_outside = sleep of {row.user}, pid {pid}, 1gb, since " in details

    first = gpus.submit("sleep 600")
    second = gpus.submit("sleep 600")
    wait_until(lambda: gpus.state(first) == "running", what="the job on the other GPU")
    assert gpus.gpus_of(first) == (1,)
    reason = f"GPU 0 of n1 is used by sleep of {row.user} (pid {pid}) outside of all jobs"
    wait_until(lambda: reason in gpus.cluster.head.job(second).row.reason, what="its reason")

    gpus.put({})
    wait_until(lambda: gpus.state(second) == "running", what="the start of the job")
    assert gpus.gpus_of(second) == (0,)
    assert not gpus.use.outside


def test_processes_of_jobs_are_not_outside(gpus: Gpus) -> None:
    """Also those in a session of their own; and what ends at once is not either."""
    gpus.start()
    job = gpus.submit("setsid sleep 600 & echo $! > pid; wait")
    path = gpus.cluster.jobs / "pid"
    wait_until(lambda: path.exists() and path.read_text(), what="the job's process")
    gpus.put({int(path.read_text()): 0})
    time.sleep(2.0)

    assert not gpus.use.outside
    assert gpus.gpus_of(job) == (0,)


def test_a_head_that_is_restarted_starts_nothing_there(gpus: Gpus) -> None:
    gpus.start()
    pid = gpus.process()
    gpus.put({pid: 0, gpus.process(): 1})
    wait_until(lambda: len(gpus.use.outside) == 2, what="the processes to be seen")
    gpus.cluster.kill_head()
    gpus.cluster.start_head()
    job = gpus.submit("true")
    gpus.cluster.wait_for_node("n1")
    time.sleep(2.0)

    assert gpus.state(job) == "queued"
    gpus.put({pid: 0})
    wait_until(lambda: gpus.state(job) == "done", what="the job on the free GPU")


def test_by_configuration_a_warning_only(gpus: Gpus) -> None:
    gpus.start(action="warn")
    gpus.put({gpus.process(): 0})
    wait_until(lambda: gpus.use.outside, what="the process to be seen")
    job = gpus.submit("sleep 600", gpus=2)
    wait_until(lambda: gpus.state(job) == "running", what="the job on both GPUs")

    ignored = gpus.process()
    gpus.cluster.kill_node("n1")
    gpus.start(action="avoid", ignored=["sleep"])
    gpus.put({ignored: 1})
    time.sleep(2.0)
    assert not gpus.use.outside


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_a_user_cannot_take_the_name_of_a_program_that_is_ignored(gpus: Gpus) -> None:
    gpus.start(ignored=["sleep"])
    script = "printf '{}' > /proc/$$/comm; while :; do sleep 1; done"
    named = gpus.process("sh", "-c", script.format("sleep"), user=NOBODY)
    odd = gpus.process("sh", "-c", script.format("two\\nlines"), user=NOBODY)
    gpus.put({named: 0, odd: 0, gpus.process(user=NOBODY): 1})
    wait_until(lambda: gpus.use.outside, what="the processes to be seen")

    rows = {(row.pid, row.program) for row in gpus.use.outside}
    assert rows == {(named, "sleep"), (odd, "two?lines")}


def test_by_configuration_it_is_ended_after_a_grace(gpus: Gpus) -> None:
    gpus.start(action="end", grace_s=2.0)
    pid = gpus.process()
    gpus.put({pid: 0})
    wait_until(lambda: gpus.use.outside, what="the process to be seen")
    (row,) = gpus.use.outside
    assert row.ends_s == row.since_s + 2.0
    assert gpus.status(pid) is None
    wait_until(lambda: gpus.status(pid) is not None, what="its end")

    assert gpus.status(pid) == -15
    assert f"sent SIGTERM to process {pid}" in gpus.cluster.log("n1.log")


def run_user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name
