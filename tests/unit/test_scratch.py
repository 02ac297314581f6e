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
@pytest.mark.parametrize("squatted", ["directory", "link", "writable", "file"])
def test_a_place_that_somebody_else_has_taken_is_left_alone(
    tmp_path: Path, tmp: Path, squatted: str
) -> None:
    scratch = a_scratch(tmp_path)
    taken, precious = Path(scratch.root), tmp_path / "precious"
    precious.mkdir()
    match squatted:
        case "directory":
            taken.mkdir()
            os.chown(taken, NOBODY, NOBODY)
        case "link":
            taken.symlink_to(precious)
            os.chown(taken, NOBODY, NOBODY, follow_symlinks=False)
        case "writable":
            taken.mkdir()
            taken.chmod(0o777)
        case _:
            taken.touch()
            os.chown(taken, NOBODY, NOBODY)

    scratch.prepare()

    assert scratch.root == f"{taken}-1"
    assert os.listdir(precious) == []
    assert scratch.owns(f"{scratch.root}/1.1")


@root_only
def test_where_all_names_are_taken_gnode_says_what_to_do(tmp_path: Path, tmp: Path) -> None:
    scratch = a_scratch(tmp_path)
    for name in ("", *(f"-{number}" for number in range(1, 10))):
        path = f"{scratch.root}{name}"
        os.mkdir(path)
        os.chown(path, NOBODY, NOBODY)

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
def test_a_place_that_is_taken_after_a_clean_up_costs_only_its_name(
    tmp_path: Path, tmp: Path
) -> None:
    """Else a user could keep every job from starting, and so have the node drained."""
    scratch = a_scratch(tmp_path)
    scratch.prepare()
    first = Path(scratch.root)
    first.rmdir()
    first.mkdir()
    os.chown(first, NOBODY, NOBODY)

    scratch.ensure()

    assert scratch.root != str(first)
    assert Path(scratch.root).stat().st_uid == os.geteuid()
    assert scratch.owns(f"{scratch.root}/7.1")


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
