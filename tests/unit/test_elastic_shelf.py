"""Manifests and the directory of checkpoints, on a real file system, without torch."""

import hashlib
import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.elastic.errors import BadCheckpointError
from gsched.elastic.manifest import (
    File,
    Manifest,
    check_file,
    describe_file,
    read_manifest,
    share_of,
)
from gsched.elastic.samples import Position
from gsched.elastic.shelf import Shelf, ShelfEntry

PART_BYTES = 64 << 20  # see digest_file


def manifest(step: int = 5, attempt: int = 1, files: tuple[File, ...] = ()) -> Manifest:
    return Manifest(
        position=Position(epoch=1, offset=8, step=step, samples_done=step * 8),
        world_size=2,
        job=7,
        attempt=attempt,
        samples={"count": 100, "shuffle": True},
        files=files,
    )


def publish(
    shelf: Shelf, step: int = 5, attempt: int = 1, *, flush_later: bool = False
) -> ShelfEntry:
    """Publish a checkpoint of one file."""
    unfinished = shelf.begin(attempt)
    (pathlib.Path(unfinished) / "data").write_bytes(b"x" * step)
    found = manifest(step, attempt, (describe_file(unfinished, "data"),))
    return shelf.publish(unfinished, found, flush_later=flush_later)


def names(shelf: Shelf) -> list[str]:
    return sorted(os.listdir(shelf.path))


def test_manifest_is_read_as_it_was_written() -> None:
    written = manifest(files=(File(name="a", size_bytes=3, sha256="00"),))

    assert Manifest.from_bytes(written.to_bytes()) == written
    assert written.size_bytes == 3


