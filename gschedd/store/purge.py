"""What the database need not keep: old rows of the history and, if a site says so, old jobs.

Jobs that are not done, their attempts, scripts and client keys are never touched, and no number is
ever given out again: the next ones stand in ``meta``, not in the rows.
"""

import sqlite3
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

DAY_S: Final = 86400.0
#: Rows of a kind removed in one transaction, so that no commit waits long for it.
SLICE: Final = 1000

#: Of the runs that the head learned of first: their order is that of their ends but for clocks.
_OLD_RUNS: Final = (
    "DELETE FROM history WHERE ended_s < ? AND id IN (SELECT id FROM history ORDER BY id LIMIT ?)"
)
#: The newest of those that are too many, by its place.
_FIRST_TOO_MANY: Final = "SELECT id FROM history ORDER BY id DESC LIMIT 1 OFFSET ?"
_TOO_MANY_RUNS: Final = (
    "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE id <= ? ORDER BY id LIMIT ?)"
)
_OLD_JOBS: Final = (
    "SELECT id FROM jobs WHERE state = 'done' AND ended_s < ? ORDER BY ended_s LIMIT ?"
)
_NEXT_USER: Final = "SELECT min(uid) FROM jobs WHERE state = 'done' AND uid > ?"
_FINISHED: Final = "SELECT count(*) FROM jobs WHERE state = 'done' AND uid = ?"
_OLDEST_OF_USER: Final = (
    "SELECT id FROM jobs WHERE state = 'done' AND uid = ? ORDER BY ended_s LIMIT ?"
)
#: Of the scripts and environments that a user's jobs were the first to have.
TEXT_BYTES: Final = "SELECT coalesce(sum(bytes), 0) FROM blobs WHERE uid = ?"
_OF_JOB: Final = (
    "DELETE FROM events WHERE job = ?",
    "DELETE FROM attempts WHERE job = ?",
    "DELETE FROM specs WHERE job = ?",
    "DELETE FROM jobs WHERE id = ? AND state = 'done'",
)
_OLD_NODE_EVENTS: Final = (
    "DELETE FROM events WHERE seq IN "
    "(SELECT seq FROM events WHERE job IS NULL AND at_s < ? ORDER BY at_s, seq LIMIT ?)"
)
#: Whether a spec is damaged: nobody knows what its job needs, so nothing is an orphan.
UNREADABLE: Final = "SELECT 1 FROM specs WHERE NOT json_valid(CAST(spec AS TEXT)) LIMIT 1"
#: One look at all specs that are left; `purge_blobs` says why that is cheap enough.
_ORPHANS: Final = """
    DELETE FROM blobs WHERE digest NOT IN (
        SELECT json_extract(CAST(spec AS TEXT), '$.script_digest') AS digest FROM specs
        WHERE digest IS NOT NULL
        UNION SELECT json_extract(CAST(spec AS TEXT), '$.environment_digest') AS digest FROM specs
        WHERE digest IS NOT NULL
        UNION SELECT json_extract(CAST(spec AS TEXT), '$.lines_digest') AS digest FROM specs
        WHERE digest IS NOT NULL
    )
"""


#: Facts that a job or its user can cause again and again; of each so many of a job are kept.
REPEATED: Final = frozenset(
    {
        "BatchingChosen",
        "CheckpointTaken",
        "GpusIdleWarned",
        "IdleWarningEnded",
        "IdleGpusReclaimed",
        "JobAltered",
        "JobHeld",
        "JobReleased",
        "JobSignalled",
        "JobPreempted",
        "RoomClaimed",
        "ClaimEnded",
        "MigrationAbandoned",
        "MigrationMeasured",
        "MigrationPrepared",
        "StepsMeasured",
    }
)
KEPT_OF_JOB: Final = 100
_REPEATED_TOO_OFTEN: Final = """
    DELETE FROM events WHERE seq IN (
        SELECT seq FROM events WHERE job = ? AND kind = ? ORDER BY seq DESC LIMIT ? OFFSET ?
    )
"""


#: Owner and digest of the code snapshots of all jobs that are kept.
CODE_IN_USE: Final = """
    SELECT DISTINCT json_extract(CAST(spec AS TEXT), '$.owner.uid'),
        json_extract(CAST(spec AS TEXT), '$.snapshot.digest')
    FROM specs WHERE json_extract(CAST(spec AS TEXT), '$.snapshot.digest') IS NOT NULL
"""


