"""A tree is read in pieces on one host, and made again on another: in full, and nowhere else."""

import base64
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnode.daemon.owner_tree import BEGIN, DEPTH_MAX, read_tree, unpack
from gnode.steps import stage_in
from gnode.steps.stage_in import StageError, TreeCopy
from gsched.model.limits import MAX_DELIVERED_BYTES, MAX_DELIVERED_FILES


def piece(top: Path, cursor: tuple[str, int], max_bytes: int) -> bytes:
    """Return what a host reads of a tree after a cursor."""
    after, offset = cursor
    below = base64.b64encode(os.fsencode(after)).decode()
    return read_tree(str(top), {"below": below, "offset": offset, "max_bytes": max_bytes})


def entries(read: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    return unpack(read)


def copied(top: Path, to: Path, max_bytes: int = 1000) -> int:
    """Copy a tree and return how many pieces that took."""
    copy, count = TreeCopy(str(to), "1.1"), 0
    while not copy.is_complete:
        copy.take_piece(entries(piece(top, copy.cursor, max_bytes)))
        count += 1
    return count


def keep_changing(top: Path, copy: TreeCopy) -> None:
    """Copy a file that changes after each piece."""
    for number in range(9):
        copy.take_piece(entries(piece(top, copy.cursor, 1000)))
        top.write_bytes(b"%d" % number * 3000)


def take_all(copy: TreeCopy, told: list[dict[str, Any]]) -> None:
    """Take entries, with as many bytes as they count."""
    for header in told:
        copy.take(header, b"/tmp" if header["kind"] == "link" else b"x" * header["count"])


def entry(name: str, kind: str = "file", data: bytes = b"", **fields: object) -> dict[str, Any]:
    size = {"size": len(data), "at": 0, "mode": 0o644, "stamp": "1"} if kind == "file" else {}
    return {"name": name, "kind": kind, "count": len(data), **size, **fields}


@pytest.mark.parametrize("max_bytes", [1, 7, 250, 1000, 10**6])
def test_however_small_the_pieces_are_all_is_there(tmp_path: Path, max_bytes: int) -> None:
    top = tmp_path / "from"
    for name in ("b/c/d", "b-/x", "a", "z/e", "b/c.d", "\n"):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 10)
    (top / "empty").mkdir()
    (top / "link").symlink_to("b/c")

    count = copied(top, tmp_path / "to", max_bytes)

    found = {
        str(path.relative_to(tmp_path / "to")): path.read_bytes() if path.is_file() else b""
        for path in (tmp_path / "to").rglob("*")
    }
    assert found == {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else b""
        for path in top.rglob("*")
    }
    assert os.readlink(tmp_path / "to" / "link") == "b/c"
    assert (count == 1) == (max_bytes == 10**6)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 5000, b"x" * 1000])
def test_a_single_file_replaces_what_is_there_through_a_link(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "from").write_bytes(content)
    (tmp_path / "real").write_text("older, and longer than the new one")
    (tmp_path / "to").symlink_to(tmp_path / "real")

    copied(tmp_path / "from", tmp_path / "to")

    assert (tmp_path / "real").read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["from", "real", "to"]


def test_a_file_that_changes_while_it_is_copied_is_begun_again(tmp_path: Path) -> None:
    """Three times; then it is an error, and what was there stays."""
    top, to = tmp_path / "from", tmp_path / "to"
    top.write_bytes(b"1" * 3000)
    to.write_text("before")
    copy, changes = TreeCopy(str(to), "1.1"), iter((b"2" * 3000, b"3" * 3000))
    while not copy.is_complete:
        copy.take_piece(entries(piece(top, copy.cursor, 1000)))
        if copy.cursor == ("", 1000) and (change := next(changes, b"")):
            assert to.read_text() == "before"
            top.write_bytes(change)
    assert to.read_bytes() == b"3" * 3000

    copy = TreeCopy(str(to), "1.1")
    with pytest.raises(StageError, match="to changes while it is copied"):
        keep_changing(top, copy)
    assert to.read_bytes() == b"3" * 3000


@pytest.mark.parametrize("size", [1, 100, 1200, 2100])
def test_a_file_that_is_cut_while_it_is_copied_is_not_passed_over(
    tmp_path: Path, size: int
) -> None:
    """The piece that tells of the change has also what follows the file, and the end."""
    top, to = tmp_path / "from", tmp_path / "to"
    top.mkdir()
    (top / "a").write_bytes(b"1" * 3000)
    (top / "b").write_bytes(b"b")
    copy = TreeCopy(str(to), "1.1")
    copy.take_piece(entries(piece(top, copy.cursor, 2500)))
    assert copy.cursor[0] == "a"
    (top / "a").write_bytes(b"2" * size)
    while not copy.is_complete:
        copy.take_piece(entries(piece(top, copy.cursor, 2500)))

    assert {path.name: path.read_bytes() for path in to.iterdir()} == {"a": b"2" * size, "b": b"b"}


