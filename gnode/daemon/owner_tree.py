"""Trees of files, read and written a piece at a time as their owner: for `act_as_owner`.

A tree is what a user has named: a file or a directory, through symbolic links if there are any.
Below it none is followed: links are entries of their own, and an entry that is exchanged for a link
meanwhile is refused. So nothing outside of the tree is read or written, whatever a node sends.

A piece of a tree is a row of entries in the order of a walk by the bytes of names, a directory
before what is in it. Each is a line of JSON, then the bytes that it counts:

* ``name``: the path below the tree, ``""`` of its top; ``kind``: file, directory or link;
* ``mode``: of a file or directory; hosts of an older version do not tell that of a directory;
* ``size``, ``at`` and ``count``: of a file, where the bytes begin in it, and how many;
* ``stamp``: changes when the file does; ``count`` alone: of a link, where it leads;
* ``end``: nothing follows.

A listing has ``name``, ``kind`` and ``size`` of each entry only. A batch that is written is a row
of entries, too, that are each there in full. Sockets, pipes and devices are left out.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Self

BEGIN: Final = -1  # as in gsched.protocol.deliveries
ENTRIES_MAX: Final = 1000  # of a piece
BATCH_ENTRIES: Final = 500  # of a batch: as many descriptors are open
DEPTH_MAX: Final = 32  # as many descriptors are open
ATTEMPTS_MAX: Final = 20  # of which files that are not complete are looked for
MODES: Final = 0o777  # of a file's mode, what is copied
_HEADER_BYTES: Final = 200
_ESCAPED: Final = 6  # of a byte in JSON
_TRIES: Final = 3
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KEPT_NAMES: Final = 20_000
_SETTLED_NS: Final = 2_000_000_000
_known: dict[tuple[int, int], tuple[int, list[str]]] = {}  # names by directory, and its change


def below_of(order: dict[str, Any]) -> str:
    """Return the path below the tree that an order names."""
    return os.fsdecode(base64.b64decode(order.get("below", "")))


def read_tree(path: str, order: dict[str, Any]) -> bytes:
    """Return the piece of a tree that an order wants.

    Raises:
        OSError: a file cannot be read; it is named in its ``filename``.
    """
    below, offset = below_of(order), int(order.get("offset", 0))
    lists = bool(order.get("lists"))
    piece = _TreePiece(path, int(order.get("max_bytes", 0)), lists=lists)
    if offset != BEGIN:
        piece.continue_file(below, offset)
    if not piece.is_full:
        piece.walk(below, begins=offset == BEGIN and not below)
    return piece.content()


class _TreePiece:
    """What a piece has so far."""

    def __init__(self, path: str, max_bytes: int, *, lists: bool) -> None:
        self._path = path
        self._lists = lists
        self._left = max_bytes
        self._entries: list[bytes] = []
        self.is_full = False

    def content(self) -> bytes:
        return b"".join(self._entries)

    def walk(self, after: str, *, begins: bool) -> None:
        """Add what follows an entry, until the piece is full."""
        mode = os.stat(self._path).st_mode
        if stat.S_ISDIR(mode):
            top = os.open(self._path, _DIRECTORY)
            try:
                if begins:  # whatever room there is: the cursor would not tell that it is there
                    self._put({"name": "", "kind": "directory", "mode": mode & MODES})
                self._walk(top, "", after.split("/") if after else (), 1)
            finally:
                os.close(top)
        elif begins:
            self._add_file(os.open(self._path, _READ), "", 0)
        if not self.is_full:
            self._put({"end": True})

    def continue_file(self, below: str, offset: int) -> None:
        self._add_file(self._open(below), below, offset)

    def _open(self, below: str) -> int:
        if not below:
            return os.open(self._path, _READ)
        try:
            with EntryPlace(self._path, below) as place:
                return self._opened(place.name, place.directory, below)
        except OSError as error:
            raise self._named(error, below) from None

    def _opened(self, name: str, directory: int, below: str) -> int:
        try:
            return os.open(name, _READ | os.O_NOFOLLOW, dir_fd=directory)
        except OSError as error:
            raise self._named(error, below) from None

    def _named(self, error: OSError, below: str) -> OSError:
        return OSError(error.errno, error.strerror, f"{self._path}/{below}".rstrip("/"))

    def _walk(self, directory: int, prefix: str, after: Sequence[str], depth: int) -> None:
        if depth > DEPTH_MAX:
            words = f"is more than {DEPTH_MAX} directories deep: stage an archive in instead"
            raise self._named(OSError(errno.ELOOP, words), prefix)
        first = os.fsencode(after[0]) if after else b""
        names = _names(directory)
        for name in islice(names, bisect_left(names, first, key=os.fsencode), None):
            is_known = os.fsencode(name) == first
            self._take(directory, name, prefix + name, after[1:] if is_known else None, depth)
            if self.is_full:
                return

    def _take(
        self, directory: int, name: str, below: str, after: Sequence[str] | None, depth: int
    ) -> None:
        """Add an entry with its content; for a known directory only the content after ``after``."""
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:  # it was removed meanwhile
            return
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            if after is None:
                known = self._listed(0) or {"mode": mode & MODES}
                self._add({"name": below, "kind": "directory", **known})
            if self.is_full:
                return
            try:
                inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            except OSError as error:
                raise self._named(error, below) from None
            try:
                self._walk(inner, f"{below}/", after or (), depth + 1)
            finally:
                os.close(inner)
        elif after is not None:
            return
        elif stat.S_ISREG(mode) and self._lists:
            self._add({"name": below, "kind": "file", **self._listed(status.st_size)})
        elif stat.S_ISREG(mode):
            self._add_file(self._opened(name, directory, below), below, 0)
        elif stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(name, dir_fd=directory))
            known = self._listed(len(target))
            self._add({"name": below, "kind": "link", **known}, b"" if known else target)

    def _listed(self, size: int) -> dict[str, object]:
        return {"size": size} if self._lists else {}

    def _add_file(self, fd: int, below: str, at: int) -> None:
        """Add a file, or as much of it as there is room for; close the descriptor."""
        try:
            if self._left <= 0:
                self.is_full = True
                return
            data, status = self._read(fd, below, at)
        finally:
            os.close(fd)
        stamp = _stamp(status)
        mode = status.st_mode & MODES
        self._add(
            {
                "name": below,
                "kind": "file",
                "mode": mode,
                "size": status.st_size,
                "at": at,
                "stamp": stamp,
            },
            data,
        )
        if at + len(data) < status.st_size:
            self.is_full = True

    def _read(self, fd: int, below: str, at: int) -> tuple[bytes, os.stat_result]:
        for _ in range(_TRIES):
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                error = OSError(errno.EINVAL, "is not a plain file")
                raise self._named(error, below)
            data = os.pread(fd, min(self._left, max(0, before.st_size - at)), at)
            after = os.fstat(fd)
            if _stamp(before) == _stamp(after):
                return data, after
        raise self._named(OSError(errno.EBUSY, "changes while it is read"), below)

    def _add(self, header: dict[str, object], data: bytes = b"") -> None:
        if self._left <= 0 or (len(self._entries) >= ENTRIES_MAX and not self._lists):
            self.is_full = True
            return
        self._put(header, data)
        self._left -= entry_cost(str(header["name"]), len(data))

    def _put(self, header: dict[str, object], data: bytes = b"") -> None:
        self._entries.append(pack(header, data))


def _names(directory: int) -> list[str]:
    """Return the names in a directory, in the order of their bytes.

    They are kept: a piece that begins within a large directory would list all of it again. Two
    changes within a moment may leave the same time of change, so a directory that has changed just
    now is listed again.
    """
    status = os.fstat(directory)
    key = (status.st_dev, status.st_ino)
    changed_ns, names = _known.get(key, (0, []))
    if status.st_mtime_ns == changed_ns:
        return names
    begun_ns = time.time_ns()
    names = sorted(os.listdir(directory), key=os.fsencode)
    _known.pop(key, None)
    if 0 < status.st_mtime_ns < begun_ns - _SETTLED_NS and len(names) <= _KEPT_NAMES:
        if sum(len(each) for _, each in _known.values()) + len(names) > _KEPT_NAMES:
            _known.clear()
        _known[key] = (status.st_mtime_ns, names)
    return names


def entry_cost(name: str, size_bytes: int) -> int:
    """Return how much of a piece an entry takes at most, bytes: a name may hold any."""
    return size_bytes + _HEADER_BYTES + _ESCAPED * len(os.fsencode(name))


def give_mode(name: str, mode: int, place: int | None = None) -> None:
    """Give a new directory its permissions; its owner can always write to it."""
    fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    try:
        inherited = stat.S_IMODE(os.fstat(fd).st_mode) & ~MODES
        os.fchmod(fd, inherited | (mode & MODES) | stat.S_IRWXU)
    finally:
        os.close(fd)


def since_first(attempt: str) -> Iterator[str]:
    """Yield ``JOB.ATTEMPT`` and what follows of an attempt, and of those of its job before it."""
    job, number, *rest = attempt.split(".")
    for each in range(int(number), max(0, int(number) - ATTEMPTS_MAX), -1):
        yield ".".join((job, str(each), *rest))


def pack(header: Mapping[str, object], data: bytes = b"") -> bytes:
    """Return an entry of a piece."""
    return json.dumps({**header, "count": len(data)}).encode() + b"\n" + data


def unpack(piece: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the entries of a piece.

    Raises:
        ValueError: it is none.
    """
    place = 0
    while place < len(piece):
        end = piece.index(b"\n", place)
        header = json.loads(piece[place:end])
        place = end + 1 + int(header["count"])
        yield header, piece[end + 1 : place]


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"


