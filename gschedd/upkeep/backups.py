"""Backups of the head's files: made while the head runs, checked, and never half of one.

A backup is a directory. It is written under another name, checked as it is on the disk, and
renamed when it is whole. The order makes its parts fit: ``notify.db`` says up to which event users
have been notified, so it is copied before the database; a job's code snapshot is there before the
job, so the snapshots are copied after it, and so are queues that operators have created.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from gsched.errors import (
    NO_ROOM,
    CannotWriteError,
    InvalidRequestError,
    StorageError,
    TryAgainError,
)
from gsched.failpoint import failpoint
from gsched.files import flush_directory
from gsched.pki.files import AUTHORITY, DIRECTORY, NEXT
from gsched.version import VERSION
from gschedd.store.code import DIGEST
from gschedd.store.queues import FILE as QUEUES
from gschedd.upkeep.databases import (
    DatabaseContents,
    Progress,
    check_room,
    copy_database,
    examine,
    refused,
    size_of,
)

DATABASE: Final = "gsched.db"
NOTICES: Final = "notify.db"
CODE: Final = "code"
CONFIG: Final = "gsched.toml"
AUTHORITIES: Final = tuple(os.path.join(DIRECTORY, name) for name in (AUTHORITY, NEXT))
MANIFEST: Final = "MANIFEST.json"
_NAME: Final = "gsched-%Y%m%dT%H%M%SZ"
_NAMED: Final = re.compile(r"gsched-\d{8}T\d{6}Z")
_PARTIAL: Final = ".partial"


class SavedFile(Struct, frozen=True, kw_only=True):
    """Size and SHA-256 of a file of a backup."""

    bytes: int
    sha256: str


class BackupManifest(Struct, frozen=True, kw_only=True):
    """What a backup holds; the last file of it that is written.

    Attributes:
        version: of gsched.
        host: on which it was made.
        files: by their paths in the backup.
    """

    version: str
    host: str
    made_s: float
    contents: DatabaseContents
    files: dict[str, SavedFile]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(each.bytes for each in self.files.values())


class BackupSource(Struct, frozen=True, kw_only=True):
    """What is saved: the head's state directory, and its configuration where that is."""

    state_dir: str
    config: str


class SavedBackup(Struct, frozen=True, kw_only=True):
    """A backup that was made.

    Attributes:
        left_out: files that are not in it, and why.
        removed: older backups that went for it.
    """

    path: str
    manifest: BackupManifest
    left_out: tuple[str, ...]
    removed: tuple[str, ...]