class Keep(Struct, frozen=True, kw_only=True):
    """What is kept; 0 keeps all.

    Attributes:
        days: of the history, since the run ended.
        rows: of the history, the newest.
        jobs_days: of jobs that are done, with their events and attempts, since they ended; and of
            events of nodes.
        jobs_per_user: of jobs that are done, the newest of each user.
        text_bytes_per_user: of their scripts and environments.
    """

    days: float = 0.0
    rows: int = 0
    jobs_days: float = 0.0
    jobs_per_user: int = 0
    text_bytes_per_user: int = 0


class Kept(Struct, frozen=True, kw_only=True):
    """What a user has in the database: the number of finished jobs, and bytes of texts."""

    uid: int
    finished: int
    text_bytes: int


class Purged(Struct, frozen=True, kw_only=True):
    """How much was removed; ``more`` says that another slice is to go."""

    runs: int = 0
    jobs: int = 0
    events: int = 0
    more: bool = False


def purge_some(db: sqlite3.Connection, keep: Keep, now_s: float) -> Purged:
    """Remove at most `SLICE` rows of each kind, within the caller's transaction."""
    old = _delete(db, _OLD_RUNS, now_s - keep.days * DAY_S) if keep.days > 0 else 0
    extra = _purge_extra(db, keep.rows) if keep.rows > 0 else 0
    jobs = events = 0
    if keep.jobs_days > 0:
        before_s = now_s - keep.jobs_days * DAY_S
        jobs = _purge_jobs(db, before_s)
        events = _delete(db, _OLD_NODE_EVENTS, before_s)
    more = SLICE in {old, extra, jobs, events}
    if not more:
        purge_blobs(db)
    return Purged(runs=old + extra, jobs=jobs, events=events, more=more)


def next_user(db: sqlite3.Connection, after: int) -> Kept | None:
    """Return what the user with the next uid after ``after`` has; None: no further one."""
    (uid,) = db.execute(_NEXT_USER, (after,)).fetchone()
    if uid is None:
        return None
    (finished,) = db.execute(_FINISHED, (uid,)).fetchone()
    (text_bytes,) = db.execute(TEXT_BYTES, (uid,)).fetchone()
    return Kept(uid=uid, finished=finished, text_bytes=text_bytes)


def beyond(kept: Kept, keep: Keep) -> int:
    """Return how many of a user's oldest finished jobs are to go.

    Those beyond their number; and where texts take more than their bytes, the same part of the
    jobs as of the bytes.
    """
    most = keep.jobs_per_user or kept.finished
    if 0 < keep.text_bytes_per_user < kept.text_bytes:
        most = min(most, kept.finished * keep.text_bytes_per_user // kept.text_bytes)
    return max(0, kept.finished - most)


def purge_user(db: sqlite3.Connection, uid: int, count: int) -> int:
    """Remove at most `SLICE` of the ``count`` oldest finished jobs of a user; return how many.

    Their scripts stay until `purge_blobs`.
    """
    ids = db.execute(_OLDEST_OF_USER, (uid, min(count, SLICE))).fetchall()
    for statement in _OF_JOB:
        db.executemany(statement, ids)
    return len(ids)


def compact(db: sqlite3.Connection, repeated: Iterable[tuple[int, str]]) -> None:
    """Keep the newest of the facts that were just repeated, by job and kind, and remove the rest.

    The last of them says all that is needed of the job; those before it are its story, of which
    nobody reads more. At most `SLICE` rows of each are removed, within the caller's transaction.
    """
    for job, kind in repeated:
        db.execute(_REPEATED_TOO_OFTEN, (job, kind, SLICE, KEPT_OF_JOB))


def _delete(db: sqlite3.Connection, statement: str, before: float) -> int:
    return db.execute(statement, (before, SLICE)).rowcount


def _purge_extra(db: sqlite3.Connection, most: int) -> int:
    row = db.execute(_FIRST_TOO_MANY, (most,)).fetchone()
    return 0 if row is None else _delete(db, _TOO_MANY_RUNS, row[0])


def _purge_jobs(db: sqlite3.Connection, before_s: float) -> int:
    ids = db.execute(_OLD_JOBS, (before_s, SLICE)).fetchall()
    for statement in _OF_JOB:
        db.executemany(statement, ids)
    return len(ids)


def purge_blobs(db: sqlite3.Connection) -> int:
    """Remove scripts and environments that no job has any more, within the caller's transaction.

    All specs are read for it, a few microseconds each: once a day, when all old jobs are gone. A
    job that is submitted meanwhile brings its blobs with its own commit, so none is missing that
    is needed. While a job's spec is damaged, nothing is removed.
    """
    if db.execute(UNREADABLE).fetchone() is not None:
        return 0
    return db.execute(_ORPHANS).rowcount
