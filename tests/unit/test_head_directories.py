"""The head's state directory: made private, refused where it is another user's."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gsched.errors import ConfigError
from gschedd.daemon.setup import make_state_dir

OTHER = 54321


def test_a_state_directory_is_made_for_the_head_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "state"

    make_state_dir(str(path))

    assert path.stat().st_mode & 0o077 == 0
    make_state_dir(str(path))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.chmod(0o777), "is writable by all users"),
        (lambda path: path.chmod(0o1777), "is writable by all users"),
        pytest.param(
            lambda path: os.chown(path, OTHER, OTHER),
            f"belongs to uid {OTHER}",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
        ),
    ],
    ids=["mode", "sticky", "owner"],
)
def test_t61_a_state_directory_that_others_can_change_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(tmp_path)

    with pytest.raises(ConfigError, match=words):
        make_state_dir(str(tmp_path))