@given(st.data())
def test_any_altered_byte_of_a_manifest_is_noticed(data: st.DataObject) -> None:
    """Blanks that JSON does not care about aside: those change nothing."""
    written = manifest(files=(File(name="a", size_bytes=3, sha256="00"),))
    content = bytearray(written.to_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = Manifest.from_bytes(bytes(content))
    except BadCheckpointError:
        return
    assert found == written


@given(st.integers(0, 600))
def test_a_cut_manifest_is_noticed(length: int) -> None:
    content = manifest(files=(File(name="a", size_bytes=3, sha256="00"),)).to_bytes()
    if length >= len(content.rstrip()):
        return
    with pytest.raises(BadCheckpointError):
        Manifest.from_bytes(content[:length])


def test_manifest_of_another_version_says_so() -> None:
    other = Manifest(
        position=Position(), world_size=1, job=0, attempt=0, samples={}, files=(), version=1
    )
    with pytest.raises(
        BadCheckpointError, match="is of version 1, and this gsched reads version 3"
    ):
        Manifest.from_bytes(other.to_bytes())


def test_a_large_file_has_the_digest_of_its_parts(tmp_path: pathlib.Path) -> None:
    """One altered byte in any of them is seen, and so is a part that is in another place."""
    path = tmp_path / "large"
    begins = (0, PART_BYTES, 2 * PART_BYTES)
    with path.open("wb") as file:  # of holes: none of it is written
        file.truncate(2 * PART_BYTES + 3)
        for begin in begins:
            file.seek(begin)
            file.write(bytes([begin // PART_BYTES + 1]))
    described = describe_file(str(tmp_path), "large")
    check_file(str(tmp_path), described)
    parts = [b"\1" + bytes(PART_BYTES - 1), b"\2" + bytes(PART_BYTES - 1), b"\3\0\0"]
    digests = [hashlib.sha256(part).digest() for part in parts]
    assert described.sha256 == hashlib.sha256(b"".join(digests)).hexdigest()

    for begin in (0, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 2):
        _flip(path, begin)
        with pytest.raises(BadCheckpointError, match="altered"):
            check_file(str(tmp_path), described)
        _flip(path, begin)
    for begin, value in zip(begins, (2, 1, 3), strict=True):
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes([value]))
    with pytest.raises(BadCheckpointError, match="altered"):
        check_file(str(tmp_path), described)


def _flip(path: pathlib.Path, at: int) -> None:
    """Change one bit of a file, or change it back."""
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 1]))


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 5))
def test_ranks_share_the_files_among_them(sizes: list[int], world_size: int) -> None:
    files = [File(name=str(i), size_bytes=size, sha256="") for i, size in enumerate(sizes)]
    shares = [share_of(files, rank, world_size) for rank in range(world_size)]

    everything = [file for share in shares for file in share]
    assert sorted(file.name for file in everything) == sorted(file.name for file in files)
    loads = [sum(file.size_bytes for file in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_checkpoint_appears_whole_under_its_name(tmp_path: pathlib.Path) -> None:
    shelf = Shelf(str(tmp_path / "new" / "checkpoints"))
    assert shelf.entries() == []
    entry = publish(shelf, step=5, attempt=3)

    assert entry.name == "checkpoint-000001.step-000000005.attempt-3"
    assert names(shelf) == [entry.name]
    found = read_manifest(entry.path)
    assert found.position.step == 5
    for file in found.files:
        check_file(entry.path, file)
    assert os.stat(shelf.path).st_mode & 0o777 == 0o700


def test_newest_is_the_one_published_last_not_the_one_of_most_steps(
    tmp_path: pathlib.Path,
) -> None:
    """A training that fell back publishes fewer steps than the bad one that it left."""
    shelf = Shelf(str(tmp_path))
    publish(shelf, step=30, attempt=2)
    later = publish(shelf, step=20, attempt=3)

    assert shelf.entries()[0] == later


def test_two_saves_never_meet_in_one_directory(tmp_path: pathlib.Path) -> None:
    """A leftover at the same step, of the same attempt, is removed and not written into."""
    shelf = Shelf(str(tmp_path))
    first = shelf.begin(1)
    (pathlib.Path(first) / "__0_0.distcp").touch()
    second = shelf.begin(1)

    assert second != first
    assert os.listdir(second) == []
    assert names(shelf) == [os.path.basename(second)]


def test_i12_a_good_checkpoint_goes_only_after_two_newer_ones_are_proven(
    tmp_path: pathlib.Path,
) -> None:
    """The files of another process are not proven before they were read."""
    old = [publish(Shelf(str(tmp_path)), step) for step in (1, 2, 3)]
    shelf = Shelf(str(tmp_path))
    assert shelf.tidy() == []
    fourth = publish(shelf, 4)
    assert shelf.tidy() == []
    assert len(shelf.entries()) == 4
    shelf.prove(old[1])

    assert sorted(shelf.tidy()) == [old[0].name, old[2].name]
    assert shelf.entries() == [fourth, old[1]]
    fifth = publish(shelf, 5)
    assert shelf.tidy() == [old[1].name]
    assert shelf.entries() == [fifth, fourth]


def test_i15_what_an_attempt_has_loaded_stays_until_two_newer_ones_are_proven(
    tmp_path: pathlib.Path,
) -> None:
    """It fell back to the older one, as the newest is bad, and saves anew: that goes first."""
    loaded, bad = (publish(Shelf(str(tmp_path)), step) for step in (1, 2))
    shelf = Shelf(str(tmp_path))
    shelf.prove(loaded)
    shelf.note_load(loaded)
    assert shelf.tidy() == []
    third = publish(shelf, 3)

    assert shelf.tidy() == [bad.name]
    assert shelf.entries() == [third, loaded]
    assert shelf.loads(loaded) == 1
    publish(shelf, 4)
    assert shelf.tidy() == [loaded.name]
    assert shelf.loads(loaded) == 0


def test_i12_of_a_training_that_is_over_the_newest_proven_one_stays(
    tmp_path: pathlib.Path,
) -> None:
    """What is not known to be good makes nothing superfluous; and 0 keeps none."""
    publish(Shelf(str(tmp_path)), 1)
    shelf = Shelf(str(tmp_path))
    assert shelf.tidy(1) == []
    second = publish(shelf, 2)
    third = publish(Shelf(str(tmp_path)), 3)  # of another process

    assert len(shelf.tidy(1)) == 1
    assert shelf.entries() == [third, second]
    assert len(shelf.tidy(0)) == 2
    assert names(shelf) == []


def test_loads_are_counted_until_a_step_is_done(tmp_path: pathlib.Path) -> None:
    shelf = Shelf(str(tmp_path))
    entry = publish(shelf)
    counts = [shelf.loads(entry)]
    for _ in range(2):
        Shelf(str(tmp_path)).note_load(entry)
        counts.append(shelf.loads(entry))
    shelf.forget_loads(entry)

    assert [*counts, shelf.loads(entry)] == [0, 1, 2, 0]
    assert names(shelf) == [entry.name]


def test_what_is_flushed_later_is_marked_until_it_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for other processes; nothing that it needs is flushed before."""
    shelf = Shelf(str(tmp_path))
    assert not shelf.has_flushed()
    older = publish(shelf)
    assert shelf.has_flushed()
    assert not Shelf(str(tmp_path)).has_flushed()  # which has proven nothing
    flushed: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    newer = publish(shelf, flush_later=True)
    other = Shelf(str(tmp_path))
    other.note_load(newer)

    assert flushed == []
    assert other.is_unflushed(newer)
    assert not other.is_unflushed(older)
    assert other.loads(newer) == 1
    assert shelf.entries() == [newer, older]
    other.prove(newer)
    assert not other.has_flushed()
    other.set_flushed(newer)
    assert other.has_flushed()
    assert not shelf.is_unflushed(newer)
    at = (f"{newer.path}/manifest.json", newer.path, str(tmp_path))
    assert flushed == [os.stat(path).st_ino for path in at]


def test_what_did_not_get_to_the_disk_makes_nothing_superfluous(tmp_path: pathlib.Path) -> None:
    """Its mark goes with it, when there are two that did."""
    shelf = Shelf(str(tmp_path))
    first = publish(shelf, 1)
    lost = publish(shelf, 2, flush_later=True)
    shelf.distrust(lost)
    assert shelf.tidy() == []
    third = publish(shelf, 3)

    assert shelf.tidy() == [lost.name]
    assert names(shelf) == [first.name, third.name]
