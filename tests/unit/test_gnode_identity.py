"""The node's identity in its state directory."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from gnode.daemon.identity import FILE, own_identity
from gsched.errors import ConfigError
from gsched.model.machine import is_identity


def test_an_identity_is_made_once_and_for_this_user_only(tmp_path: Path) -> None:
    first = own_identity(str(tmp_path))

    assert is_identity(first)
    assert own_identity(str(tmp_path)) == first
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_two_nodes_have_two(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    assert own_identity(str(tmp_path / "a")) != own_identity(str(tmp_path / "b"))


def test_what_a_crash_left_behind_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f"{FILE}.tmp").write_text("half")

    assert own_identity(str(tmp_path)) == own_identity(str(tmp_path))


def test_a_copy_is_refused_with_what_to_do(tmp_path: Path) -> None:
    own, copy = tmp_path / "own", tmp_path / "copy"
    own.mkdir()
    identity = own_identity(str(own))
    shutil.copytree(own, copy)

    with pytest.raises(ConfigError, match="is a copy of another node's") as refused:
        own_identity(str(copy))

    assert "empty it for a new node" in refused.value.hint
    assert "gnodes replace" in refused.value.hint
    own.rename(tmp_path / "moved")
    assert own_identity(str(tmp_path / "moved")) == identity


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"identity": "x", "inode": 1}', '{"identity": 1}', "\0" * 100, "x" * 10_000],
)
def test_a_broken_one_is_not_silently_replaced(tmp_path: Path, content: str) -> None:
    """A new identity is a new node, so an operator has to know."""
    own_identity(str(tmp_path))
    (tmp_path / FILE).write_text(content)

    with pytest.raises(ConfigError, match="is broken") as refused:
        own_identity(str(tmp_path))
    assert "remove the file" in refused.value.hint


def test_one_that_others_may_read_or_that_is_no_file_is_refused(tmp_path: Path) -> None:
    own_identity(str(tmp_path))
    path = tmp_path / FILE
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="is readable by other users"):
        own_identity(str(tmp_path))

    path.chmod(0o600)
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="Too many levels"):
        own_identity(str(tmp_path))

    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="is not a file of uid"):
        own_identity(str(tmp_path))
