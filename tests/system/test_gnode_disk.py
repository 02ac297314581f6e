"""What jobs leave on a node's disk never ends gnode, and never keeps others from working."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gnode_world import GnodeWorld
from tests.support.processes import attempts


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path, process_marker)
    yield made
    made.stop()


def until_empty(directory: Path) -> None:
    """Return once nothing is left in a directory."""
    for _ in attempts():
        if not os.listdir(directory):
            return
    raise AssertionError(f"{directory} still holds {os.listdir(directory)}")


DEEP = f"""cd "$GSCHED_JOB_DIR"
exec {sys.executable} -I -S -c 'import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")'
"""


def test_a_deep_directory_is_removed_at_the_jobs_end_before_the_head_acknowledges(
    world: GnodeWorld,
) -> None:
    world.start()
    world.launch(1, DEEP)

    record = world.head.wait_for_exit(1).record
    until_empty(world.scratch)

    assert record.exit_code == 0, world.log()
    assert world.process.poll() is None, world.log()


def test_what_a_job_left_is_removed_after_a_restart(world: GnodeWorld) -> None:
    world.start()
    world.kill()
    left = world.scratch / "7.1"
    left.mkdir()
    deep = os.open(left, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)

    world.start()
    until_empty(world.scratch)

    assert world.process.poll() is None, world.log()
