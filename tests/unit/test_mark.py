"""The high-water mark survives what may befall a file that is written after every commit."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.errors import StorageError
from gschedd.store.mark import SLOT_BYTES, Mark, MarkFile


def mark(seq: int, epoch: int = 1) -> Mark:
    return Mark(cluster="c" * 32, epoch=epoch, seq=seq, next_job=seq + 1)


def write(path: Path, *marks: Mark) -> None:
    """Write marks, each by a program of its own that looks first, as a head does."""
    for each in marks:
        file = MarkFile(str(path))
        file.read()
        file.write(each)
        file.close()


def read(path: Path) -> Mark | None:
    file = MarkFile(str(path))
    found = file.read()
    file.close()
    return found


def test_a_new_file_holds_no_mark(tmp_path: Path) -> None:
    """And only its owner may read it."""
    path = tmp_path / "mark"

    assert read(path) is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_newest_mark_counts(tmp_path: Path) -> None:
    """Also after many, and an epoch counts more than a number."""
    path = tmp_path / "mark"
    write(path, *(mark(seq) for seq in range(5)))
    assert read(path) == mark(4)

    write(path, mark(2, epoch=2))

    assert read(path) == mark(2, epoch=2)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_slot_leaves_the_other(tmp_path: Path, count: int, slot: int) -> None:
    """The mark before the torn one is still there, and the next write does not overwrite it."""
    path = tmp_path / "mark"
    write(path, *(mark(seq) for seq in range(count)))
    tear(path, slot)
    left = read(path)

    file = MarkFile(str(path))
    file.read()
    file.write(mark(9))
    file.close()
    if left is not None:
        assert left.seq in {count - 1, count - 2}
        other = 1 - slot
        tear(path, slot)
        assert read(path) == left, f"slot {other} held the only whole mark"


def tear(path: Path, slot: int) -> None:
    """Let a write stop half way."""
    content = bytearray(path.read_bytes().ljust(2 * SLOT_BYTES, b" "))
    content[slot * SLOT_BYTES + 20 : slot * SLOT_BYTES + 40] = b"\0" * 20
    path.write_bytes(content)


@given(st.binary(max_size=600))
def test_any_content_is_a_mark_or_none(content: bytes) -> None:
    """Nothing made up passes as a mark."""
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()

        assert read(Path(file.name)) is None


def test_a_line_with_a_good_digest_but_no_mark_in_it_is_none(tmp_path: Path) -> None:
    """Of another version, say."""
    import zlib

    body = b'{"what":1}'
    path = tmp_path / "mark"
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))

    assert read(path) is None


def test_what_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(StorageError, match="cannot be opened"):
        MarkFile(str(tmp_path))
    full = MarkFile("/dev/full")

    with pytest.raises(StorageError, match="cannot be written"):
        full.write(mark(1))
    full.close()
