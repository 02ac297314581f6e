"""What an account other than root cannot make a gnode that is root do."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gsched.model.job import Owner
from tests.support.gnode_world import GnodeWorld
from tests.support.processes import attempts

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root has rights that can be taken over"),
]

HEAD_UID = 54321  # the account of the head: some number that owns nothing else here
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that other users reach: pytest's own are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="gsched-boundary-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def world(top: Path, process_marker: str) -> Iterator[GnodeWorld]:
    made = GnodeWorld(top / "world", process_marker)
    made.settings["cgroup"] = "none"
    made.settings.pop("allow_root_jobs", None)  # a production node's configuration says nothing
    yield made
    made.stop()


def planted_task(top: Path, state: Path, **changes: object) -> bytes:
    """Return a task that leaves ``proof`` behind if it is ever run."""
    task = {
        "job": 1,
        "attempt": 1,
        "user": "root",
        "uid": 0,
        "gid": 0,
        "switch_user": False,
        "argv": ["/bin/sh", "-c", f"id > {top}/proof"],
        "env": {},
        "cwd": "/",
        "stdout_path": "/dev/null",
        "stderr_path": "/dev/null",
        "stdout_name": "o",
        "stderr_name": "e",
        "join": "n",
        "append": False,
        "umask": 0o022,
        "files": [],
        "user_dir": f"{state}/user/1.1",
        "walltime_s": None,
        "grace_s": 1.0,
        "cgroup": None,
        "memory_cgroup": None,
        "failure_report": None,
        "nice": 0,
        "boot_id": BOOT_ID,
    }
    return json.dumps(task | changes).encode()


def as_other(code: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run Python code as the unprivileged account."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code, *map(str, arguments)],
        user=HEAD_UID,
        group=HEAD_UID,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def ends_or_runs(world: GnodeWorld, proof: Path) -> None:
    """Return once gnode has ended, or what must not run has run."""
    for _ in attempts():
        if proof.exists() or world.process.poll() is not None:
            return
    raise AssertionError(f"gnode neither ended nor ran the job:\n{world.log()}")


PLANT = """
import os, sys
head, task = sys.argv[1:]
os.rename(f"{head}/node", f"{head}/old")
os.makedirs(f"{head}/node/attempts/1.1")
with open(f"{head}/node/attempts/1.1/task.json", "w") as file:
    file.write(task)
"""


def test_a_spool_below_the_heads_directory_is_refused(world: GnodeWorld, top: Path) -> None:
    """The head's account replaces the spool by one with a job of root's in it."""
    head = top / "gsched"
    (head / "node").mkdir(parents=True)
    os.chown(head, HEAD_UID, HEAD_UID)
    world.state = head / "node"
    world.settings["state_dir"] = str(world.state)
    planted = as_other(PLANT, head, planted_task(top, world.state).decode())
    assert planted.returncode == 0, planted.stderr

    world.start(wait=False)
    ends_or_runs(world, top / "proof")

    assert not (top / "proof").exists()
    assert world.process.returncode == 78
    assert f"{head} belongs to uid {HEAD_UID}, not to root" in world.log()
    assert "Traceback" not in world.log()


def own(path: Path) -> None:
    os.chown(path, HEAD_UID, HEAD_UID, follow_symlinks=False)


def behind_a_link(path: Path) -> None:
    """Replace a directory by a link of the other user's to it, in a directory like /tmp."""
    path.parent.chmod(0o1777)
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)
    own(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (own, "belongs to uid"),
        (lambda state: own(state.parent), "belongs to uid"),
        (lambda state: own(state.parent.parent), "belongs to uid"),
        (lambda state: own(state / "attempts"), "belongs to uid"),
        (lambda state: state.chmod(0o770), "can be written by others (mode 0770)"),
        (lambda state: state.chmod(0o1777), "can be written by others (mode 1777)"),
        (lambda state: state.parent.chmod(0o777), "can be written by others (mode 0777)"),
        (lambda state: state.parent.parent.chmod(0o775), "can be written by others (mode 0775)"),
        (behind_a_link, "belongs to uid"),
        (lambda state: behind_a_link(state.parent), "belongs to uid"),
    ],
    ids=[
        *("owner", "owner of its parent", "owner further up", "owner of attempts"),
        *("group may write", "sticky", "all may write its parent", "group may write further up"),
        *("a link", "a link on the way"),
    ],
)
def test_a_spool_that_others_can_change_is_refused(
    world: GnodeWorld, top: Path, spoil: Callable[[Path], None], words: str
) -> None:
    world.state = top / "a" / "b" / "spool"
    attempt = world.state / "attempts" / "1.1"
    (world.state / "user").mkdir(parents=True)
    attempt.mkdir(parents=True, mode=0o700)
    (attempt / "task.json").write_bytes(planted_task(top, world.state))
    world.settings["state_dir"] = str(world.state)
    spoil(world.state)

    world.start(wait=False)
    ends_or_runs(world, top / "proof")

    assert not (top / "proof").exists()
    assert world.process.returncode == 78
    assert words in world.log()


