"""A spool that is wiped while jobs run: nothing of it lives on beside a second attempt.

All without control groups, which would find the processes by themselves.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.supervisor import proc
from gsched.protocol.node import Register
from tests.support.gnode_world import GnodeWorld, lives, wait_until_gone
from tests.support.processes import attempts


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path, process_marker)
    made.settings["cgroup"] = "none"
    yield made
    made.stop()


def launcher_of(world: GnodeWorld) -> int:
    return int(json.loads((world.state / "launcher.json").read_bytes())["pid"])


def wipe(world: GnodeWorld, how: str) -> None:
    """Take the spool away, in one of the ways in which that happens."""
    match how:
        case "removed":
            shutil.rmtree(world.state)
        case "emptied":
            for path in world.state.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "moved":
            world.state.rename(world.directory / "n1.old")
        case _:  # the attempts only
            shutil.rmtree(world.state / "attempts")


#: A job of which a part has left its session, its parent and its environment.
DAEMON = "(env -i setsid sh -c 'sleep 971' &) ; sleep 972"


@pytest.mark.parametrize("how", ["removed", "emptied", "moved", "attempts only"])
def test_a_new_gnode_kills_what_ran_for_the_old_spool_before_it_registers(
    world: GnodeWorld, how: str
) -> None:
    world.start()
    world.launch(1, DAEMON)
    job = world.head.wait_for_start(1).pid
    supervisor, launcher = world.supervisor(1).pid, launcher_of(world)
    family = [pid for pid in descendants(supervisor) if pid != supervisor]
    assert len(family) >= 3
    world.kill()
    wipe(world, how)

    world.start()

    assert world.head.wait_for(Register, count=2)[-1].attempts == ()
    for pid in (job, supervisor, *family):
        assert not lives(pid), f"{pid} runs beside a second attempt:\n{world.log()}"
    if how != "attempts only":
        wait_until_gone(launcher)
    world.launch(1, "exit 9", attempt=2)
    assert world.head.wait_for_exit(1, 2).record.exit_code == 9


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_without_a_new_gnode_supervisor_and_launcher_end_the_job_and_leave(
    world: GnodeWorld, how: str
) -> None:
    world.start()
    world.launch(1, DAEMON)
    job = world.head.wait_for_start(1).pid
    pids = (job, world.supervisor(1).pid, launcher_of(world))
    world.kill()

    wipe(world, how)

    for pid in pids:
        wait_until_gone(pid, 40.0)


def test_a_gnode_whose_spool_is_wiped_ends_in_words(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, "sleep 973")
    job = world.head.wait_for_start(1).pid

    wipe(world, "removed")
    status = world.wait_for_death()
    world.start()

    assert status not in (0, -signal.SIGKILL)
    assert "was removed or replaced while gnode ran" in world.log()
    assert "Traceback" not in world.log()
    assert not lives(job)


def test_a_restart_on_an_intact_spool_kills_nothing(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, f"while [ ! -e {world.work}/go ]; do sleep 0.05; done; exit 5")
    world.head.wait_for_start(1)
    world.kill()
    os.kill(launcher_of(world), signal.SIGKILL)

    world.start()
    (world.work / "go").touch()

    assert world.head.wait_for_exit(1).record.exit_code == 5
    assert "killed processes" not in world.log()


def test_a_restart_on_a_state_directory_behind_a_symlink_kills_nothing(world: GnodeWorld) -> None:
    real = world.directory / "real"
    real.mkdir()
    (world.directory / "link").symlink_to(real)
    world.state = world.directory / "link" / "n1"
    world.settings["state_dir"] = str(world.state)
    world.start()
    world.launch(1, f"while [ ! -e {world.work}/go ]; do sleep 0.05; done; exit 5")
    job = world.head.wait_for_start(1).pid
    supervisor = world.supervisor(1).pid
    world.kill()

    world.start()

    assert lives(job), world.log()
    assert world.supervisor(1).pid == supervisor
    assert "killed processes" not in world.log()
    (world.work / "go").touch()
    assert world.head.wait_for_exit(1, 1).record.exit_code == 5


def descendants(pid: int) -> set[int]:
    """Return a supervisor and all below it, once the job's daemon is there."""
    found: set[int] = set()
    for _ in attempts():
        found = proc.descendants((pid,), proc.snapshot())
        if len(found) >= 4:
            break
    return found
