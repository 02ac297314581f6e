"""The configuration is refused in words where others could change it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gsched.daemon_files import check_config
from gsched.errors import ConfigError

OTHER = 54321

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o666),
        pytest.param(lambda path: path.chmod(0o664), marks=root_only),
        pytest.param(lambda path: os.chown(path, OTHER, OTHER), marks=root_only),
        pytest.param(lambda path: path.parent.chmod(0o777), marks=root_only),
    ],
    ids=["world", "group", "owner", "directory"],
)
def test_j5_a_configuration_that_others_can_change_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "gsched.toml"
    path.write_text("")
    path.chmod(0o644)
    check_config(str(path))
    spoil(path)

    with pytest.raises(ConfigError, match=r"the configuration .*gsched\.toml cannot be used"):
        check_config(str(path))


def test_a_configuration_that_is_not_there_is_not_refused_here(tmp_path: Path) -> None:
    """The default one may be missing; that one which was named is, `load_config` says."""
    check_config(str(tmp_path / "none"))
