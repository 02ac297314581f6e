"""Configuration and key: refused in words where others could read or change them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gsched.daemon_files import check_config, read_key
from gsched.errors import ConfigError

KEY = "0123456789abcdef" * 4
OTHER = 54321
SYSTEM = 33

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return path


def test_a_key_of_our_own_is_read(key: Path) -> None:
    assert read_key(str(key)) == KEY.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_j5_t61_a_key_that_others_may_use_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)

    with pytest.raises(ConfigError) as error:
        read_key(str(key))

    assert f"is readable by other users (mode {mode:04o})" in error.value.message
    assert "create a new key" in error.value.hint


def test_a_key_that_is_too_short_or_missing_is_refused(key: Path) -> None:
    key.write_text("short")
    with pytest.raises(ConfigError, match="too short: it has 5 bytes"):
        read_key(str(key))

    with pytest.raises(ConfigError) as error:
        read_key(str(key.with_name("none")))
    assert "gsched init" in error.value.hint


@root_only
def test_t61_a_key_of_another_person_is_refused(key: Path) -> None:
    os.chown(key, OTHER, OTHER)

    with pytest.raises(ConfigError, match=f"belongs to uid {OTHER}, who can read it"):
        read_key(str(key))


@root_only
def test_on_the_heads_machine_root_reads_the_key_of_the_heads_account(key: Path) -> None:
    os.chown(key, SYSTEM, SYSTEM)

    assert read_key(str(key)) == KEY.encode()


@root_only
def test_a_key_that_others_can_replace_is_refused(key: Path) -> None:
    os.chown(key.parent, OTHER, OTHER)

    with pytest.raises(ConfigError, match=f"{key.parent} belongs to uid {OTHER}"):
        read_key(str(key))


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
