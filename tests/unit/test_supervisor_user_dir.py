"""A job's own directory is made only where nobody else can change it, and is new."""

import os
from pathlib import Path

import pytest

from gnode.supervisor.errors import LaunchError
from gnode.supervisor.user_dir import UserDir
from gsched.trust import UntrustedError
from tests.support.records import a_task

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
OTHER = 54321


def made(path: Path) -> os.stat_result:
    """Make a directory for a job of another user, as a supervisor does; return what it is."""
    script = {"name": "script", "mode": 0o700, "content": ""}
    task = a_task(switch_user=True, uid=OTHER, gid=OTHER, files=[script], user_dir=str(path))
    UserDir(task).make()
    return path.stat()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of root's in one like /tmp."""
    tmp_path.chmod(0o1777)
    path = tmp_path / "gsched-0-1"
    path.mkdir(mode=0o711)
    return path


def test_it_is_the_owners_alone(root: Path) -> None:
    status = made(root / "7.1")

    assert (status.st_uid, status.st_mode & 0o777) == (OTHER, 0o700)


@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_nothing_is_made_in_a_directory_that_somebody_else_can_change(
    root: Path, tmp_path: Path, how: str
) -> None:
    """Its owner could put another script in the place of the job's."""
    precious = tmp_path / "precious"
    precious.mkdir()
    match how:
        case "owner":
            os.chown(root, OTHER, OTHER)
        case "mode":
            root.chmod(0o777)
        case _:
            root.rmdir()
            root.symlink_to(precious)
            os.chown(root, OTHER, OTHER, follow_symlinks=False)

    with pytest.raises(LaunchError) as refused:
        made(root / "7.1")
    assert isinstance(refused.value.__cause__, UntrustedError)

    assert os.listdir(precious) == []
    assert how == "link" or os.listdir(root) == []


def test_what_another_attempt_of_that_number_has_left_is_not_used(root: Path) -> None:
    """It gets a name by which gnode removes it."""
    old = root / "7.1"
    old.mkdir()
    (old / "script").write_text("somebody else's")
    os.chown(old, OTHER + 1, OTHER + 1)

    status = made(old)

    assert status.st_uid == OTHER
    assert os.listdir(old) == []
    (left,) = (each for each in os.listdir(root) if each != "7.1")
    assert left.startswith(".removed-")
