"""Files that are flushed in the background."""

import errno
import os
from pathlib import Path

import pytest

from gsched.elastic.flushing import Flush

SIZES = (0, 5, 16 << 20, (40 << 20) + 3)  # of no piece, a part of one, a whole one, several


def made(directory: Path) -> list[str]:
    paths = []
    for size in SIZES:
        path = directory / str(size)
        with path.open("wb") as file:
            file.truncate(size)
            file.write(b"x" * min(size, 100))
        paths.append(str(path))
    return paths


def test_all_files_are_flushed_and_then_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are renamed meanwhile; no descriptor is left."""
    flushed: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    directory = tmp_path / "before"
    directory.mkdir()
    paths = made(directory)
    open_before = len(os.listdir("/proc/self/fd"))
    done: list[int] = []
    flush = Flush(paths, lambda: done.append(len(flushed)))
    directory.rename(tmp_path / "after")

    flush.wait()

    assert flush.fault() is None
    assert flushed == list(SIZES)
    assert done == [len(SIZES)]
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_what_the_disk_says_is_raised_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done: list[int] = []
    flush = Flush(made(tmp_path), lambda: done.append(1))

    with pytest.raises(OSError, match="No space left"):
        flush.wait()
    assert "No space left" in (flush.fault() or "")
    assert done == []


def test_a_file_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Flush([*made(tmp_path), str(tmp_path / "none")])
