"""One outbox of an attempt: its files, and how far they have come: for `gnode.daemon.deliveries`.

gnode opens these files as root: the outbox's own name is root's, no symbolic link is followed, and
a file must belong to the owner of the outbox. Sockets, pipes and devices are left out.
"""

import asyncio
import logging
import os
import stat
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from gnode.core.task import parse_outbox
from gnode.daemon.owner_tree import BATCH_ENTRIES, MODES, pack
from gnode.task import FILES, STDERR, STDOUT
from gsched.files import replace_file
from gsched.model.limits import MAX_DELIVERED_FILES
from gsched.protocol.deliveries import BEGIN, DELIVERY_BYTES, DeliverPiece, Kind

log = logging.getLogger(__name__)

DEPTH_MAX: Final = 32  # of what is staged out, as in gnode.daemon.owner_tree
#: Files up to this size share a piece with others.
SMALL_BYTES: Final = 256 * 1024
#: How often the progress of what is staged out is kept: what comes again is written again.
PROGRESS_S: Final = 1.0


class DeliveryError(Exception):
    """A file cannot be delivered.

    Attributes:
        later: it may be later.
        others: number of other files that cannot, either.
        whole: nothing of what is staged out with it can.
    """

    def __init__(self, message: str, *, later: bool, others: int = 0, whole: bool = False) -> None:
        super().__init__(message)
        self.later = later
        self.others = others
        self.whole = whole


class FileProgress(Struct, omit_defaults=True):
    """How far a file has come: where it begins and ends there, and how much of it has gone."""

    base: int = BEGIN
    end: int = BEGIN
    sent: int = 0
    done: bool = False


@dataclass(slots=True, kw_only=True)
class FileBatch:
    """Directories, links and small files that share a piece.

    Attributes:
        names: of what is in it; ``content`` is that, as in `gnode.daemon.owner_tree`.
        faults: names that cannot be read, with the reason.
    """

    names: list[str] = field(default_factory=list)
    content: bytes = b""
    faults: list[tuple[str, str]] = field(default_factory=list)


