"""What a rank proves of a checkpoint while it waits for its launch."""

import os
from pathlib import Path

import pytest

from gsched.elastic import manifest
from gsched.elastic.ahead import ProofAhead
from gsched.elastic.errors import BadCheckpointError
from gsched.elastic.manifest import File, describe_file
from tests.support.cluster import wait_until
from tests.support.processes import PATIENCE_S

NAME = "__0_0.distcp"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the inodes of the files that digests were made of."""
    found: list[int] = []
    digest_of = manifest._digest_of_part

    def watched(descriptor: int, begin: int) -> bytes:
        digest = digest_of(descriptor, begin)
        found.append(os.fstat(descriptor).st_ino)
        return digest

    monkeypatch.setattr(manifest, "_digest_of_part", watched)
    return found


def written(directory: Path, content: bytes = b"tensors") -> File:
    """Write a checkpoint as a save does: what is last says that all tensors are there."""
    directory.mkdir()
    (directory / NAME).write_bytes(content)
    (directory / ".metadata").write_bytes(b"")
    return describe_file(str(directory), NAME)


def wait_until_read(read: list[int], count: int) -> None:
    wait_until(lambda: len(read) >= count, PATIENCE_S, what="the proof ahead")


def test_what_appears_while_it_waits_is_not_read_again(tmp_path: Path, read: list[int]) -> None:
    """Under the name that the checkpoint gets later, too."""
    ahead = ProofAhead(str(tmp_path), 0, 1)
    file = written(tmp_path / "unfinished-1-x")
    wait_until_read(read, 2)
    published = tmp_path / "checkpoint-000001.step-000000001.attempt-1"
    (tmp_path / "unfinished-1-x").rename(published)

    ahead.check(str(published), file)

    assert len(read) == 2  # the first is of `written`
    with pytest.raises(BadCheckpointError, match="altered"):
        ahead.check(str(published), File(name=NAME, size_bytes=file.size_bytes, sha256="00"))
    assert len(read) == 2


@pytest.mark.parametrize("content", [b"another", b"longer than before"])
def test_what_is_changed_later_is_read_again_and_refused(
    tmp_path: Path, read: list[int], content: bytes
) -> None:
    ahead = ProofAhead(str(tmp_path), 0, 1)
    file = written(tmp_path / "unfinished-1-x")
    wait_until_read(read, 2)
    path = tmp_path / "unfinished-1-x" / NAME
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    with pytest.raises(BadCheckpointError, match=r"altered|should have 7"):
        ahead.check(str(path.parent), file)


def test_what_was_there_before_and_what_is_not_complete_is_left_alone(
    tmp_path: Path, read: list[int]
) -> None:
    """And so is what is no checkpoint; all of it is proven when it is loaded."""
    older = tmp_path / "checkpoint-000001.step-000000001.attempt-1"
    file = written(older)
    ahead = ProofAhead(str(tmp_path), 0, 1)
    (tmp_path / "unfinished-1-x").mkdir()
    (tmp_path / "unfinished-1-x" / NAME).write_bytes(b"half")
    other = written(tmp_path / "other")
    newer = written(tmp_path / "unfinished-1-y", b"newer")
    wait_until_read(read, 4)

    ahead.check(str(older), file)
    ahead.check(str(tmp_path / "other"), other)
    ahead.check(str(tmp_path / "unfinished-1-y"), newer)

    assert len(read) == 6  # three when written, one ahead, two when checked


def test_each_rank_reads_its_share(tmp_path: Path, read: list[int]) -> None:
    """The same files that it has to prove when they are loaded."""
    ranks = [ProofAhead(str(tmp_path), rank, 2) for rank in range(2)]
    directory = tmp_path / "unfinished-1-x"
    directory.mkdir()
    for number in range(4):
        (directory / f"__0_{number}.distcp").write_bytes(b"x" * (number + 1))
    (directory / ".metadata").touch()
    wait_until_read(read, 4)
    files = [describe_file(str(directory), f"__0_{number}.distcp") for number in range(4)]
    for rank, ahead in enumerate(ranks):
        for file in manifest.share_of(files, rank, 2):
            ahead.check(str(directory), file)

    assert len(read) == 8
    assert len(set(read[:4])) == 4


def test_a_directory_that_is_not_there_yet_is_no_fault(tmp_path: Path, read: list[int]) -> None:
    ahead = ProofAhead(str(tmp_path / "later"), 0, 1)
    (tmp_path / "later").mkdir()
    file = written(tmp_path / "later" / "unfinished-1-x")
    wait_until_read(read, 2)

    ahead.check(str(tmp_path / "later" / "unfinished-1-x"), file)
    (tmp_path / "later" / "unfinished-1-x" / NAME).unlink()
    with pytest.raises(BadCheckpointError, match="No such file"):
        ahead.check(str(tmp_path / "later" / "unfinished-1-x"), file)
