"""Whether a node has the directory of submission: by a mark, and what the node finds."""

from pathlib import Path
from typing import Any

import pytest

from gsched.directories import has_same, mark_of, read, written


def changed(mark: str, *, kernel: bool = False, network: bool = False, inodes: int = 0) -> str:
    """Return a mark as another host would have made it: all devices differ under another kernel."""
    boot_id, parts, source = read(mark)
    parts = [(device + kernel, inode + inodes, network) for device, inode, _ in parts]
    return written(boot_id + "x" * kernel, parts, source)


def test_a_directory_is_the_same_on_its_own_host(tmp_path: Path) -> None:
    assert has_same(str(tmp_path), mark_of(str(tmp_path)))


def test_a_directory_that_was_made_again_or_removed_is_the_same(tmp_path: Path) -> None:
    work = tmp_path / "a" / "b"
    work.mkdir(parents=True)
    mark = mark_of(str(work))
    work.rmdir()
    removed = has_same(str(work), mark)
    work.parent.rmdir()
    (tmp_path / "other").mkdir()
    work.mkdir(parents=True)

    assert removed
    assert has_same(str(work), mark)


def test_disks_of_cloned_machines_are_not_the_same(tmp_path: Path) -> None:
    mark = mark_of(str(tmp_path))

    assert not has_same(str(tmp_path), changed(mark, kernel=True))


def test_a_network_file_system_is_the_same_by_its_inodes(tmp_path: Path) -> None:
    mark = mark_of(str(tmp_path))

    assert has_same(str(tmp_path), changed(mark, kernel=True, network=True))
    assert not has_same(str(tmp_path), changed(mark, kernel=True, network=True, inodes=1))


def test_another_disk_at_the_path_is_not_the_same(tmp_path: Path) -> None:
    boot_id, parts, source = read(mark_of(str(tmp_path)))
    parts[-1] = (parts[-1][0] + 1, *parts[-1][1:])  # a file system was mounted there

    assert not has_same(str(tmp_path), written(boot_id, parts, source))


def test_a_directory_on_a_disk_that_is_not_mounted_here_is_not_the_same(tmp_path: Path) -> None:
    work = tmp_path / "disk"
    work.mkdir()
    boot_id, parts, source = read(mark_of(str(work)))
    parts[-1] = (parts[-1][0] + 1, *parts[-1][1:])
    work.rmdir()

    assert not has_same(str(work), written(boot_id, parts, source))


@pytest.mark.parametrize("mark", ["", "x", "x 1", "x 1 y", "x 1.z y", "x , y", "x 1.2,3 y"])
def test_a_mark_that_cannot_be_read_says_nothing(tmp_path: Path, mark: str) -> None:
    assert has_same(str(tmp_path), mark)


def test_a_path_that_is_not_there_has_no_mark(tmp_path: Path) -> None:
    found: Any = mark_of(str(tmp_path / "missing"))

    assert found == ""
