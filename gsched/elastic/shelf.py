"""The directory of a training's checkpoints: which there are, how one appears, which may go.

A checkpoint is the directory ``checkpoint-SERIAL.step-STEP.attempt-ATTEMPT``. It comes into being
under a name of its own that no other save ever has, is flushed, and then renamed: whoever finds it
finds all of it. Serial numbers follow the order of publication, not of steps, as a training that
fell back to an older checkpoint does the same steps again.
"""

import contextlib
import ctypes
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from gsched.elastic.manifest import MANIFEST_NAME, Manifest
from gsched.failpoint import failpoint

KEEP = 2  # the newest, and the one before it, should the newest turn out bad
LOADS_MAX = 3  # a checkpoint that three starts did not survive is taken to be what kills them

_NAME = re.compile(r"checkpoint-(?P<serial>[0-9]+)\.step-[0-9]+\.attempt-[0-9]+")
#: By the types of statfs(2): ext2 to ext4, XFS, btrfs, F2FS, ZFS, overlayfs and tmpfs.
_LOCAL_FILE_SYSTEMS = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x794C7630, 0x01021994}
)
_SYNC_FILE_RANGE_WRITE = 2  # sync_file_range(2)
_UNFINISHED = "unfinished-"
_LOADS = ".loads"


@dataclass(frozen=True, slots=True, order=True)
class ShelfEntry:
    """A published checkpoint; whether it is good has to be seen."""

    serial: int
    name: str
    path: str


