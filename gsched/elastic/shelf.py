"""The directory of a training's checkpoints: which there are, how one appears, which may go.

A checkpoint is the directory ``checkpoint-SERIAL.step-STEP.attempt-ATTEMPT``. It comes into being
under a name of its own that no other save ever has, is flushed, and then renamed: whoever finds it
finds all of it. One for which the next attempt waits may be flushed after it was renamed, if there
is an older one on the disk: until then a file beside it says so.

Serial numbers follow the order of publication, not of steps, as a training that
fell back to an older checkpoint does the same steps again.
"""

import contextlib
import os
import re
import shutil
import uuid
from dataclasses import dataclass

from gsched.elastic.manifest import MANIFEST_NAME, Manifest
from gsched.failpoint import failpoint

KEEP = 2  # the newest, and the one before it, should the newest turn out bad
LOADS_MAX = 3  # a checkpoint that three starts did not survive is taken to be what kills them

_NAME = re.compile(r"checkpoint-(?P<serial>[0-9]+)\.step-[0-9]+\.attempt-[0-9]+")
_UNFINISHED = "unfinished-"
_LOADS = ".loads"
_UNFLUSHED = ".unflushed"


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

        Raises:
            OSError: the directory cannot be written.
        """
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        self.remove_unfinished()
        path = os.path.join(self.path, f"{_UNFINISHED}{attempt}-{uuid.uuid4().hex}")
        os.mkdir(path, mode=0o700)
        return path

    def remove_unfinished(self) -> None:
        """Remove what saves that were killed have left; called while there is none.

        Whatever is unfinished is of a process that is dead then: a training has one live attempt,
        and that one makes one save at a time.

        Raises:
            OSError: the directory cannot be read.
        """
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(_UNFINISHED):
                self.abandon(os.path.join(self.path, name))

    def abandon(self, unfinished: str) -> None:
        """Remove what a failed save has left; what cannot be removed is left to the next one."""
        shutil.rmtree(unfinished, ignore_errors=True)

    def publish(
        self, unfinished: str, manifest: Manifest, *, flush_later: bool = False
    ) -> ShelfEntry:
        """Write the manifest, flush, and give the checkpoint its name.

        Args:
            unfinished: the directory of a save.
            manifest: of its files.
            flush_later: flush nothing; `set_flushed` is called when that has been done.

        Raises:
            OSError: the disk is full, or the like; nothing is published then.
        """
        path = os.path.join(unfinished, MANIFEST_NAME)
        if flush_later:
            write(path, manifest.to_bytes())
        else:
            write_flushed(path, manifest.to_bytes())
            flush_directory(unfinished)
        failpoint("training.save.before_publish")
        serial = max((entry.serial for entry in self.entries()), default=0) + 1
        name = (
            f"checkpoint-{serial:06d}.step-{manifest.position.step:09d}.attempt-{manifest.attempt}"
        )
        path = os.path.join(self.path, name)
        if flush_later:
            write(path + _UNFLUSHED, b"")
        os.rename(unfinished, path)
        if not flush_later:
            flush_directory(self.path)
        self._proven.add(name)
        return ShelfEntry(serial, name, path)

    def has_flushed(self) -> bool:
        """Return whether a checkpoint that was proven good is on the disk."""
        return any(
            entry.name in self._proven and not self.is_unflushed(entry) for entry in self.entries()
        )

    def is_unflushed(self, entry: ShelfEntry) -> bool:
        """Return whether it is not known that this checkpoint is on the disk."""
        return os.path.lexists(entry.path + _UNFLUSHED)

    def set_flushed(self, entry: ShelfEntry) -> None:
        """Flush the names and the manifest of a checkpoint whose other files are on the disk.

        Raises:
            OSError: that cannot be done.
        """
        flush_file(os.path.join(entry.path, MANIFEST_NAME))
        flush_directory(entry.path)
        flush_directory(self.path)
        failpoint("training.flush.before_mark")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.path + _UNFLUSHED)

    def distrust(self, entry: ShelfEntry) -> None:
        """Forget that a checkpoint was proven good: it is not on the disk."""
        self._proven.discard(entry.name)

    def prove(self, entry: ShelfEntry) -> None:
        """Remember that the files of this checkpoint were read and found good."""
        self._proven.add(entry.name)

    def tidy(self, keep: int = KEEP) -> list[str]:
        """Remove checkpoints that nobody needs any more; return their names.

        Args:
            keep: the newest that are proven, so many, stay, whatever else there is; as long as
                there are fewer, all stay. So a good one goes only after a newer one is known to be
                good. 0: all go.
        """
        entries = self.entries()
        kept = [entry for entry in entries if entry.name in self._proven][:keep]
        if len(kept) < keep:
            return []
        removed = []
        for entry in entries:
            if not kept or (entry.serial < kept[0].serial and entry not in kept):
                # The manifest first: a checkpoint half removed is not taken for one.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(entry.path, MANIFEST_NAME))
                shutil.rmtree(entry.path, ignore_errors=True)
                self.forget_loads(entry)
                with contextlib.suppress(OSError):
                    os.unlink(entry.path + _UNFLUSHED)
                removed.append(entry.name)
        return removed

    def loads(self, entry: ShelfEntry) -> int:
        """Return how many processes began to load this checkpoint and have done no step since."""
        try:
            with open(entry.path + _LOADS, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def note_load(self, entry: ShelfEntry) -> None:
        """Write down that a process begins to load this checkpoint.

        Raises:
            OSError: it cannot be written.
        """
        content = f"{self.loads(entry) + 1}\n".encode()
        temporary = f"{entry.path}{_LOADS}.tmp"
        # Flushing anything could wait for all of a checkpoint that is not on the disk yet.
        is_unflushed = self.is_unflushed(entry)
        (write if is_unflushed else write_flushed)(temporary, content)
        os.replace(temporary, entry.path + _LOADS)
        if not is_unflushed:
            flush_directory(self.path)

    def forget_loads(self, entry: ShelfEntry) -> None:
        """Write down that the training has done a step from this checkpoint."""
        with contextlib.suppress(OSError):
            os.unlink(entry.path + _LOADS)


def is_of_checkpoint(name: str) -> bool:
    """Return whether a directory of this name holds a checkpoint, whole or under way."""
    return name.startswith(_UNFINISHED) or _NAME.fullmatch(name) is not None


def write(path: str, content: bytes) -> None:
    """Write a new file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)


def write_flushed(path: str, content: bytes) -> None:
    """Write a new file whose content is on the disk when this returns."""
    write(path, content)
    flush_file(path)


def flush_file(path: str) -> None:
    """Return when the content of a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_directory(path: str) -> None:
    """Return when the names in a directory are on the disk."""
    flush_file(path)