def through_a_link(task: Path) -> None:
    task.rename(task.with_name("other"))
    task.symlink_to("other")


@pytest.mark.parametrize(
    "spoil",
    [
        own,
        lambda task: own(task.parent),
        lambda task: task.chmod(0o666),
        lambda task: task.parent.chmod(0o777),
        lambda task: os.link(task, task.with_name("other")),
        through_a_link,
    ],
    ids=["owner", "owner of its directory", "mode", "mode of its directory", "hard link", "link"],
)
def test_a_task_that_others_can_have_written_is_set_aside(
    world: GnodeWorld, top: Path, spoil: Callable[[Path], None]
) -> None:
    world.settings["allow_root_jobs"] = True
    world.state.mkdir()
    attempt = world.state / "attempts" / "1.1"
    attempt.mkdir(parents=True, mode=0o700)
    (attempt / "task.json").write_bytes(planted_task(top, world.state))
    spoil(attempt / "task.json")

    world.start()
    world.launch(2, "true")
    world.head.wait_for_exit(2)

    assert not (top / "proof").exists()
    assert (world.state / "lost+found" / "1.1").exists()


TRY_ALL = """
import os, sys
def tried(what, *arguments):
    try:
        what(*arguments)
    except OSError:
        return
    print(what.__name__, *arguments)
for path in sys.argv[1:]:
    tried(os.rename, path, path + "~")
    tried(os.symlink, "/tmp", os.path.join(path, "planted"))
    tried(os.mkdir, os.path.join(path, "planted"))
    tried(os.chmod, path, 0o777)
    tried(os.open, path, os.O_WRONLY)
    tried(os.open, os.path.join(path, "task.json"), os.O_WRONLY | os.O_CREAT)
    tried(os.unlink, path)
    tried(os.rmdir, path)
"""


def test_nobody_else_can_change_a_spool_that_gnode_has_made(world: GnodeWorld, top: Path) -> None:
    """Every directory on the way and below, while a job is there."""
    world.settings["allow_root_jobs"] = True
    world.start()
    world.launch(1, "sleep 60")
    world.supervisor(1)
    attempt = world.state / "attempts" / "1.1"
    paths = [*reversed(world.state.parents), world.state]
    paths = [path for path in paths if path not in {Path("/"), Path("/tmp")}]
    paths += [world.state / name for name in ("attempts", "user", "head.json", "gnode.lock")]
    paths += [attempt, attempt / "task.json", attempt / "journal"]

    done = as_other(TRY_ALL, *paths)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("user", ["root", "daemon"])
def test_a_head_cannot_start_jobs_of_root_or_system_users(
    world: GnodeWorld, top: Path, user: str
) -> None:
    """The head is on this very machine and knows the key: that gives it no rights of root's."""
    account = pwd.getpwnam(user)
    world.owner = Owner(user=user, uid=account.pw_uid, gid=account.pw_gid)
    world.work.chmod(0o777)
    world.start()
    world.launch(1, f"id > {world.work}/proof")

    outcome = world.head.wait_for_exit(1)

    assert outcome.record.kind == "launch_failed"
    assert "allow_root_jobs" in outcome.record.message or "system account" in outcome.record.message
    assert not (world.work / "proof").exists()


def test_only_the_nodes_own_section_allows_jobs_of_root(world: GnodeWorld) -> None:
    """One file may serve head and nodes: what it says to the head means nothing to a node."""
    config = world.write_config()
    config.write_text(config.read_text() + "[head]\nallow_root_jobs = true\n")
    world.write_config = lambda: config  # type: ignore[method-assign]  # keep the file
    world.start()
    world.launch(1, f"id > {world.work}/proof")

    assert world.head.wait_for_exit(1).record.kind == "launch_failed"
    assert not (world.work / "proof").exists()


def test_a_node_that_says_so_runs_jobs_of_root(world: GnodeWorld) -> None:
    world.settings["allow_root_jobs"] = True
    world.start()
    world.launch(1, f"id -u > {world.work}/proof")

    assert world.head.wait_for_exit(1).record.exit_code == 0
    assert (world.work / "proof").read_text() == "0\n"


@pytest.mark.parametrize(
    "spoil",
    [own, lambda path: path.chmod(0o666), lambda path: path.parent.chmod(0o777)],
    ids=["owner", "mode", "its directory"],
)
def test_j5_a_configuration_that_others_can_write_is_refused(
    world: GnodeWorld, spoil: Callable[[Path], None]
) -> None:
    config = world.write_config()
    spoil(config)
    world.write_config = lambda: config  # type: ignore[method-assign]  # keep the file's owner

    world.start(wait=False)

    assert world.wait_for_death() == 78
    assert "configuration" in world.log()
