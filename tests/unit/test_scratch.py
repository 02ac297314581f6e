"""Where jobs' own directories lie: outside the spool, and nobody else can take the place."""

import os
from pathlib import Path

import pytest

from gnode.daemon.scratch import Scratch
from gsched.errors import CannotWriteError

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
NOBODY = 65534


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    """A directory like /tmp."""
    made = tmp_path / "tmp"
    made.mkdir()
    made.chmod(0o1777)
    return made


def a_scratch(tmp_path: Path, state: str = "state") -> Scratch:
    return Scratch(str(tmp_path / state), str(tmp_path / "tmp"))


def test_it_is_found_again_and_each_spool_has_its_own(tmp_path: Path, tmp: Path) -> None:
    first, again, other = (a_scratch(tmp_path, name) for name in ("one", "one", "two"))
    for each in (first, again, other):
        each.prepare()

    assert first.root == again.root != other.root
    assert os.path.dirname(first.root) == str(tmp)
    assert Path(first.root).stat().st_mode & 0o777 == 0o711


@root_only
@pytest.mark.parametrize("squatted", ["directory", "link", "file"])
def test_root_takes_a_name_that_somebody_else_has_taken(
    tmp_path: Path, tmp: Path, squatted: str
) -> None:
    """Nobody can keep gnode from its directory, and nothing is done where a link leads."""
    scratch = a_scratch(tmp_path)
    taken, precious = Path(scratch.root), tmp_path / "precious"
    precious.mkdir()
    squat(taken, squatted, precious)

    scratch.prepare()

    assert scratch.root == str(taken)
    assert taken.lstat().st_uid == os.geteuid()
    assert os.listdir(precious) == []
    assert scratch.owns(f"{scratch.root}/1.1")
    assert len([each for each in os.listdir(tmp) if ".foreign-" in each]) == 1


def squat(place: Path, squatted: str, precious: Path) -> None:
    match squatted:
        case "directory":
            place.mkdir()
        case "link":
            place.symlink_to(precious)
        case _:
            place.touch()
    os.chown(place, NOBODY, NOBODY, follow_symlinks=False)


@root_only
def test_a_directory_of_roots_that_others_can_write_is_left_alone(
    tmp_path: Path, tmp: Path
) -> None:
    """Jobs may use it: the next name is taken."""
    scratch = a_scratch(tmp_path)
    taken = Path(scratch.root)
    taken.mkdir()
    taken.chmod(0o777)

    scratch.prepare()

    assert scratch.root == f"{taken}-1"
    assert not scratch.owns(f"{taken}/1.1"), "what lies there may be anybody's"


def test_without_root_the_next_name_is_taken_and_none_at_last(tmp_path: Path, tmp: Path) -> None:
    """A link of somebody's is not followed."""
    scratch = a_scratch(tmp_path)
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    for name in ("", *(f"-{number}" for number in range(1, 10))):
        if os.geteuid() == 0:
            os.mkdir(f"{scratch.root}{name}")
            os.chmod(f"{scratch.root}{name}", 0o777)
        else:
            os.symlink(wide, f"{scratch.root}{name}")

    with pytest.raises(CannotWriteError, match="no directory for jobs' files") as refused:
        scratch.prepare()

    assert "tmp_dir" in refused.value.hint


def test_a_directory_that_a_clean_up_has_removed_is_made_again(tmp_path: Path, tmp: Path) -> None:
    scratch = a_scratch(tmp_path)
    scratch.prepare()
    os.rmdir(scratch.root)

    scratch.ensure()

    assert Path(scratch.root).stat().st_mode & 0o777 == 0o711


@root_only
def test_what_was_found_in_order_a_moment_ago_is_checked_again_once_it_is_another(
    tmp_path: Path, tmp: Path
) -> None:
    scratch = a_scratch(tmp_path)
    scratch.prepare()
    scratch.ensure()
    os.chown(scratch.root, 54321, 54321)

    scratch.ensure()

    assert Path(scratch.root).lstat().st_uid == os.geteuid()


@root_only
@pytest.mark.parametrize("squatted", ["directory", "link", "file"])
def test_a_name_that_is_taken_after_a_clean_up_is_taken_back(
    tmp_path: Path, tmp: Path, squatted: str
) -> None:
    """Tasks name the directory, so it is the same one; jobs are never started in another's."""
    scratch = a_scratch(tmp_path)
    scratch.prepare()
    before = scratch.root
    os.rmdir(before)
    precious = tmp_path / "precious"
    precious.mkdir()
    squat(Path(before), squatted, precious)

    scratch.ensure()

    assert scratch.root == before
    assert Path(before).lstat().st_uid == os.geteuid()
    assert os.listdir(precious) == []
    assert scratch.owns(f"{before}/7.1")


def test_directories_without_an_attempt_are_abandoned_also_in_the_old_place(
    tmp_path: Path, tmp: Path
) -> None:
    scratch = a_scratch(tmp_path)
    scratch.prepare()
    old = tmp_path / "state" / "user"
    old.mkdir(parents=True)
    for path in (old / "1.1", old / "2.1", Path(scratch.root, "1.1"), Path(scratch.root, "3.1")):
        path.mkdir()

    assert sorted(scratch.abandoned({"1.1"})) == sorted([str(old / "2.1"), f"{scratch.root}/3.1"])


def test_only_directories_right_below_are_the_jobs(tmp_path: Path, tmp: Path) -> None:
    scratch = a_scratch(tmp_path)
    scratch.prepare()

    assert scratch.owns(f"{scratch.root}/1.1")
    for path in (scratch.root, f"{scratch.root}/1.1/x", str(tmp_path / "other"), ""):
        assert not scratch.owns(path)


def test_it_goes_with_gnode_unless_a_job_has_something_there(tmp_path: Path, tmp: Path) -> None:
    scratch = a_scratch(tmp_path)
    scratch.prepare()
    os.mkdir(f"{scratch.root}/1.1")
    scratch.close()
    assert os.path.isdir(scratch.root)
    os.rmdir(f"{scratch.root}/1.1")

    scratch.close()

    assert os.listdir(tmp) == []
