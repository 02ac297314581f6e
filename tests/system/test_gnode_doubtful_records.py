"""An exit record that cannot be read or trusted for a moment: the true outcome is told later."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnode.supervisor import journal
from tests.support import records
from tests.support.gnode_world import GnodeWorld
from tests.support.processes import attempts

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root checks the directories above its own"),
]


@pytest.fixture
def world(process_marker: str) -> Iterator[GnodeWorld]:
    top = Path(tempfile.mkdtemp(prefix="gsched-doubt-"))
    top.chmod(0o755)
    made = GnodeWorld(top / "world", process_marker)
    made.settings["cgroup"] = "none"
    yield made
    made.stop()
    shutil.rmtree(top)


def launch_waiting(world: GnodeWorld) -> Path:
    """Start job 1, which exits with 7 once the returned file is there."""
    go = world.work / "go"
    world.launch(1, f"while ! test -e {go}; do sleep 0.05; done; exit 7")
    world.supervisor(1)
    return go


def journal_file(world: GnodeWorld) -> Path:
    return world.state / "attempts" / "1.1" / journal.NAME


def wait_for(condition: Callable[[], bool], world: GnodeWorld) -> None:
    for _ in attempts():
        if condition():
            return
    raise AssertionError(world.log())


def test_a_job_that_ends_while_others_may_write_an_ancestor(world: GnodeWorld) -> None:
    world.start()
    go = launch_waiting(world)
    attempts_dir = world.state / "attempts"  # a change further up counts a second later
    attempts_dir.chmod(0o775)
    go.touch()

    outcome = world.head.wait_for_exit(1).record  # the supervisor has told it
    assert (outcome.kind, outcome.exit_code) == ("exited", 7)
    assert "its supervisor died" not in world.log()


def test_a_record_that_cannot_be_opened_at_the_start_does_not_keep_gnode_from_it(
    world: GnodeWorld,
) -> None:
    world.start()
    go = launch_waiting(world)
    world.kill()
    go.touch()
    record = journal_file(world)
    wait_for(lambda: records.ended(record.parent) is not None, world)
    record.rename(record.with_name("aside"))
    os.mknod(record, stat.S_IFSOCK | 0o600)  # opening it fails: ENXIO

    world.start()
    world.launch(2, "exit 3")
    assert world.head.wait_for_exit(2).record.exit_code == 3
    assert "attempt 1.1: its exit record cannot be read" in world.log()
    record.with_name("aside").rename(record)

    outcome = world.head.wait_for_exit(1).record
    assert (outcome.kind, outcome.exit_code) == ("exited", 7)


def test_marks_with_a_second_name_are_refused_in_words(world: GnodeWorld) -> None:
    world.start()
    world.terminate()
    os.link(world.state / "head.json", world.state / "backup")

    world.start(wait=False)

    assert world.wait_for_death() == 78
    assert "has another name (a hard link)" in world.log()
    assert "Traceback" not in world.log()
