"""A node's full disk ends nothing: outcomes are kept, orders arrive, and gnode starts on it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.states import OutcomeKind, StopReason
from gsched.protocol.node import Heartbeat, Register, StopAttempt
from tests.support.disks import fill, free, small_disk
from tests.support.gnode_world import GnodeWorld, wait_until_gone
from tests.support.processes import attempts

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small file system"),
]


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    """A node whose state directory is a file system of 4 MB."""
    with small_disk(tmp_path / "n1", "4m"):
        made = GnodeWorld(tmp_path, process_marker)
        made.settings |= {"cgroup": "none", "least_spool": "1mb"}
        yield made
        made.stop()


def gated(world: GnodeWorld, job: int, code: int) -> str:
    """Return a script that runs until `let_go`."""
    return f"while [ ! -e {world.work}/go{job} ]; do sleep 0.05; done; exit {code}"


def let_go(world: GnodeWorld, job: int) -> None:
    (world.work / f"go{job}").touch()


def test_outcomes_are_kept_and_reported_while_the_spool_is_full(world: GnodeWorld) -> None:
    world.start()
    for job in (1, 2):
        world.launch(job, gated(world, job, 40 + job))
        world.head.wait_for_start(job)
    fill(world.state)

    for job in (1, 2):
        let_go(world, job)
    codes = [world.head.wait_for_exit(job).record.exit_code for job in (1, 2)]

    assert codes == [41, 42]
    assert world.process.poll() is None, world.log()


def test_a_stop_ends_a_job_while_the_spool_is_full(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, "sleep 600")
    pid = world.head.wait_for_start(1).pid
    fill(world.state)

    world.head.send(StopAttempt(job=1, attempt=1, reason=StopReason.DELETE, grace_s=1.0))
    record = world.head.wait_for_exit(1).record

    assert record.stop_reason is StopReason.DELETE
    wait_until_gone(pid)
    assert world.process.poll() is None, world.log()


def test_a_node_says_that_it_takes_no_jobs_while_its_spool_is_nearly_full(
    world: GnodeWorld,
) -> None:
    world.start()
    fill(world.state)

    short = world.head.wait_for(Heartbeat, lambda beat: bool(beat.problem))[0]
    world.kill()
    world.start()
    registered = world.head.wait_for(Register, count=2)[-1].problem
    free(world.state)
    world.head.wait_for(Heartbeat, lambda beat: not beat.problem)

    assert short.problem == f"its spool {world.state} has less than 1mb left"
    assert registered == short.problem


def test_a_launch_on_a_full_spool_fails_in_words_and_leaves_nothing(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, "exit 1")
    world.head.wait_for_exit(1)
    fill(world.state)

    world.launch(2, "exit 2")
    record = world.head.wait_for_exit(2).record

    assert record.kind is OutcomeKind.LAUNCH_FAILED
    assert "No space left on device" in record.message
    assert not (world.state / "attempts" / "2.1").exists()
    free(world.state)
    world.launch(3, "exit 3")
    assert world.head.wait_for_exit(3).record.exit_code == 3


@pytest.mark.parametrize("also", ["gnode", "gnode and launcher"])
def test_gnode_starts_on_a_full_spool_and_works_when_space_returns(
    world: GnodeWorld, also: str
) -> None:
    world.start()
    world.launch(1, gated(world, 1, 41))
    world.launch(2, "exit 42")
    pid = world.head.wait_for_start(1).pid
    world.head.wait_for_exit(2)
    world.kill()
    if "launcher" in also:
        launcher = json.loads((world.state / "launcher.json").read_bytes())["pid"]
        os.kill(launcher, signal.SIGKILL)
        wait_until_gone(launcher)
    fill(world.state)

    world.start()
    world.head.wait_for_exit(2, count=2)
    let_go(world, 1)
    record = world.head.wait_for_exit(1).record
    free(world.state)
    world.launch(3, "exit 43")

    assert record.exit_code == 41
    wait_until_gone(pid)
    assert world.head.wait_for_exit(3).record.exit_code == 43
    assert "Traceback" not in world.log()


@pytest.mark.parametrize("size", ["3m"])
def test_a_job_that_fills_the_jobs_disk_ends_no_other_and_the_spool_has_space(
    world: GnodeWorld, size: str
) -> None:
    """The job's files go at its end, without a word from the head; then others can start."""
    with small_disk(world.directory / "tmp", size):
        world.start()
        world.launch(1, gated(world, 1, 41))
        world.head.wait_for_start(1)
        world.launch(2, f'cat /dev/zero > "$GSCHED_JOB_DIR/big"; {gated(world, 2, 7)}')
        wait_for_full(world.directory / "tmp")

        world.launch(3, "exit 43")
        refused = world.head.wait_for_exit(3).record
        let_go(world, 1)
        other = world.head.wait_for_exit(1).record
        let_go(world, 2)
        record = world.head.wait_for_exit(2).record
        for _ in attempts():
            if not os.listdir(world.scratch):
                break
        world.launch(4, "exit 44")
        again = world.head.wait_for_exit(4).record

        assert (other.exit_code, record.exit_code, again.exit_code) == (41, 7, 44)
        assert refused.kind is OutcomeKind.LAUNCH_FAILED
        assert "No space left on device" in refused.message
        assert not any(m.problem for m in world.head.received if isinstance(m, Heartbeat))
        assert world.terminate() == 0


def wait_for_full(directory: Path) -> None:
    """Return once a file system takes no more."""
    for _ in attempts():
        if os.statvfs(directory).f_bavail == 0:
            return
    raise AssertionError(f"{directory} does not fill")


@pytest.mark.parametrize("what", ["output", "checkpoints", "shm"])
def test_a_disk_that_a_job_fills_elsewhere_ends_that_job_alone(
    world: GnodeWorld, what: str
) -> None:
    """A directory for output or checkpoints, or shared memory, is full to the last byte."""
    with small_disk(world.directory / what, "1m") as disk:
        world.start()
        world.launch(1, gated(world, 1, 41))
        world.head.wait_for_start(1)
        fill(disk)
        output = f"{disk}/" if what == "output" else ""
        script = f"echo much || exit 9; echo more > {disk}/file || exit 9"
        world.launch(2, script, stdout_path=output)

        record = world.head.wait_for_exit(2).record
        let_go(world, 1)

        assert record.exit_code == 9
        assert world.head.wait_for_exit(1).record.exit_code == 41
        assert world.process.poll() is None, world.log()
