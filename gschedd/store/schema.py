"""The database's schema, and the step that takes over a database of the version before.

Rows have checksums: see `gschedd.store.seals`.
"""

import sqlite3
from collections.abc import Iterator
from typing import Final

from gsched.errors import ConfigError

SCHEMA_VERSION: Final = 15
#: The only other version that is taken over.
VERSION_BEFORE: Final = 14

SCHEMA: Final = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    uid INTEGER NOT NULL,
    user TEXT NOT NULL,
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    submitted_s REAL NOT NULL,
    eligible_s REAL NOT NULL,
    started_s REAL,
    ended_s REAL,
    holds TEXT NOT NULL,
    hold_reason TEXT NOT NULL,
    not_before_s REAL NOT NULL,
    attempts INTEGER NOT NULL,
    faults INTEGER NOT NULL,
    requeues INTEGER NOT NULL,
    requeue_reason TEXT NOT NULL,
    cpu_s REAL NOT NULL,
    wall_s REAL NOT NULL,
    gpu_s REAL NOT NULL,
    outcome TEXT,
    outcome_data BLOB,
    failed INTEGER,
    client_key TEXT,
    -- what few jobs have, as JSON: see gschedd.core.state.SparseFields
    sparse BLOB,
    seal INTEGER
);
CREATE UNIQUE INDEX one_job_per_key ON jobs (uid, client_key) WHERE client_key IS NOT NULL;
CREATE INDEX live_jobs ON jobs (id) WHERE state <> 'done';
CREATE INDEX ended_jobs ON jobs (ended_s) WHERE state = 'done';
CREATE INDEX ended_jobs_of_user ON jobs (uid, ended_s) WHERE state = 'done';
-- elements of arrays that were cancelled before they started: see gschedd.store.unstarted
CREATE INDEX unstarted_elements ON jobs (ended_s)
WHERE state = 'done' AND outcome = 'cancelled' AND attempts = 0 AND id >= 1099511627776;

CREATE TABLE specs (
    job INTEGER PRIMARY KEY,
    spec BLOB NOT NULL,
    seal INTEGER
);

-- with rowids: without, SQLite puts what is longer than 1,000 bytes into a page of its own
CREATE TABLE attempts (
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    data BLOB NOT NULL,
    seal INTEGER
);
CREATE UNIQUE INDEX one_row_per_attempt ON attempts (job, attempt);
CREATE INDEX live_attempts ON attempts (job) WHERE state <> 'ended';

-- I6 in the database itself: jobs have no more than 100 % of the time of a GPU, nor more than its
-- memory where a node has reported that, or the commit fails
CREATE TABLE gpus (
    node TEXT NOT NULL,
    gpu INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    PRIMARY KEY (node, gpu)
) WITHOUT ROWID;
CREATE TABLE gpu_owners (
    node TEXT NOT NULL,
    gpu INTEGER NOT NULL,
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    percent INTEGER NOT NULL CHECK (percent BETWEEN 1 AND 100),
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes >= 0),
    PRIMARY KEY (node, gpu, job)
) WITHOUT ROWID;
CREATE INDEX gpus_of_attempt ON gpu_owners (job, attempt);
CREATE TRIGGER gpu_time_is_given_once BEFORE INSERT ON gpu_owners
WHEN NEW.percent + (
    SELECT coalesce(sum(percent), 0) FROM gpu_owners
    WHERE node = NEW.node AND gpu = NEW.gpu
) > 100
BEGIN
    SELECT RAISE(ABORT, 'gpu_owners: more than 100 % of a GPU');
END;
CREATE TRIGGER gpu_memory_is_given_once BEFORE INSERT ON gpu_owners
WHEN NEW.memory_bytes + (
    SELECT coalesce(sum(memory_bytes), 0) FROM gpu_owners
    WHERE node = NEW.node AND gpu = NEW.gpu
) > (SELECT memory_bytes FROM gpus WHERE node = NEW.node AND gpu = NEW.gpu)
BEGIN
    SELECT RAISE(ABORT, 'gpu_owners: more than the memory of a GPU');
END;

CREATE TABLE nodes (
    name TEXT PRIMARY KEY,
    data BLOB NOT NULL,
    seal INTEGER
) WITHOUT ROWID;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at_s REAL NOT NULL,
    kind TEXT NOT NULL,
    job INTEGER,
    node TEXT,
    data BLOB NOT NULL,
    seal INTEGER
);
CREATE INDEX events_of_job ON events (job) WHERE job IS NOT NULL;
CREATE INDEX events_of_nodes ON events (at_s) WHERE job IS NULL;
-- the newest of these teach the models of a head that starts
CREATE INDEX measured_startups ON events (seq) WHERE kind = 'StartupMeasured';
CREATE INDEX measured_steps ON events (seq) WHERE kind = 'StepsMeasured';
CREATE INDEX measured_migrations ON events (seq) WHERE kind = 'MigrationMeasured';
CREATE INDEX dropped_elements ON events (at_s) WHERE kind = 'ElementsDropped';

CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    data BLOB NOT NULL,
    uid INTEGER NOT NULL DEFAULT -1,
    bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX blobs_of_user ON blobs (uid, bytes);

-- What attempts have cost, in the order in which the head learned of it, beside what had been
-- predicted (predicted_, high_). The columns are those of gschedd.store.history.
CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    node TEXT NOT NULL,
    ended_s REAL NOT NULL,
    succeeded INTEGER NOT NULL,

    kind TEXT NOT NULL,
    program TEXT NOT NULL,
    owner_uid INTEGER NOT NULL,
    requested_cpus INTEGER NOT NULL,
    requested_gpus INTEGER NOT NULL,
    requested_memory_bytes INTEGER NOT NULL,
    requested_walltime_s REAL NOT NULL,

    cores REAL NOT NULL,
    core_rate REAL NOT NULL,
    memory_total_bytes INTEGER NOT NULL,
    gpus INTEGER NOT NULL,
    gpu_rate REAL NOT NULL,
    gpu_memory_total_bytes INTEGER NOT NULL,

    wall_s REAL NOT NULL,
    cpu_cores REAL NOT NULL,
    cpu_s REAL NOT NULL,
    memory_bytes REAL NOT NULL,
    gpus_busy REAL NOT NULL,
    gpu_memory_bytes REAL NOT NULL,
    cpu_peak_cores REAL NOT NULL,
    memory_peak_bytes INTEGER NOT NULL,
    gpu_memory_peak_bytes INTEGER NOT NULL,
    read_bytes INTEGER NOT NULL,
    write_bytes INTEGER NOT NULL,

    basis TEXT,
    records INTEGER,
    predicted_wall_s REAL,
    predicted_wall_high_s REAL,
    predicted_cpu_cores REAL,
    predicted_memory_bytes REAL,
    predicted_gpus_busy REAL,
    predicted_gpu_memory_bytes REAL,
    high_cpu_cores REAL,
    high_memory_bytes REAL,
    high_gpus_busy REAL,
    high_gpu_memory_bytes REAL,
    seal INTEGER
);
CREATE UNIQUE INDEX one_run_per_part ON history (job, attempt, node);
CREATE INDEX runs_of_node ON history (node);

-- What users have used for projects, as gschedd.shares.ledger.LedgerRow has it.
CREATE TABLE usage (
    project TEXT NOT NULL,
    user TEXT NOT NULL,
    data BLOB NOT NULL,
    seal INTEGER,
    PRIMARY KEY (project, user)
) WITHOUT ROWID;

-- As gsched.model.reservation.Reservation has them.
CREATE TABLE reservations (
    name TEXT PRIMARY KEY,
    data BLOB NOT NULL,
    seal INTEGER
) WITHOUT ROWID;

-- Every start of a head on this database: see gschedd.core.recovery.lineage.
CREATE TABLE epochs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    began_s REAL NOT NULL,
    prev_seq INTEGER NOT NULL,
    prev_job INTEGER NOT NULL,
    first_job INTEGER NOT NULL,
    accepted INTEGER NOT NULL
);
"""

#: Before the statements of `_NEW` are run on a database of the version before, and after them.
_BEFORE_NEW: Final = (
    "DROP INDEX runs_of_kind",
    "DROP INDEX ended_runs",
    "ALTER TABLE attempts RENAME TO attempts_before",
)
_AFTER_NEW: Final = (
    "INSERT INTO attempts SELECT * FROM attempts_before ORDER BY job, attempt",
    "DROP TABLE attempts_before",
)
#: What this version has and the one before has not, or not so: tables and indexes.
_NEW: Final = ("TABLE attempts", "UNIQUE INDEX one_row_per_attempt", "INDEX live_attempts")


def check_version(path: str, version: int) -> None:
    """Check that a database can be used: a new one, of this version, or of the one before.

    Raises:
        ConfigError: it cannot.
    """
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema {version}, this gsched knows up to {SCHEMA_VERSION}",
            hint="run the newer gsched, or restore the backup made before its first start",
        )
    if 0 < version < VERSION_BEFORE:
        raise ConfigError(
            f"{path} has schema {version}, this gsched takes over schema {VERSION_BEFORE} only",
            hint=f"start a gschedd that knows schema {VERSION_BEFORE} on it once, then this one",
        )


def create(db: sqlite3.Connection) -> None:
    """Create all tables, within a transaction of the caller."""
    for statement in _statements():
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def take_over(db: sqlite3.Connection) -> None:
    """Make a database of the version before one of this version, in a transaction of the caller."""
    new = [each for each in _statements() if any(f"CREATE {name} " in each for name in _NEW)]
    for statement in (*_BEFORE_NEW, *new, *_AFTER_NEW):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _statements() -> Iterator[str]:
    """Yield the statements of the schema; the body of a trigger is part of its statement."""
    statement = ""
    for part in SCHEMA.split(";")[:-1]:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
