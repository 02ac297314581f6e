"""Leases with real daemons: a job ends on a node that reaches no head, then starts elsewhere."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gnode.supervisor import kernel, lease
from gsched.client import new_job
from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol.node import Exited, Renew
from tests.support.cluster import Cluster, wait_until
from tests.support.disks import fill, small_disk
from tests.support.gnode_world import GnodeWorld, lives, wait_until_gone
from tests.support.processes import attempts

#: Shorter than a head gives; gnode keeps any. A renewal is requested each sixth of it.
LEASE_S = 3.0
#: Long enough for a loaded machine to renew it.
LONG_S = 15.0


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path / "w", process_marker)
    yield made
    print(made.log())
    made.stop()


def started(world: GnodeWorld, job: int = 1, *, lease_s: float = LEASE_S) -> int:
    """Start a job that never ends by itself; return its process."""
    world.launch(job, "trap 'exit 0' TERM; while :; do sleep 0.05; done", lease_s=lease_s)
    return world.head.wait_for_start(job).pid


def launcher_of(state: Path) -> int:
    return int(msgspec.json.decode((state / "launcher.json").read_bytes())["pid"])


def wait_until_past(at_s: float) -> None:
    """Return once CLOCK_BOOTTIME is past a moment."""
    for _ in attempts(60.0):
        if kernel.boottime_s() > at_s:
            return
    raise AssertionError("the clock stands still")


def expired(world: GnodeWorld, job: int = 1) -> Exited:
    """Return the report of an attempt that ended at its lease."""
    exited = world.head.wait_for_exit(job)
    assert exited.record.stop_reason is StopReason.LEASE
    assert exited.record.kind is OutcomeKind.NODE_LOST
    assert exited.record.exit_code is None  # it took TERM well, but was not done
    return exited


def test_a_job_ends_when_its_lease_is_not_renewed_any_more(world: GnodeWorld) -> None:
    """The connection is there all the time: only answers to renewals count."""
    world.start()
    pid = started(world)
    other = started(world, 2, lease_s=0.0)
    world.head.renews = False

    exited = expired(world)

    wait_until_gone(pid)
    assert exited.record.message.startswith("the node could not reach the head for 3 s")
    assert lives(other)
    assert world.head.connections == 1


def test_a_job_runs_on_while_its_lease_is_renewed(world: GnodeWorld) -> None:
    world.start()
    pid = started(world, lease_s=LONG_S)
    begun_s = kernel.boottime_s()

    wait_until_past(begun_s + LONG_S + 1.0)

    assert lives(pid), world.log()
    renewed_s = lease.read(str(world.state / "attempts" / "1.1"))
    assert renewed_s is not None
    assert renewed_s > begun_s


@pytest.mark.parametrize("victims", ["gnode", "gnode and launcher", "gnode and supervisor"])
def test_a_job_ends_at_its_lease_although_daemons_are_dead(world: GnodeWorld, victims: str) -> None:
    world.start()
    pid = started(world)
    supervisor = world.supervisor(1).pid
    world.kill()
    if victims == "gnode and launcher":
        os.kill(launcher_of(world.state), signal.SIGKILL)
    elif victims == "gnode and supervisor":
        os.kill(supervisor, signal.SIGKILL)

    wait_until_gone(pid)
    world.start()

    expired(world)


def test_a_job_ends_at_its_lease_while_gnode_is_stopped(world: GnodeWorld) -> None:
    world.start()
    pid = started(world)
    os.kill(world.process.pid, signal.SIGSTOP)

    wait_until_gone(pid)
    os.kill(world.process.pid, signal.SIGCONT)

    expired(world)


def test_gnode_kills_a_job_whose_supervisor_is_stopped(world: GnodeWorld) -> None:
    world.start()
    pid = started(world)
    os.kill(world.supervisor(1).pid, signal.SIGSTOP)
    world.head.renews = False

    wait_until_gone(pid, 60.0)

    lost = {OutcomeKind.NODE_LOST, OutcomeKind.SUPERVISOR_LOST}  # as the launcher comes to it
    assert world.head.wait_for_exit(1).record.kind in lost


def test_what_was_accepted_before_gnode_died_does_not_start_after_its_lease(
    world: GnodeWorld,
) -> None:
    """The head may have started it elsewhere, and a fresh renewal does not change that."""
    world.start({"GSCHED_FAIL": "node.launch.after_accepted:kill"})
    world.launch(1, f"touch {world.work}/ran", lease_s=LEASE_S)
    assert world.wait_for_death() == -signal.SIGKILL
    accepted_s = lease.read(str(world.state / "attempts" / "1.1"))
    assert accepted_s is not None
    wait_until_past(accepted_s + LEASE_S)

    world.start()

    assert world.head.wait_for_exit(1).record.stop_reason is StopReason.LEASE
    assert not (world.work / "ran").exists()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_does_not_keep_a_node_from_renewing(
    tmp_path: Path, process_marker: str
) -> None:
    with small_disk(tmp_path / "n1", "4m"):
        world = GnodeWorld(tmp_path, process_marker)
        world.settings |= {"cgroup": "none", "least_spool": "1mb"}
        try:
            world.start()
            pid = started(world, lease_s=LONG_S)
            fill(world.state)
            full_s = kernel.boottime_s()
            wait_until_past(full_s + LONG_S + 1.0)

            assert lives(pid), world.log()
            renewed_s = lease.read(str(world.state / "attempts" / "1.1"))
            assert renewed_s is not None
            assert renewed_s > full_s
            assert len(world.head.wait_for(Renew)) > 1
        finally:
            world.stop()


@pytest.mark.timeout(300)
def test_a_job_of_a_node_that_never_returns_starts_elsewhere_and_one_without_a_lease_stays(
    cluster: Cluster,
) -> None:
    """Its two attempts do not overlap."""
    cluster.start_head()
    cluster.start_node("n1")
    story = cluster.jobs / "story"
    script = (
        f"i=0\nwhile [ $i -lt 20 ] || [ $GSCHED_RESTART_COUNT = 0 ]; do i=$((i+1))\n"
        f"echo $GSCHED_RESTART_COUNT >> {story}; sleep 0.1; done\n"
    )
    workdir = str(cluster.jobs)
    jobs = [
        new_job(name="a", workdir=workdir, script=script, lease_s=30.0, grace_s=0.0),
        new_job(name="b", workdir=workdir, script="sleep 1000\n", lease_s=0.0),
    ]
    leased, plain = (result.id for result in cluster.head.submit(jobs).results)
    wait_until(lambda: cluster.head.job(plain).row.letter == "R", what="the other job")
    wait_until(story.exists, what="the first attempt")
    cluster.start_node("n2")

    cluster.kill_node("n1")
    os.kill(launcher_of(cluster.node_dir("n1")), signal.SIGKILL)
    cluster.wait_for_node("n1", "unreachable")
    wait_until(
        lambda: "the job is requeued at" in cluster.head.job(leased).row.reason,
        what="the reason",
    )
    (done,) = cluster.head.wait([leased], timeout_s=200.0)

    assert done.row.outcome is not None
    assert done.row.outcome.exit_status == 0
    assert done.row.nodes == ("n2",)
    first = done.attempts[0].outcome
    assert first is not None
    assert "lease of 00:00:30 has expired" in first.message
    lines = story.read_text().split()
    assert lines == sorted(lines)
    assert set(lines) == {"0", "1"}
    stays = cluster.head.job(plain).row
    assert (stays.letter, stays.nodes) == ("R", ("n1",))
    assert "gnodes confirm-dead n1" in stays.reason