def back_up(
    origin: BackupSource, directory: str, *, now_s: float, keep: int, progress: Progress
) -> SavedBackup:
    """Make a backup in a directory that exists.

    Args:
        keep: so many backups of this cluster stay there; 0: all. None goes for a damaged one.

    Raises:
        StorageFullError: there is no room for it.
        StorageError: the database is damaged.
        TryAgainError: another backup is being written there.
        CannotWriteError: a file cannot be read or written.
    """
    path = os.path.join(directory, time.strftime(_NAME, time.gmtime(now_s)))
    partial = path + _PARTIAL
    try:
        with _alone_in(directory):
            if os.path.exists(path):
                raise TryAgainError(f"{path} exists", hint="one backup a second can be made")
            os.mkdir(partial, 0o700)
            try:
                manifest, left_out = _write(origin, partial, now_s, progress)
                failpoint("backup.before_rename")
                os.rename(partial, path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            flush_directory(directory)
            old = backups_in(directory, manifest.contents.cluster)
            removed = old[:-keep] if keep and not manifest.contents.damaged else []
            for each in removed:
                os.rename(each, each + _PARTIAL)
                shutil.rmtree(each + _PARTIAL)
    except (OSError, sqlite3.Error) as error:
        raise refused(error, directory) from error
    return SavedBackup(
        path=path, manifest=manifest, left_out=tuple(left_out), removed=tuple(removed)
    )


def backups_in(directory: str, cluster: str) -> list[str]:
    """Return the whole backups of a cluster in a directory, oldest first."""
    found = []
    for name in sorted(filter(_NAMED.fullmatch, os.listdir(directory))):
        with contextlib.suppress(InvalidRequestError):
            if read_manifest(os.path.join(directory, name)).contents.cluster == cluster:
                found.append(os.path.join(directory, name))
    return found


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    """Keep others from writing backups there; remove what a killed one has left."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir(directory):
            if _NAMED.fullmatch(name.removesuffix(_PARTIAL)) and name.endswith(_PARTIAL):
                shutil.rmtree(os.path.join(directory, name))
        yield
    except BlockingIOError:
        raise TryAgainError(
            f"another backup is being written to {directory}", hint="wait until it is done"
        ) from None
    finally:
        os.close(fd)


def _write(
    origin: BackupSource, partial: str, now_s: float, progress: Progress
) -> tuple[BackupManifest, list[str]]:
    state = origin.state_dir
    databases = [name for name in (NOTICES, DATABASE) if os.path.exists(os.path.join(state, name))]
    if DATABASE not in databases:
        raise CannotWriteError(f"{state} has no database", hint="the head makes it when it starts")
    sizes = [size_of(os.path.join(state, name)) for name in (*databases, *_snapshots(state))]
    check_room(os.path.dirname(partial), sum(sizes))
    for name in databases:
        copy_database(os.path.join(state, name), os.path.join(partial, name), progress)
    failpoint("backup.before_check")
    contents = examine(os.path.join(partial, DATABASE), progress)
    left_out = []
    # after the database: a job's queue is there before it
    there = [(name, os.path.join(state, name)) for name in (QUEUES, *AUTHORITIES)]
    there = [(name, source) for name, source in there if os.path.exists(source)]
    for name, source in ((CONFIG, origin.config), *there):
        try:
            os.makedirs(os.path.dirname(os.path.join(partial, name)), 0o700, exist_ok=True)
            shutil.copyfile(source, os.path.join(partial, name))
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            left_out.append(f"{source}: {error.strerror}")
    snapshots = _snapshots(state)
    older = (backups_in(os.path.dirname(partial), contents.cluster) or [""])[-1]
    for count, name in enumerate(snapshots, start=1):
        progress("copying code snapshots", count, len(snapshots))
        if not _copy_snapshot(name, older, state, partial):
            left_out.append(f"{os.path.join(state, name)}: damaged, or no job has it any more")
    manifest = BackupManifest(
        version=VERSION,
        host=socket.gethostname(),
        made_s=now_s,
        contents=contents,
        files={name: saved_file(os.path.join(partial, name)) for name in files_below(partial)},
    )
    with open(os.path.join(partial, MANIFEST), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)))
    for place, _, names in os.walk(partial):
        for name in (*names, "."):
            flush(os.path.join(place, name))
    return manifest, left_out


def _snapshots(state: str) -> list[str]:
    """Return the code snapshots that are whole, by their paths in the state directory."""
    return [
        os.path.join(CODE, name)
        for name in files_below(os.path.join(state, CODE))
        if DIGEST.fullmatch(os.path.basename(name))
    ]


def _copy_snapshot(name: str, older: str, state: str, partial: str) -> bool:
    """Copy a code snapshot, or link it to that of an older backup; return whether it is whole."""
    target = os.path.join(partial, name)
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    for origin, take in ((older, os.link), (state, shutil.copyfile)):
        with contextlib.suppress(FileNotFoundError):
            take(os.path.join(origin, name), target)
            if saved_file(target).sha256 == os.path.basename(name):
                return True
            os.unlink(target)
    return False


def files_below(directory: str) -> list[str]:
    """Return the paths of all files below a directory, relative to it."""
    return sorted(
        os.path.relpath(os.path.join(place, name), directory)
        for place, _, names in os.walk(directory)
        for name in names
    )


def saved_file(path: str) -> SavedFile:
    """Return the size and the digest of a file, as it is on the disk."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SavedFile(bytes=os.fstat(file.fileno()).st_size, sha256=digest)


def flush(path: str) -> None:
    """Make a file or directory outlive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_manifest(backup: str) -> BackupManifest:
    """Return what a backup says of itself.

    Raises:
        InvalidRequestError: it is no whole backup.
    """
    path = os.path.join(backup, MANIFEST)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=BackupManifest)
    except (OSError, msgspec.MsgspecError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it cannot be decoded: {error}"
        raise InvalidRequestError(
            f"{backup} is not a backup of gsched: {path}: {why}",
            hint="name a directory that `gsched backup` has made, such as gsched-20261127T011500Z",
        ) from None


def verify(backup: str, progress: Progress) -> BackupManifest:
    """Check all that is in a backup, and return what it says of itself.

    Raises:
        InvalidRequestError: it is no whole backup.
        StorageError: it is damaged.
    """
    manifest = read_manifest(backup)
    for count, (name, expected) in enumerate(manifest.files.items(), start=1):
        progress("checking files", count, len(manifest.files))
        try:
            found = saved_file(os.path.join(backup, name))
        except OSError as error:
            raise _damaged(backup, f"{name}: {error.strerror}") from None
        if found != expected:
            raise _damaged(backup, f"{name} has changed since the backup was made")
    found_contents = examine(os.path.join(backup, DATABASE), progress)
    if found_contents.rows != manifest.contents.rows:
        raise _damaged(backup, f"{DATABASE} does not have the rows that {MANIFEST} names")
    return manifest


def _damaged(backup: str, why: str) -> StorageError:
    return StorageError(f"{backup} is damaged: {why}", hint="use another backup")
