"""What a daemon may act on: only what nobody but root and itself could have made or changed."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gsched import trust
from gsched.trust import UntrustedError
from tests.support.processes import attempts

OTHER = 54321

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")


@pytest.fixture
def top() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gsched-trust-") as made:
        yield Path(made)


def give(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def a_file(top: Path) -> Path:
    path = top / "a" / "b" / "file"
    path.parent.mkdir(parents=True)
    path.write_text("content")
    return path


def as_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_what_is_ours_alone_is_read(top: Path) -> None:
    path = a_file(top)

    fd = trust.open_file(str(path))

    assert os.read(fd, 100) == b"content"
    os.close(fd)
    trust.check_directory(str(path.parent))
    trust.check_way(str(path.parent / "not" / "there"))
    trust.check_configuration(str(path))


def opens(path: Path) -> bool:
    try:
        os.close(trust.open_file(str(path)))
    except UntrustedError:
        return False
    return True


@root_only
def test_the_end_of_a_way_is_looked_at_each_time(top: Path) -> None:
    """Also right after the way was found in order."""
    path = a_file(top)
    other = path.parent.with_name("c")
    other.mkdir()
    (other / "file").write_text("other")
    give(other)
    assert opens(path)
    path.parent.rename(path.parent.with_name("b-before"))
    path.parent.symlink_to("c")
    assert not opens(path)
    path.parent.unlink()
    path.parent.with_name("b-before").rename(path.parent)
    assert opens(path)
    path.parent.parent.chmod(0o777)
    assert not opens(path)


@root_only
def test_another_directory_in_the_place_of_one_is_walked_to_anew(top: Path) -> None:
    """One of another user's, say, that only looks like it."""
    path = a_file(top)
    assert opens(path)
    way = path.parent.parent
    way.rename(way.with_name("before"))
    path.parent.mkdir(parents=True)
    path.write_text("other")
    assert opens(path)
    give(way)
    assert not opens(path)


@root_only
def test_a_change_far_up_the_way_is_noticed_soon(top: Path) -> None:
    """The way counts for a moment only; who can change it then is root."""
    (top / "far").mkdir()
    path = a_file(top / "far")
    assert opens(path)
    (top / "far").chmod(0o777)
    assert any(not opens(path) for _ in attempts(20.0))


def test_no_descriptor_is_left_open(top: Path) -> None:
    path = a_file(top)
    path.with_name("link").symlink_to("file")
    before = os.listdir("/proc/self/fd")
    for name in ("file", "link", "none"):
        for _ in range(3):
            try:
                os.close(trust.open_file(str(path.with_name(name))))
            except OSError:
                continue
    trust.check_directory(str(path.parent))
    trust.check_configuration(str(path.with_name("link")))

    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: os.link(path, path.with_name("other")), "has another name"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), "is a symbolic link"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a regular file"),
        (as_a_pipe, "is not a regular file"),
        (lambda path: path.chmod(0o666), "can be written by others (mode 0666)"),
        (lambda path: path.parent.chmod(0o777), "can be written by others (mode 0777)"),
        (lambda path: path.parent.chmod(0o1777), "can be written by others (mode 1777)"),
    ],
    ids=["hard link", "link", "directory", "pipe", "mode", "directory's mode", "sticky"],
)
def test_a_file_that_others_could_have_made_is_refused(
    top: Path, spoil: Callable[[Path], object], words: str
) -> None:
    path = a_file(top)
    spoil(path)

    with pytest.raises(UntrustedError) as error:
        trust.open_file(str(path))

    assert words in str(error.value)
    assert error.value.hint


def test_what_is_not_there_is_not_a_matter_of_trust(top: Path) -> None:
    with pytest.raises(FileNotFoundError):
        trust.open_file(str(top / "none"))
    with pytest.raises(FileNotFoundError):
        trust.check_directory(str(top / "none"))
    trust.check_configuration(str(top / "none"))


@root_only
@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (give, "a/b/file"),
        (lambda path: give(path.parent), "a/b"),
        (lambda path: give(path.parent.parent), "a"),
        (lambda path: path.parent.parent.chmod(0o770), "a"),
        (lambda path: path.parent.parent.chmod(0o757), "a"),
    ],
)
def test_for_root_the_whole_way_counts(
    top: Path, spoil: Callable[[Path], None], where: str
) -> None:
    path = a_file(top)
    spoil(path)

    for check in (trust.check_configuration, lambda path: os.close(trust.open_file(path))):
        with pytest.raises(UntrustedError) as error:
            check(str(path))

        assert error.value.path == str(top / where)


@root_only
def test_a_sticky_directory_on_the_way_is_no_harm(top: Path) -> None:
    """As /tmp is: others can make entries there, but not rename ours."""
    path = a_file(top)
    path.parent.parent.chmod(0o1777)

    os.close(trust.open_file(str(path)))


@root_only
def test_links_of_root_are_followed_and_links_of_others_are_not(top: Path) -> None:
    path = a_file(top)
    mine, theirs = top / "mine", top / "theirs"
    mine.symlink_to(path.parent)
    theirs.symlink_to("a/../a/b")

    trust.check_directory(str(mine))
    trust.check_directory(str(theirs))
    os.close(trust.open_file(str(mine / "file")))
    give(theirs)

    for what in (theirs, theirs / "file"):
        with pytest.raises(UntrustedError) as error:
            trust.check_configuration(str(what))
        assert error.value.path == str(theirs)


@root_only
def test_a_link_does_not_hide_the_way_behind_it(top: Path) -> None:
    path = a_file(top)
    give(path.parent.parent)
    (top / "mine").symlink_to(path.parent)

    with pytest.raises(UntrustedError) as error:
        trust.check_directory(str(top / "mine"))

    assert error.value.path == str(top / "a")


@root_only
def test_links_that_go_round_end(top: Path) -> None:
    (top / "one").symlink_to("two")
    (top / "two").symlink_to("one")

    with pytest.raises(OSError, match="Too many levels"):
        trust.check_directory(str(top / "one" / "x"))


@root_only
def test_a_way_is_checked_as_far_as_it_is_there(top: Path) -> None:
    give(top)

    with pytest.raises(UntrustedError):
        trust.check_way(str(top / "not" / "there"))
