"""Directories that users have filled are removed: any depth, any name, never beyond the tree."""

import asyncio
import errno
import logging
import os
import resource
import subprocess
from pathlib import Path

import pytest

from gnode.daemon.removals import STEPS_AT_ONCE, STEPS_OF_ONE, Remover
from gnode.daemon.trees import DEPTH_MAX, TreeRemoval

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do that")


def deepen(top: Path, levels: int, name: str = "d") -> None:
    """Make directories in directories, further down than a path can say."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(fd)
        fd = below
    os.close(fd)


def remove(path: Path) -> OSError | None:
    removal = TreeRemoval(str(path))
    for _ in range(10_000):
        if removal.work(1_000):
            return removal.error
    raise AssertionError("the removal has no end")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    return made


def test_a_directory_3000_levels_deep_is_removed(tree: Path) -> None:
    deepen(tree, 3_000)
    deepen(tree, 200, "x" * 255)

    assert remove(tree) is None
    assert not tree.exists()


def test_a_deep_directory_needs_few_descriptors(tree: Path) -> None:
    deepen(tree, 10 * DEPTH_MAX)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2 * DEPTH_MAX + 4, hard))
    try:
        error = remove(tree)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert error is None
    assert not tree.exists()


def test_odd_names_and_modes_are_removed(tree: Path) -> None:
    for name in (b"\xff\xfe", b"a\nb", b"-rf", b"x" * 255, b".gnode-1"):
        os.mkdir(os.path.join(os.fsencode(tree), name))
        Path(os.fsdecode(os.path.join(os.fsencode(tree), name)), "f").touch()
    os.mkfifo(tree / "pipe")
    closed = tree / "closed"
    (closed / "below" / "more").mkdir(parents=True)
    (closed / "below").chmod(0)
    closed.chmod(0)

    assert remove(tree) is None
    assert not tree.exists()


@root_only
def test_modes_that_the_owner_took_away_do_not_stop_another_user_than_root(tree: Path) -> None:
    """As in a cluster without root, where gnode and the job are the same user."""
    closed = tree / "closed"
    (closed / "below" / "more").mkdir(parents=True)
    deepen(closed / "below" / "more", 2 * DEPTH_MAX)
    for path in (closed / "below", closed):
        path.chmod(0)
    for path in (tree.parent, tree, closed):
        os.chown(path, 65534, 65534)
    subprocess.run(["chown", "-R", "65534:65534", str(tree.parent)], check=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(tree.parent)
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            code = 0 if TreeRemoval("./tree").work(10_000) and not os.path.lexists("tree") else 2
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_t28_links_are_removed_and_not_followed(tree: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "below").mkdir(parents=True)
    (tree / "link").symlink_to(precious)
    (tree / "below").mkdir()
    (tree / "below" / "link").symlink_to(precious / "below")

    assert remove(tree) is None
    assert (precious / "below").exists()


def test_t28_a_directory_swapped_for_a_link_while_it_is_read_leads_nowhere(
    tree: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    for number in range(50):
        (tree / f"{number}").mkdir()
        (tree / f"{number}" / "f").touch()
    removal = TreeRemoval(str(tree))
    removal.work(5)  # it has read the directory, and is somewhere in the middle
    for path in list(tree.iterdir()):
        path.rename(tmp_path / f"away-{path.name}")
        path.symlink_to(precious)

    while not removal.work(1):
        pass

    assert (precious / "file").exists()
    assert not tree.exists()


@root_only
def test_t28_a_mounted_file_system_is_left_alone(tree: Path) -> None:
    mount = tree / "mount"
    mount.mkdir()
    (tree / "file").touch()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mount)], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (mount / "precious").touch()
        error = remove(tree)
        found = (mount / "precious").exists()
    finally:
        subprocess.run(["umount", str(mount)], check=True)

    assert found
    assert error is not None
    assert error.errno == errno.EBUSY
    assert remove(tree) is None


@root_only
def test_an_immutable_file_is_said_once_and_all_else_is_removed(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tree / "below" / "kept"
    kept.parent.mkdir()
    for path in (kept, tree / "other", kept.parent / "other"):
        path.touch()
    if subprocess.run(["chattr", "+i", str(kept)], check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        error = remove(tree)
        left = sorted(path.name for path in tree.rglob("*"))
    finally:
        subprocess.run(["chattr", "-i", str(kept)], check=True)

    assert isinstance(error, PermissionError)
    assert left == ["below", "kept"]
    assert caplog.records == []
    assert remove(tree) is None


def test_what_cannot_be_removed_is_logged_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop_to_itself = tmp_path / "no" / "such" / "parent"
    loop_to_itself.parent.parent.symlink_to("no")  # opening it fails for everybody

    async def story() -> None:
        remover = Remover()
        for _ in range(2):
            remover.remove(str(loop_to_itself))
            given_up = remover.work(10)
            assert len(given_up) == 1
            remover.retry_later(given_up[0])
        remover.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "cannot be removed, trying again later" in said[0]


def test_a_huge_directory_is_removed_in_slices_and_delays_no_other(tmp_path: Path) -> None:
    huge, small = tmp_path / "huge", tmp_path / "small"
    huge.mkdir()
    small.mkdir()
    for number in range(2 * STEPS_AT_ONCE):
        (huge / f"{number}").touch()
    remover = Remover()
    remover.remove(str(huge))
    remover.remove(str(small))

    assert remover.work(STEPS_AT_ONCE) == []

    left = len(os.listdir(huge))
    assert STEPS_AT_ONCE <= left <= STEPS_AT_ONCE + STEPS_OF_ONE
    assert not small.exists()
    while huge.exists():
        remover.work(STEPS_AT_ONCE)


def test_a_name_is_free_for_a_new_attempt_at_once(tmp_path: Path) -> None:
    mine = tmp_path / "1.1"
    (mine / "below").mkdir(parents=True)
    remover = Remover()

    remover.add(str(mine))
    remover.add(str(tmp_path / "9.9"))  # never made

    assert not mine.exists()
    mine.mkdir()
    remover.work(STEPS_AT_ONCE)
    assert sorted(os.listdir(tmp_path)) == ["1.1"]
