"""A gnode that lacks descriptors or space for a moment goes on."""

import errno
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnode.daemon.elastic import socket_path
from gnode.main import is_shortage_at_accept
from tests.support.gnode_world import GnodeWorld
from tests.support.processes import attempts


@pytest.fixture
def world(tmp_path: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(tmp_path, process_marker)
    made.settings["cgroup"] = "none"
    yield made
    made.stop()


def test_a_launcher_that_cannot_be_started_is_started_later(world: GnodeWorld) -> None:
    world.state.mkdir(mode=0o711)
    in_the_way = world.state / "launcher.log"
    in_the_way.mkdir()

    world.start()
    world.launch(1, "exit 5")
    in_the_way.rmdir()

    assert world.head.wait_for_exit(1).record.exit_code == 5
    assert "no launcher can be started or reached" in world.log()
    assert in_the_way.stat().st_mode & 0o007 == 0, "prolog and epilog write there"


def test_a_gnode_that_cannot_accept_for_a_moment_lives_on(world: GnodeWorld) -> None:
    world.start()
    world.launch(1, f"while [ ! -e {world.work}/go ]; do sleep 0.05; done; exit 5")
    world.head.wait_for_start(1)
    pid = world.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(socket_path(str(world.state)))
        for _ in attempts():
            if "Too many open files" in world.log():
                break
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    (world.work / "go").touch()

    assert world.head.wait_for_exit(1).record.exit_code == 5
    assert world.process.poll() is None
    assert "Too many open files" in world.log()
    assert "Traceback" not in world.log()


def test_only_a_shortage_at_accept_is_passed_over() -> None:
    shortage = OSError(errno.EMFILE, "Too many open files")

    assert is_shortage_at_accept({"exception": shortage, "socket": None})
    assert not is_shortage_at_accept({"exception": shortage, "message": "a task"})
    assert not is_shortage_at_accept({"exception": ValueError("x"), "socket": None})