class Outbox:
    """One outbox.

    A name of a file is a text whose characters are the bytes of its path in the outbox.

    Attributes:
        takes_batches: whether the host of submission accepts batches; true until it refuses one.
        window: number of pieces of a file that the host accepts at once; 0: not known, so one.
    """

    def __init__(self, path: str, progress: Path) -> None:
        self.path = path
        self.key, self.token = parse_outbox(os.path.basename(path))
        self.takes_batches = True
        self.window = 0
        self._writing = asyncio.Lock()
        self._file = progress
        self._kept_s = 0.0
        self.progress: dict[str, FileProgress] = {}
        try:
            self.progress = msgspec.json.decode(progress.read_bytes(), type=dict[str, FileProgress])
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError as error:
            log.warning("%s is broken and ignored: %s", progress, error)

    def total_sent(self) -> int:
        """Return a number that grows whenever something has arrived."""
        return sum(each.sent + each.done for each in self.progress.values())

    async def keep_progress(self) -> None:
        """Keep how far the files have come, unless that was done just now."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._kept_s >= PROGRESS_S:
            self._kept_s = now_s
            await self.keep_now(durable=False)

    async def keep_now(self, *, durable: bool) -> None:
        """Keep how far the files have come."""
        async with self._writing:
            await asyncio.to_thread(self._write_progress, durable=durable)

    def _write_progress(self, *, durable: bool) -> None:
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(str(self._file), msgspec.json.encode(self.progress), durable=durable)

    def piece(self, file: str, below: bytes = b"", **fields: Any) -> DeliverPiece:
        """Return a piece of one of its files."""
        return DeliverPiece(
            request=0,
            job=self.key.job,
            attempt=self.key.attempt,
            token=self.token,
            file=file,
            name=below,
            **fields,
        )

    def streams(self) -> list[str]:
        """Return which output files there are."""
        return [each for each in (STDOUT, STDERR) if os.path.lexists(f"{self.path}/{each}")]

    def listed(self) -> tuple[dict[str, bool], list[DeliveryError]]:
        """Return the names of what is to be delivered, and whether each is a directory.

        With it why other files that are staged out cannot be.

        Raises:
            DeliveryError: it cannot be read.
        """
        names = dict.fromkeys(self.streams(), False)
        faults: list[DeliveryError] = []
        left = MAX_DELIVERED_FILES
        top = os.path.join(self.path, FILES)
        try:
            is_there = os.path.isdir(top) and not os.path.islink(top)
            for number in sorted(os.listdir(top)) if is_there else ():
                try:
                    found = self._tree(f"{FILES}/{number}", left)
                except DeliveryError as error:
                    faults.append(error)
                    continue
                names |= found
                left -= max(0, len(found) - 1)  # without what the user has named
        except OSError as error:
            raise DeliveryError(f"{self.path}: {error.strerror}", later=True) from error
        return names, faults

    def _tree(self, top: str, most: int) -> dict[str, bool]:
        """Return the names of a file or directory, each directory before what is in it.

        Args:
            most: the most entries that it may have.

        Raises:
            DeliveryError: there is too much.
        """
        path = os.path.join(self.path, top)
        mode = os.lstat(path).st_mode
        names = {top: stat.S_ISDIR(mode)} if _is_delivered(mode) else {}
        if not stat.S_ISDIR(mode):
            return names
        for place, directories, files, fd in os.fwalk(path):
            below = os.path.relpath(place, self.path)
            if below.count("/") > DEPTH_MAX:
                text = f"{top} is more than {DEPTH_MAX} directories deep: write an archive"
                raise DeliveryError(text, later=False)
            for name in sorted((*directories, *files)):
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                if _is_delivered(mode):
                    known = os.fsencode(os.path.join(below, name)).decode("latin-1")
                    names[known] = stat.S_ISDIR(mode)
                if len(names) > most + 1:  # and the directory itself
                    text = f"{top}: more than {MAX_DELIVERED_FILES} files return: write an archive"
                    raise DeliveryError(text, later=False)
            directories.sort()
        return names

    def batch(self, names: Sequence[str]) -> FileBatch:
        """Return the first of these names that share a piece; none: the first one goes alone."""
        found = FileBatch()
        item, left = split(names[0])[0], DELIVERY_BYTES
        content: list[bytes] = []
        if not (self.takes_batches and item.startswith(f"{FILES}/")):
            return found
        for name in names[:BATCH_ENTRIES]:
            if split(name)[0] != item or self.progress[name].sent:
                break
            try:
                entry = self._packed(name)
            except OSError as error:
                found.faults.append((name, error.strerror or str(error)))
                continue
            if entry is None or (len(entry) > left and content):
                break
            content.append(entry)
            found.names.append(name)
            left -= len(entry)
        found.content = b"".join(content)
        return found

    def _packed(self, name: str) -> bytes | None:
        """Return an entry as it is sent with others; None: it is a file that goes alone."""
        below = os.fsdecode(split(name)[1])
        entry = self.entry(name)
        if entry is not None:
            kind, data, mode = entry
            return pack({"name": below, "kind": kind, "mode": mode}, data)
        fd = self.open(name)
        try:
            status = os.fstat(fd)
            if status.st_size > SMALL_BYTES:
                return None
            data = os.pread(fd, SMALL_BYTES, 0)
        finally:
            os.close(fd)
        mode = status.st_mode & MODES
        return pack({"name": below, "kind": "file", "mode": mode}, data)

    def entry(self, name: str) -> tuple[Kind, bytes, int] | None:
        """Return what a directory or link is, with its mode; None for a file.

        Raises:
            OSError: it is not there any more.
        """
        if name in {STDOUT, STDERR}:
            return None
        place, last = self._way(name)
        try:
            mode = os.stat(last, dir_fd=place, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                return "link", os.readlink(last, dir_fd=place), 0
            return ("directory", b"", mode & MODES) if stat.S_ISDIR(mode) else None
        finally:
            os.close(place)

    def _way(self, name: str) -> tuple[int, bytes]:
        """Return the directory of a file, reached without a symbolic link, and its name there."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        place = os.open(self.path, flags)
        try:
            *way, last = name.encode("latin-1").split(b"/")
            for each in way:
                below = os.open(each, flags, dir_fd=place)
                os.close(place)
                place = below
        except OSError:
            os.close(place)
            raise
        return place, last

    def open(self, name: str) -> int:
        """Open a file of the outbox, which must be its owner's own.

        Raises:
            OSError: it is not, or leads elsewhere.
        """
        owner = os.lstat(self.path).st_uid
        place, last = self._way(name)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(last, flags, dir_fd=place)
        finally:
            os.close(place)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
            os.close(fd)
            raise PermissionError(1, "is not a plain file of the job's owner")
        return fd


def _is_delivered(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def split(name: str) -> tuple[str, bytes]:
    """Return what the head knows a file as, and its path below that."""
    if not name.startswith(f"{FILES}/"):
        return name, b""
    number, _, below = name.removeprefix(f"{FILES}/").partition("/")
    return f"{FILES}/{number}", below.encode("latin-1")


def shown(name: str) -> str:
    """Return the name of a file as text."""
    return name.encode("latin-1").decode("utf-8", "backslashreplace")


def take_item(left: deque[str], name: str) -> int:
    """Take what is staged out together with a file from what is left; return its number."""
    item = split(name)[0]
    others = [each for each in left if split(each)[0] != item]
    count = len(left) - len(others)
    left.clear()
    left.extend(others)
    return count
