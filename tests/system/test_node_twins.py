"""Two gnodes of one name: a job runs once, the second is refused, rows and logs stay bounded."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gsched.protocol import actions as a
from gsched.protocol import api, node_rows, submissions
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.processes import PATIENCE_S, attempts

BOOT = "GSCHED_TEST_BOOT_ID"
MACHINE = "GSCHED_TEST_MACHINE"


class Twin:
    """Another gnode with the name of a cluster's node, in a state directory of its own."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self.state_dir = cluster.directory / "twin"
        self.log = cluster.directory / "twin.log"
        self.process: subprocess.Popen[bytes] | None = None

    def copy(self) -> None:
        """Give it a copy of the node's state directory."""
        ignored = shutil.ignore_patterns("*.sock")
        shutil.copytree(self._cluster.node_dir(self._name), self.state_dir, ignore=ignored)

    def start(self, env: dict[str, str] | None = None) -> None:
        """Start it; if its state is not copied, it has the node's certificate alone."""
        if not self.state_dir.exists():
            shutil.copytree(self._cluster.node_dir(self._name) / "pki", self.state_dir / "pki")
        text = (self._cluster.directory / f"{self._name}.toml").read_text()
        config = self._cluster.directory / "twin.toml"
        config.write_text(
            text.replace(str(self._cluster.node_dir(self._name)), str(self.state_dir))
        )
        with open(self.log, "ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gnode.main", "--config", str(config)],
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def said(self, words: str) -> bool:
        """Return whether its log has these words."""
        return self.log.exists() and words in self.log.read_text(errors="replace")

    def wait_to_say(self, words: str) -> None:
        """Wait until its log has these words."""
        wait_until(lambda: self.said(words), what=f"the twin to say {words!r}")

    def stop(self) -> None:
        """End it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)


@pytest.fixture
def twin(cluster: Cluster) -> Iterator[Twin]:
    made = Twin(cluster, "n1")
    yield made
    made.stop()


def submit(cluster: Cluster, script: str) -> int:
    job = submissions.SubmitJob(
        key=os.urandom(8).hex(),
        name="x",
        workdir=str(cluster.jobs),
        launch="script",
        script=f"#!/bin/sh\n{script}\n",
        rerunnable=True,
    )
    (result,) = cluster.head.submit([job]).results
    assert result.id is not None, result
    return result.id


def submit_long(cluster: Cluster) -> int:
    """Return a job that runs, and has said so in ``runs``."""
    job = submit(cluster, f"echo start >> {cluster.jobs}/runs; exec sleep 600")
    runs = cluster.jobs / "runs"
    wait_until(lambda: runs.exists() and cluster.head.job(job).row.state == "running")
    return job


def registrations(cluster: Cluster) -> int:
    """Return how many rows there are of registrations."""
    with sqlite3.connect(f"file:{cluster.state_dir}/gsched.db?mode=ro", uri=True) as database:
        (count,) = database.execute(
            "SELECT count(*) FROM events WHERE kind = 'NodeRegistered'"
        ).fetchone()
    return int(count)


def end(cluster: Cluster, job: int) -> None:
    cluster.head.act(a.DeleteJob(ids=(str(job),), grace_s=0.0))
    wait_until(lambda: cluster.head.job(job).row.state == "done", what="the job's end")


def row(cluster: Cluster) -> node_rows.NodeRow:
    (found,) = cluster.head.nodes().nodes
    return found


def watch(cluster: Cluster, seconds: float) -> None:
    """Let some time pass in which twins could do harm."""
    for _ in attempts(seconds, 0.2):
        cluster.head.nodes()


def test_two_machines_of_one_name_do_not_displace_each_other(cluster: Cluster, twin: Twin) -> None:
    """The second one has another identity: it is told so, and harms neither job nor log."""
    cluster.start_head()
    cluster.start_node("n1")
    job = submit_long(cluster)

    twin.start()
    twin.wait_to_say("another gnode")
    watch(cluster, 5.0)

    assert registrations(cluster) == 1
    assert cluster.head.job(job).row.state == "running"
    assert (cluster.jobs / "runs").read_text() == "start\n"
    assert twin.said("gnodes replace n1")
    assert cluster.log("head.log").count("is refused") == 1
    assert "another gnode" in row(cluster).refused
    assert cluster.log("n1.log").count("WARNING") == 0
    end(cluster, job)


def test_a_twin_is_not_taken_while_the_first_is_silent(cluster: Cluster, twin: Twin) -> None:
    """A cloned disk on another machine: another boot id, which proves nothing about the first."""
    cluster.head_settings = {"node_timeout_s": 2.0}
    cluster.start_head()
    cluster.start_node("n1", env={BOOT: "one", MACHINE: "one"})
    job = submit_long(cluster)
    os.killpg(cluster.node_process("n1").pid, signal.SIGSTOP)
    cluster.wait_for_node("n1", "unreachable")

    twin.start({BOOT: "two", MACHINE: "two"})
    twin.wait_to_say("refuse")
    watch(cluster, 3.0)

    assert row(cluster).state == "unreachable"
    assert cluster.head.job(job).row.state == "running"
    os.killpg(cluster.node_process("n1").pid, signal.SIGCONT)
    cluster.wait_for_node("n1")
    assert (cluster.jobs / "runs").read_text() == "start\n"
    assert len(cluster.head.job(job).attempts) == 1
    end(cluster, job)


def test_a_copied_state_directory_is_refused_on_the_same_machine(
    cluster: Cluster, twin: Twin
) -> None:
    cluster.start_head()
    cluster.start_node("n1")

    twin.copy()
    twin.start()
    assert twin.process is not None

    assert twin.process.wait(PATIENCE_S) == 78
    assert twin.said("is a copy of another node's")
    assert registrations(cluster) == 1


def clone(twin: Twin) -> None:
    """Make the copy one of the whole disk, where files have the same numbers as before."""
    path = twin.state_dir / "identity.json"
    path.write_text(re.sub(r'"inode":\d+', f'"inode":{path.stat().st_ino}', path.read_text()))


@pytest.mark.parametrize("machine", ["one", "two"])
def test_a_cloned_disk_is_refused_while_the_first_one_answers(
    cluster: Cluster, twin: Twin, machine: str
) -> None:
    """Also where the two machines cannot be told apart: the first one is asked, and answers."""
    cluster.start_head()
    cluster.start_node("n1", env={MACHINE: "one", BOOT: "one"})
    twin.copy()
    clone(twin)
    job = submit_long(cluster)

    twin.start({MACHINE: machine, BOOT: machine})
    twin.wait_to_say("is connected, and answers" if machine == "one" else "is another machine")
    watch(cluster, 3.0)

    assert registrations(cluster) == 1
    assert cluster.head.job(job).row.state == "running"
    assert row(cluster).state == "up"
    assert (cluster.jobs / "runs").read_text() == "start\n"
    twin.stop()
    end(cluster, job)


def test_a_wiped_state_directory_starts_nothing_twice_and_is_replaced(cluster: Cluster) -> None:
    """The whole way of an operator: refused, told why, dead confirmed, replaced, up."""
    cluster.start_head()
    cluster.start_node("n1", env={BOOT: "one"})
    job = submit_long(cluster)
    cluster.kill_node("n1")
    cluster.wait_for_node("n1", "unreachable")
    cluster.node_dir("n1").rename(cluster.directory / "wiped")

    cluster.start_node("n1", env={BOOT: "two"}, wait=False)
    wait_until(lambda: "gnodes replace n1" in cluster.log("n1.log"), what="the refusal")
    assert cluster.head.job(job).row.state == "running"
    (refused,) = act(cluster, "replace")
    assert refused.error is not None
    assert refused.error.hint.endswith("gnodes confirm-dead n1")

    act(cluster, "confirm-dead")
    (replaced,) = act(cluster, "replace")
    assert replaced.error is None
    cluster.kill_node("n1")
    cluster.start_node("n1", env={BOOT: "two"})
    runs = cluster.jobs / "runs"
    wait_until(lambda: runs.read_text() == "start\nstart\n", what="the job's second start")
    end(cluster, job)


def test_a_removed_node_is_gone_after_a_restart_of_the_head_too(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    (refused,) = act(cluster, "remove")
    assert refused.error is not None
    cluster.stop_node("n1")
    cluster.wait_for_node("n1", "unreachable")

    (removed,) = act(cluster, "remove")

    assert removed.error is None
    assert cluster.head.nodes().nodes == ()
    cluster.kill_head()
    cluster.start_head()
    assert cluster.head.nodes().nodes == ()
    cluster.start_node("n1")


def act(cluster: Cluster, verb: str) -> tuple[api.ActionResult, ...]:
    return cluster.head.node_action(a.NODE_ACTIONS[verb](nodes=("n1",))).results