@pytest.mark.parametrize("following", [{"end": True}, entry("b", data=b"b")])
def test_a_file_that_has_not_arrived_in_full_is_an_error(
    tmp_path: Path, following: dict[str, Any]
) -> None:
    copy = TreeCopy(str(tmp_path / "to"), "1.1")
    copy.take(entry("", "directory"), b"")
    copy.take(entry("a", data=b"x", size=2), b"x")

    with pytest.raises(StageError, match="a has not arrived in full"):
        copy.take(following, b"b")


@pytest.mark.parametrize(
    "told",
    [
        [entry("../x", data=b"x")],
        [entry("/etc/x", data=b"x")],
        [entry("", "directory"), entry("..", "directory")],
        [entry("", "directory"), entry("a/../../x", data=b"x")],
        [entry("", "directory"), entry("none/x", data=b"x")],
        [entry("", "directory"), entry("l", "link", b"/tmp"), entry("l/x", data=b"x")],
        [entry("", "directory"), entry("", "link", b"/tmp")],
        [entry("x", data=b"x", at=5)],
        [entry("", size=MAX_DELIVERED_BYTES + 1)],
    ],
)
def test_a_host_that_was_taken_over_writes_nowhere_else(
    tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    copy = TreeCopy(str(tmp_path / "to"), "1.1")

    with pytest.raises(StageError):
        take_all(copy, told)

    assert [path.name for path in tmp_path.rglob("x")] == []


def test_nothing_is_left_of_a_copy_that_is_given_up(tmp_path: Path) -> None:
    """Of the attempt itself, and of one before it that was killed."""
    top, to = tmp_path / "from", tmp_path / "to"
    top.write_bytes(b"1" * 3000)
    first, second = TreeCopy(str(to), "7.1"), TreeCopy(str(to), "7.2")
    first.take_piece(entries(piece(top, first.cursor, 1000)))
    (left,) = tmp_path.glob(".gsched-7.1-*")
    first.abandon()
    assert os.listdir(tmp_path) == ["from"]

    left.write_text("of one that was killed")
    second.take_piece(entries(piece(top, second.cursor, 1000)))
    assert not left.exists()
    second.abandon()
    assert os.listdir(tmp_path) == ["from"]


def test_a_link_that_is_there_already_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "from" / "d").mkdir(parents=True)
    (tmp_path / "from" / "d" / "x").write_text("new")
    (tmp_path / "other").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "d").symlink_to(tmp_path / "other")

    with pytest.raises(StageError, match="is there already, and is no directory"):
        copied(tmp_path / "from", tmp_path / "to")

    assert list((tmp_path / "other").iterdir()) == []


def test_nothing_is_read_outside_of_a_tree(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    top = tmp_path / "top"
    top.mkdir()
    (top / "out").symlink_to(tmp_path)

    for below in ("../secret", "out/secret", "out", "", "/etc/passwd"):
        with pytest.raises(OSError, match=r"\w"):
            piece(top, (below, 0), 1000)
    assert b"secret" not in piece(top, ("", BEGIN), 1000).replace(b"secret/", b"")


def test_a_tree_that_is_too_deep_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * (DEPTH_MAX + 1))).mkdir(parents=True)

    with pytest.raises(OSError, match="directories deep"):
        piece(tmp_path, ("", BEGIN), 10**6)


def test_the_limits_are_those_of_what_returns(tmp_path: Path) -> None:
    assert (stage_in.FILES_MAX, stage_in.BYTES_MAX) == (MAX_DELIVERED_FILES, MAX_DELIVERED_BYTES)
    copy = TreeCopy(str(tmp_path / "to"), "1.1")
    copy.take(entry("", "directory"), b"")
    for number in range(MAX_DELIVERED_FILES):
        copy.take(entry(str(number), "link"), b"/tmp")
    with pytest.raises(StageError, match="has more than 10000 files"):
        copy.take(json.loads(json.dumps(entry("x"))), b"")


def test_a_name_that_has_come_since_the_last_piece_is_seen(tmp_path: Path) -> None:
    """Names of a directory are kept between pieces until it changes."""
    top = tmp_path / "top"
    top.mkdir()
    for name in ("a", "c"):
        (top / name).write_text(name)
    old_s = time.time() - 60.0
    os.utime(top, (old_s, old_s))

    def names() -> list[object]:
        read = unpack(piece(top, ("a", BEGIN), 1000))
        return [header["name"] for header, _ in read if "name" in header]

    def listings(expected: list[str]) -> int:
        """Read it three times; return how often it was listed."""
        count = 0

        def look(_: object, event: str, called: object) -> None:
            nonlocal count
            count += event == "c_call" and called is os.listdir

        sys.setprofile(look)
        try:
            found = [names() for _ in range(3)]
        finally:
            sys.setprofile(None)
        assert found == [expected] * 3
        return count

    assert listings(["c"]) == 1
    (top / "b").write_text("b")
    assert listings(["b", "c"]) == 3, "it has changed just now"
    os.utime(top, (old_s + 1.0, old_s + 1.0))
    assert listings(["b", "c"]) == 1