class EntryPlace:
    """The directory of an entry below a tree, reached without a symbolic link, and its name there.

    Args:
        path: of the tree.
        below: the entry's path; of the tree itself, which then has no link of its own: empty.
        makes: directories that do not exist are made.

    Raises:
        OSError: a directory on the way is none, or cannot be entered or made.
    """

    def __init__(self, path: str, below: str, *, makes: bool = False) -> None:
        if not below:
            path, below = os.path.split(os.path.realpath(path))
        *way, self.name = below.split("/")
        if not all(each not in {"", ".", ".."} for each in (*way, self.name)):
            raise OSError(errno.EINVAL, "is not a path below it", below)
        if len(way) > DEPTH_MAX:
            raise OSError(errno.ELOOP, f"is more than {DEPTH_MAX} directories deep", below)
        self.directory = os.open(path, _DIRECTORY)
        try:
            for each in way:
                self._enter(each, makes=makes)
        except OSError as error:
            os.close(self.directory)
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                shown = f"{path}/{below}"
                raise OSError(
                    errno.ENOTDIR, "a directory on the way is a symbolic link or a file", shown
                ) from None
            raise

    def _enter(self, name: str, *, makes: bool) -> None:
        if makes:
            self._make(name)
        inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.directory)
        os.close(self.directory)
        self.directory = inner

    def _make(self, name: str, mode: int = 0) -> None:
        try:
            os.mkdir(name, dir_fd=self.directory)
            if mode:
                give_mode(name, mode, self.directory)
        except FileExistsError:
            status = os.stat(name, dir_fd=self.directory, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.directory)

    def make_directory(self, mode: int) -> None:
        """Make the entry a directory with these permissions, unless it is one; 0: as umask says."""
        self._make(self.name, mode)

    def make_link(self, target: bytes, owner: str) -> None:
        """Make the entry a symbolic link, also in place of a file."""
        temporary = self.temporary(owner)
        self.remove(temporary)
        os.symlink(target, os.fsencode(temporary), dir_fd=self.directory)
        self.take_name(temporary)

    def temporary(self, owner: str) -> str:
        """Return the name under which an entry is written until it is there in full."""
        return f".gsched-{owner}-{hashlib.sha256(os.fsencode(self.name)).hexdigest()[:16]}"

    def remove(self, name: str) -> None:
        """Remove a file or link of the directory, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.directory)

    def take_name(self, temporary: str) -> None:
        """Give what was written its name."""
        try:
            os.rename(temporary, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except OSError:
            self.remove(temporary)
            raise
