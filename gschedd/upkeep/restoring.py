"""Putting a backup in place of the head's database, and what that loses."""

import contextlib
import os
import shutil
import sqlite3
import time
from contextlib import closing
from typing import Final

from msgspec import Struct

from gsched.errors import ConfigError, InvalidRequestError
from gsched.failpoint import failpoint
from gsched.files import flush_directory
from gschedd.daemon.lock import no_head
from gschedd.store.mark import MarkFile
from gschedd.store.queues import FILE as QUEUES
from gschedd.store.schema import check_version
from gschedd.store.standby import leave_log
from gschedd.upkeep.backups import (
    AUTHORITIES,
    CODE,
    DATABASE,
    NOTICES,
    BackupManifest,
    flush,
    saved_file,
    verify,
)
from gschedd.upkeep.databases import Progress, check_room, reading, refused

_INCOMING: Final = ".restoring"
_LOG_FILES: Final = tuple(f"{DATABASE}{end}" for end in ("", "-wal", "-shm")) + tuple(
    f"{NOTICES}{end}" for end in ("", "-wal", "-shm")
)


class UnstartedJob(Struct, frozen=True, kw_only=True):
    """A job that waits, and that only the replaced database knows."""

    id: int
    user: str
    name: str


class RestoredBackup(Struct, frozen=True, kw_only=True):
    """A backup that was put in place.

    Attributes:
        kept: the directory of the files that were there; empty: there were none.
        next_job: the number of the next job before; 0: unknown.
        waiting: newer jobs that wait, as far as the replaced database could be read.
    """

    manifest: BackupManifest
    kept: str
    next_job: int
    waiting: tuple[UnstartedJob, ...]


def restore(backup: str, state_dir: str, *, now_s: float, progress: Progress) -> RestoredBackup:
    """Check a backup and put it in place of the database of a head that does not run.

    What is there is kept in a directory beside it, by its links, before anything goes; the database
    comes last. So a crash leaves the old state, or none, with which no head starts.

    Raises:
        InvalidRequestError: it is no backup, or one of another cluster.
        StorageError: it is damaged.
        ConfigError: a head runs, or the database has a schema that this gsched does not take over.
        StorageFullError: there is no room.
        CannotWriteError: a file cannot be written.
    """
    try:
        with no_head(state_dir):
            return _restore(backup, state_dir, now_s, progress)
    except (OSError, sqlite3.Error) as error:
        raise refused(error, state_dir) from error


def _restore(backup: str, state_dir: str, now_s: float, progress: Progress) -> RestoredBackup:
    manifest = verify(backup, progress)
    check_version(os.path.join(backup, DATABASE), manifest.contents.schema)
    next_job = _number_before(state_dir, manifest)
    waiting = _waiting_jobs(os.path.join(state_dir, DATABASE), manifest.contents.next_job)
    wanted = {DATABASE, NOTICES}
    if not os.path.exists(os.path.join(state_dir, QUEUES)):  # else what counts stays, as the key
        wanted.add(QUEUES)
    if not os.path.exists(os.path.join(state_dir, AUTHORITIES[0])):
        wanted.update(AUTHORITIES)
    names = [name for name in manifest.files if name in wanted]
    names += [name for name in manifest.files if name.startswith(f"{CODE}/")]
    names.sort(key=lambda name: name == DATABASE)  # the database last
    incoming = os.path.join(state_dir, _INCOMING)
    shutil.rmtree(incoming, ignore_errors=True)
    try:
        _copy(backup, incoming, names, manifest, progress)
        with closing(sqlite3.connect(os.path.join(incoming, DATABASE), isolation_level=None)) as db:
            leave_log(db)
        kept = _keep(state_dir, now_s)
        failpoint("restore.before_removal")
        for name in _LOG_FILES:  # the database first: without it no head starts
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(state_dir, name))
        failpoint("restore.before_database")
        for name in names:
            target = os.path.join(state_dir, name)
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            os.rename(os.path.join(incoming, name), target)
            flush_directory(os.path.dirname(target))
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return RestoredBackup(manifest=manifest, kept=kept, next_job=next_job, waiting=waiting)


def _number_before(state_dir: str, manifest: BackupManifest) -> int:
    """Return the number of the next job according to the mark, which stays as it is.

    Raises:
        InvalidRequestError: it belongs to another cluster.
    """
    path = os.path.join(state_dir, "gsched.mark")
    if not os.path.exists(path):
        return 0
    marks = MarkFile(path)
    mark = marks.read()
    marks.close()
    if mark is None:
        return 0
    if mark.cluster != manifest.contents.cluster:
        raise InvalidRequestError(
            f"the backup is of cluster {manifest.contents.cluster}, {state_dir} belongs to cluster "
            f"{mark.cluster}",
            hint=f"name another backup, or move the files of {state_dir} away first",
        )
    return mark.next_job


def _waiting_jobs(path: str, first: int) -> tuple[UnstartedJob, ...]:
    """Return the jobs from a number on that wait and were never started, if they can be read."""
    query = (
        "SELECT id, user, name FROM jobs WHERE id >= ? AND state <> 'done' AND attempts = 0 "
        "ORDER BY id"
    )
    try:
        with closing(reading(path)) as db:
            return tuple(
                UnstartedJob(id=number, user=user, name=name)
                for number, user, name in db.execute(query, (first,))
            )
    except (sqlite3.Error, UnicodeDecodeError):
        return ()


def _copy(
    backup: str, incoming: str, names: list[str], manifest: BackupManifest, progress: Progress
) -> None:
    """Copy files of a backup, and check the copies.

    Raises:
        ConfigError: a copy differs.
    """
    os.mkdir(incoming, 0o700)
    check_room(incoming, sum(manifest.files[name].bytes for name in names))
    for count, name in enumerate(names, start=1):
        progress("copying files", count, len(names))
        target = os.path.join(incoming, name)
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        shutil.copyfile(os.path.join(backup, name), target)
        os.chmod(target, 0o600)
        flush(target)
        if saved_file(target) != manifest.files[name]:
            raise ConfigError(f"{target} differs from the backup", hint="check the disk; try again")


def _keep(state_dir: str, now_s: float) -> str:
    """Link all files that a restore replaces to a new directory; return it, empty if none is."""
    names = [name for name in _LOG_FILES if os.path.exists(os.path.join(state_dir, name))]
    if not names:
        return ""
    kept = os.path.join(state_dir, time.strftime("replaced-%Y%m%dT%H%M%SZ", time.gmtime(now_s)))
    partial = f"{kept}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.mkdir(partial, 0o700)
    for name in names:
        os.link(os.path.join(state_dir, name), os.path.join(partial, name))
    flush_directory(partial)
    os.rename(partial, kept)
    flush_directory(state_dir)
    return kept
