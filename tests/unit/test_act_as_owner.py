"""A piece of a file that is written as its owner can be repeated: nothing lost, nothing twice."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from gnode.daemon.act_as_owner import BEGIN, become_owner, read, write
from gnode.daemon.owner_tree import pack
from gnode.supervisor.errors import LaunchError
from gnode.supervisor.privilege import PrivilegeRules


def order(path: Path, **fields: Any) -> dict[str, Any]:
    return {"path": str(path), "name": "job.o1", "uid": os.getuid(), "gid": os.getgid(), **fields}


def test_a_file_is_written_in_pieces_of_which_each_can_come_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("an older job's")

    first = write(order(path, at=BEGIN), b"one ")
    write(order(path, at=4), b"two ")
    again = write(order(path, at=4), b"two ")
    last = write(order(path, at=8, last=True), b"three")

    assert (first["end"], again["end"], last["end"]) == (4, 8, 13)
    assert path.read_text() == "one two three"


def test_a_further_attempt_is_written_behind_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("first ")

    begun = write(order(path, at=BEGIN, append=True), b"second")
    write(order(path, at=6, append=True), b"second")
    repeated = write(order(path, at=6, append=True), b"second")

    assert begun == {"path": str(path), "end": 6}
    assert repeated["end"] == 12
    assert path.read_text() == "first second"


def test_half_a_piece_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("abcde")  # of a piece "defgh" that a full disk has cut

    done = write(order(path, at=3), b"defgh")

    assert done["end"] == 8
    assert path.read_text() == "abcdefgh"


def test_what_others_have_written_behind_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("abcXYZ")

    done = write(order(path, at=3), b"def")

    assert done["end"] == 9
    assert path.read_text() == "abcXYZdef"


@pytest.mark.parametrize("there", ["ab", "abcd", "abcXYZ", "abcdef"])
def test_a_piece_that_follows_another_is_written_at_the_end_only(
    tmp_path: Path, there: str
) -> None:
    """Where the one before it is not there, or others have written; even if it looks as if."""
    path = tmp_path / "out"
    path.write_text(there)

    done = write(order(path, at=3, follows=True), b"def")

    assert done == {"path": str(path), "end": len(there)}
    assert path.read_text() == there
    path.write_text("abc")
    assert write(order(path, at=3, follows=True), b"def")["taken"] == 3


def test_a_piece_that_follows_another_and_is_there_is_not_written_again(tmp_path: Path) -> None:
    """Of what is staged out, into which nobody else writes."""
    staged = {"temporary": "1.1.0", "below": "", "mode": 0o600}
    path = tmp_path / "out"
    write(order(path, at=BEGIN, **staged), b"abc")
    write(order(path, at=3, **staged), b"def")

    again = write(order(path, at=3, follows=True, **staged), b"def")
    last = write(order(path, at=6, follows=True, last=True, **staged), b"ghi")

    assert (again["end"], again["taken"], last["taken"]) == (6, 3, 3)
    assert path.read_text() == "abcdefghi"


def test_a_host_that_has_lost_what_it_had_says_so(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("ab")

    done = write(order(path, at=5), b"fgh")

    assert done == {"path": str(path), "end": 2}
    assert path.read_text() == "ab"


def test_a_directory_gets_a_file_of_the_job_s_name(tmp_path: Path) -> None:
    for path in (tmp_path, f"{tmp_path}/"):
        write({**order(tmp_path, at=BEGIN), "path": str(path)}, b"x")

    assert [each.name for each in tmp_path.iterdir()] == ["job.o1"]


def test_t26_what_is_no_plain_file_is_not_written(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)

    for path in (pipe, link, Path("/dev/null")):
        assert write(order(path, at=BEGIN), b"x")["error"]
    assert "No such file" in str(write(order(tmp_path / "no" / "out", at=BEGIN), b"x")["error"])


def test_a_piece_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("one two")

    said, data = read(order(path, offset=-3, max_bytes=10))

    assert (said["offset"], said["size_bytes"], data) == (4, 7, b"two")


@pytest.mark.skipif(os.getuid() != 0, reason="only root could become another user")
def test_t4_nothing_is_done_as_root_or_a_system_account() -> None:
    for uid in (0, 1, 65534, 2**32 - 1):
        fields = {"user": "root", "uid": uid, "gid": 1}
        with pytest.raises(LaunchError):
            become_owner(fields, PrivilegeRules(allow_root=False, uid_min=1000))


def batch(*entries: tuple[dict[str, object], bytes]) -> bytes:
    return b"".join(pack(header, data) for header, data in entries)


def batch_order(path: Path) -> dict[str, Any]:
    return order(path, kind="batch", temporary="1.1.0")


def test_a_batch_is_written_up_to_the_entry_that_cannot_be(tmp_path: Path) -> None:
    top = tmp_path / "results"
    content = batch(
        ({"name": "", "kind": "directory"}, b""),
        ({"name": "a", "kind": "file", "mode": 0o4750}, b"one"),
        ({"name": "link", "kind": "link"}, b"a"),
        ({"name": "../outside", "kind": "file", "mode": 0o600}, b"two"),
        ({"name": "b", "kind": "file", "mode": 0o600}, b"three"),
    )

    done = write(batch_order(top), content)

    assert (done["taken"], done["path"]) == (3, f"{top}/../outside")
    assert "is not a path below it" in str(done["error"])
    assert sorted(path.name for path in top.iterdir()) == ["a", "link"]
    assert ((top / "a").read_text(), (top / "a").stat().st_mode & 0o7777) == ("one", 0o750)
    assert os.readlink(top / "link") == "a"


@pytest.mark.parametrize("content", [b"no batch", b'{"name": "a", "count": "x"}\n', b"[]\n"])
def test_a_batch_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    done = write(batch_order(tmp_path / "results"), content)

    assert (done["taken"], bool(done["error"])) == (0, True)


def test_a_file_of_a_batch_replaces_one_and_no_directory(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "here").mkdir()
    content = batch(
        ({"name": "old", "kind": "file", "mode": 0o600}, b"new"),
        ({"name": "here", "kind": "file", "mode": 0o600}, b"new"),
    )

    done = write(batch_order(tmp_path), content)

    assert (done["taken"], done["path"]) == (1, f"{tmp_path}/here")
    assert (tmp_path / "old").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "old"]


def test_nothing_is_left_of_a_file_that_is_given_up(tmp_path: Path) -> None:
    """Given up in words, or an attempt before it was; one for which there is no room yet stays."""

    def staged(attempt: int, **fields: Any) -> dict[str, Any]:
        return order(tmp_path / "out", temporary=f"1.{attempt}.0", mode=0o600, **fields)

    write(staged(1, at=BEGIN), b"abc")
    write(staged(2, at=BEGIN), b"abc")
    assert [path.name[:12] for path in tmp_path.iterdir()] == [".gsched-1.2."]

    assert "error" not in write(staged(2, drops=True), b"")
    assert list(tmp_path.iterdir()) == []
    assert "error" not in write(staged(2, drops=True), b""), "twice is as once"
    write(order(tmp_path / "no" / "out", temporary="1.1.0", drops=True, makes=1), b"")
    assert list(tmp_path.iterdir()) == [], "no directory is made for that"


def test_a_file_that_is_too_large_for_its_place_is_not_left_there(tmp_path: Path) -> None:
    """An error that stays: where files may have 1 MiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        fields = {"temporary": "1.1.0", "mode": 0o600}
        write(order(tmp_path / "out", at=BEGIN, **fields), bytes(1 << 20))
        done = write(order(tmp_path / "out", at=1 << 20, **fields), b"more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)

    assert "File too large" in str(done["error"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("top", "whole"), [("directory", False), ("file", True)])
def test_it_is_known_whether_anything_else_of_a_tree_can_be_written(
    tmp_path: Path, top: str, *, whole: bool
) -> None:
    path = tmp_path / "results"
    if top == "file":
        path.write_text("")
    else:
        (path / "a").mkdir(parents=True)

    done = write(batch_order(path), batch(({"name": "a", "kind": "file", "mode": 0o600}, b"x")))

    assert (done["taken"], done["whole"]) == (0, whole)
