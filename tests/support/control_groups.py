"""Real control groups of version 1 for a test: made below our own, entered, removed."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnode.hw import cgroups
from tests.support.processes import attempts

CONTROLLERS = ("cpu", "cpuacct", "memory")


def group_paths(name: str) -> dict[str, Path]:
    """Return where groups of that name lie, by controller; skip the test where they cannot."""
    own = cgroups.own_paths()
    if os.geteuid() != 0:
        pytest.skip("only root may make control groups")
    missing = [
        each for each in CONTROLLERS if each not in own or not (cgroups.MOUNT / each).is_dir()
    ]
    if missing:
        pytest.skip(f"no control groups of version 1 for {', '.join(missing)}")
    return {each: cgroups.MOUNT / each / own[each].lstrip("/") / name for each in CONTROLLERS}


@contextmanager
def made_groups(name: str, *, cores: float, memory_bytes: int = 0) -> Iterator[dict[str, Path]]:
    """Make groups that may use so much; in the end they are removed."""
    paths = group_paths(name)
    try:
        for path in paths.values():
            path.mkdir()
        (paths["cpu"] / "cpu.cfs_period_us").write_text("100000")
        (paths["cpu"] / "cpu.cfs_quota_us").write_text(str(round(cores * 100_000)))
        if memory_bytes:
            (paths["memory"] / "memory.limit_in_bytes").write_text(str(memory_bytes))
    except OSError as error:
        _remove(paths)
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        yield paths
    finally:
        _remove(paths)


@contextmanager
def entered(paths: Mapping[str, Path]) -> Iterator[None]:
    """Have this process in the groups for a while, so that what it starts meanwhile is in them."""
    own = cgroups.own_paths()
    homes = [cgroups.MOUNT / each / own[each].lstrip("/") for each in paths]
    try:
        for path in paths.values():
            (path / "cgroup.procs").write_text("0")
        yield
    finally:
        for home in homes:
            (home / "cgroup.procs").write_text("0")


def _remove(paths: Mapping[str, Path]) -> None:
    for path in paths.values():
        for _ in attempts():
            cgroups.remove(str(path))
            if not path.exists():
                break
        assert not path.exists(), f"{path} still holds {cgroups.members(str(path))}"
