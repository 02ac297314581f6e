"""The step of the database's schema, on a copy first."""

import os
import shutil
import sqlite3
from contextlib import closing
from typing import Final

from msgspec import Struct

from gsched.clock import Clock
from gsched.errors import StorageError
from gschedd.core.state.state import State
from gschedd.daemon.lock import no_head
from gschedd.store.schema import SCHEMA_VERSION, check_version
from gschedd.store.sqlite import Store
from gschedd.upkeep.backups import DATABASE
from gschedd.upkeep.databases import (
    DatabaseContents,
    Progress,
    check_room,
    copy_database,
    examine,
    reading,
    refused,
    size_of,
)

_REHEARSAL: Final = ".rehearsal"
#: The database, the copy that the step makes, and the log of its transaction.
_COPIES: Final = 3
#: Tables to which each start of a head adds.
_GROWING: Final = {"meta", "epochs"}


class Rehearsal(Struct, frozen=True, kw_only=True):
    """The step on a copy of the database, as a head takes it at its start.

    Attributes:
        before: the schema of the database.
        size_bytes: of the database.
        copy_s: the time that the copy took; a head that runs keeps running meanwhile.
        start_s: from the opening of the copy until all of it was loaded, with the step.
        contents: of the copy after the step.
    """

    before: int
    size_bytes: int
    copy_s: float
    start_s: float
    contents: DatabaseContents


def rehearse(state_dir: str, *, clock: Clock, progress: Progress) -> Rehearsal | None:
    """Start a head's store on a copy of the database, with the step of the schema, and check it.

    Returns:
        What the step takes; None: the database has the schema of this gsched, or there is none yet.

    Raises:
        ConfigError: the schema is not taken over.
        StorageError: the database is damaged, or the step loses rows.
        StorageFullError: there is no room for the copies.
        CannotWriteError: a file cannot be read or written.
    """
    place = os.path.join(state_dir, _REHEARSAL)
    path = os.path.join(state_dir, DATABASE)
    copy = os.path.join(place, DATABASE)
    shutil.rmtree(place, ignore_errors=True)
    if not os.path.exists(path):
        return None
    try:
        with closing(reading(path)) as db:
            (before,) = db.execute("PRAGMA user_version").fetchone()
        check_version(path, before)
        if before == SCHEMA_VERSION:
            return None
        check_room(state_dir, _COPIES * size_of(path))
        os.mkdir(place, 0o700)
        started_s = clock.monotonic_s()
        copy_database(path, copy, progress)
        copied_s = clock.monotonic_s()
        rows = examine(copy, progress).rows
        opening_s = clock.monotonic_s()
        store = Store(place)
        store.open()
        store.load(State())
        store.close()
        opened_s = clock.monotonic_s()
        after = examine(copy, progress)
    except (OSError, sqlite3.Error) as error:
        raise refused(error, state_dir) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    lost = [
        f"{name}: {count} before, {after.rows[name]} after"
        for name, count in rows.items()
        if name in after.rows and name not in _GROWING and after.rows[name] != count
    ]
    if lost:
        raise StorageError(
            f"the step to schema {SCHEMA_VERSION} changes the number of rows: {'; '.join(lost)}",
            hint="keep the older gsched, and report this",
        )
    return Rehearsal(
        before=before,
        size_bytes=size_of(path),
        copy_s=copied_s - started_s,
        start_s=opened_s - opening_s,
        contents=after,
    )


def upgrade(state_dir: str, *, clock: Clock, progress: Progress) -> Rehearsal | None:
    """Rehearse the step, and take it if the rehearsal has passed; no head may run.

    Returns:
        As `rehearse`.

    Raises:
        ConfigError: a head runs, or as `rehearse`.
    """
    with no_head(state_dir):
        rehearsal = rehearse(state_dir, clock=clock, progress=progress)
        if rehearsal is not None:
            store = Store(state_dir)
            store.open()  # as a head does at its start: it keeps a copy, and takes the step
            store.close()
    return rehearsal
