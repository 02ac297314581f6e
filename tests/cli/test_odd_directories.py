"""Commands in a working directory that was deleted, or that its path does not lead to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import command_environment
from tests.support.fake_api import FakeApi, serve

IN_DELETED = 'mkdir d && cd d && rmdir ../d && exec "$@"'
#: Another file system hides the directory; the shell's PWD is that of a directory that is there.
HIDDEN = 'mkdir -p a/d && cd a/d && mount -t tmpfs none {a} && PWD=/ exec "$@"'
SENTENCE = "the current directory has been deleted, or its path leads to another one here"


def ran(
    directory: Path, script: str, *words: str, before: tuple[str, ...] = (), head: str = ""
) -> subprocess.CompletedProcess[str]:
    command = [*before, "sh", "-c", script, "sh", sys.executable, "-m"]
    return subprocess.run(
        [*command, f"gsched.cli.commands.{words[0]}", *words[1:]],
        env=command_environment(head or directory / "s"),
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("gsub", "--", "true"),
        ("gsub", "--json", "--", "true"),
        ("gsub", "job.sh"),
        ("galter", "-N", "x", "1"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_a_deleted_directory_says_so(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    fake = FakeApi(tmp_path)
    with serve(fake.application(), tmp_path / "s"):
        done = ran(tmp_path, IN_DELETED, *words)

    assert done.returncode == 2, done.stderr
    assert SENTENCE in done.stderr + done.stdout
    assert "change to another directory" in done.stderr + done.stdout
    assert fake.submitted == []


def test_a_relative_address_of_the_head_leads_nowhere_there(tmp_path: Path) -> None:
    done = ran(tmp_path, IN_DELETED, "gstat", head="head.sock")

    assert done.returncode == 2
    assert SENTENCE in done.stderr


def test_commands_that_need_no_directory_work_in_a_deleted_one(tmp_path: Path) -> None:
    fake = FakeApi(tmp_path)
    with serve(fake.application(), tmp_path / "s"):
        done = ran(tmp_path, IN_DELETED, "gstat")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes mount namespaces")
def test_a_directory_that_a_mount_hides_is_no_place_for_a_job(tmp_path: Path) -> None:
    """A job would run in what its path leads to: in another directory."""
    fake = FakeApi(tmp_path)
    script = HIDDEN.format(a=tmp_path / "a")
    with serve(fake.application(), tmp_path / "s"):
        done = ran(tmp_path, script, "gsub", "--", "true", before=("unshare", "--mount"))

    assert done.returncode == 2, done.stderr
    assert SENTENCE in done.stderr
    assert fake.submitted == []