class Shelf:
    """The checkpoints of one training. Only rank 0 writes through it."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._proven: set[str] = set()
        self._flushed: set[str] = set()

    def entries(self) -> list[ShelfEntry]:
        """Return the published checkpoints, newest first.

        Raises:
            OSError: the directory is there and cannot be read.
        """
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []  # nothing is lost that could be saved here later
        found = []
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                found.append(ShelfEntry(int(match["serial"]), name, os.path.join(self.path, name)))
        return sorted(found, reverse=True)

    def begin(self, attempt: int) -> str:
        """Make an empty directory for a save and return its path; leftovers of others go.

        Whatever is unfinished is of a process that is dead: a training has one live attempt, and
        that one makes one save at a time.

        Raises:
            OSError: the directory cannot be written.
        """
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        for name in os.listdir(self.path):
            if name.startswith(_UNFINISHED):
                shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        path = os.path.join(self.path, f"{_UNFINISHED}{attempt}-{uuid.uuid4().hex}")
        os.mkdir(path, mode=0o700)
        return path

    def abandon(self, unfinished: str) -> None:
        """Remove what a failed save has left; what cannot be removed is left to the next one."""
        shutil.rmtree(unfinished, ignore_errors=True)

    def publish(self, unfinished: str, manifest: Manifest, *, is_flushed: bool) -> ShelfEntry:
        """Write the manifest and give the checkpoint its name.

        Args:
            unfinished: the directory; its files are flushed if ``is_flushed``.
            manifest: of its files.
            is_flushed: return when all is on the disk. Else the checkpoint makes no other one
                superfluous, as it may get lost.

        Raises:
            OSError: the disk is full, or the like; nothing is published then.
        """
        flush = os.fsync if is_flushed else _begin_to_flush
        _write(os.path.join(unfinished, MANIFEST_NAME), manifest.to_bytes(), flush=flush)
        if is_flushed:
            flush_directory(unfinished)
        failpoint("training.save.before_publish")
        serial = max((entry.serial for entry in self.entries()), default=0) + 1
        name = (
            f"checkpoint-{serial:06d}.step-{manifest.position.step:09d}.attempt-{manifest.attempt}"
        )
        path = os.path.join(self.path, name)
        os.rename(unfinished, path)
        if is_flushed:
            flush_directory(self.path)
            self._proven.add(name)
            self._flushed.add(name)
        return ShelfEntry(serial, name, path)

    def prove(self, entry: ShelfEntry) -> None:
        """Remember that the files of this checkpoint were read and found good."""
        self._proven.add(entry.name)

    def tidy(self, keep: int = KEEP) -> list[str]:
        """Remove checkpoints that nobody needs any more; return their names.

        Args:
            keep: the newest that are proven, so many, stay, whatever else there is; as long as
                there are fewer, all stay. So a good one goes only after a newer one is known to be
                good and on the disk. 0: all go.

        Raises:
            OSError: one that is to stay cannot be flushed.
        """
        entries = self.entries()
        kept = [entry for entry in entries if entry.name in self._proven][:keep]
        if len(kept) < keep:
            return []
        for entry in kept:
            self._flush(entry)
        removed = []
        for entry in entries:
            if not kept or (entry.serial < kept[0].serial and entry not in kept):
                # The manifest first: a checkpoint half removed is not taken for one.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(entry.path, MANIFEST_NAME))
                shutil.rmtree(entry.path, ignore_errors=True)
                self.forget_loads(entry)
                removed.append(entry.name)
        return removed

    def _flush(self, entry: ShelfEntry) -> None:
        """Return when a checkpoint that another process has published is on the disk."""
        if entry.name not in self._flushed:
            for name in os.listdir(entry.path):
                flush_file(os.path.join(entry.path, name))
            flush_directory(entry.path)
            flush_directory(self.path)
            self._flushed.add(entry.name)

    def loads(self, entry: ShelfEntry) -> int:
        """Return how many processes began to load this checkpoint and have done no step since."""
        try:
            with open(entry.path + _LOADS, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def note_load(self, entry: ShelfEntry) -> None:
        """Write down that a process begins to load this checkpoint.

        The note is flushed meanwhile: if the checkpoint is still on its way to the disk, the note
        has to wait for it there.

        Raises:
            OSError: it cannot be written.
        """
        count = self.loads(entry) + 1
        path = entry.path + _LOADS
        temporary = f"{path}.tmp"
        with open(temporary, "w", encoding="ascii") as file:
            file.write(f"{count}\n")
        os.replace(temporary, path)
        flush = threading.Thread(
            target=_flush_note, args=(path,), name="gsched-elastic-note", daemon=True
        )
        flush.start()

    def forget_loads(self, entry: ShelfEntry) -> None:
        """Write down that the training has done a step from this checkpoint."""
        with contextlib.suppress(OSError):
            os.unlink(entry.path + _LOADS)


def _write(path: str, content: bytes, *, flush: Callable[[int], object]) -> None:
    """Write a new file and flush it in this way, given its descriptor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        flush(descriptor)


def flush_file(path: str) -> None:
    """Return when the content of a file is on the disk."""
    _with_descriptor(path, os.fsync)


def _with_descriptor(path: str, flush: Callable[[int], object]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def _flush_note(path: str) -> None:
    with contextlib.suppress(OSError):  # it may be gone by now
        flush_file(path)
        flush_directory(os.path.dirname(path))


def begin_to_flush(path: str) -> None:
    """Let the system write a file to the disk, and return at once."""
    _with_descriptor(path, _begin_to_flush)


def _begin_to_flush(descriptor: int) -> None:
    """Call sync_file_range(2); without it the system writes the file within half a minute."""
    begin = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if begin is not None:
        arguments = (ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)
        begin(descriptor, *arguments)


def is_local(path: str) -> bool:
    """Return whether a file system is known to be this machine's own.

    All who read a file there see what was written, flushed or not.
    """
    found = (ctypes.c_long * 64)()  # a struct statfs, whose first word is the type: statfs(2)
    if ctypes.CDLL(None).statfs(os.fsencode(path), found) != 0:
        return False
    return found[0] & 0xFFFFFFFF in _LOCAL_FILE_SYSTEMS


def flush_directory(path: str) -> None:
    """Return when the names in a directory are on the disk."""
    flush_file(path)
