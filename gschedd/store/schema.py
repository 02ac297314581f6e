"""The database's schema, as steps from each version to the next.

Every step runs in one transaction after a backup; a head refuses a database that is newer than it.
"""

from typing import Final

MIGRATIONS: Final[tuple[str, ...]] = (
    """
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
        client_key TEXT
    );
    CREATE UNIQUE INDEX one_job_per_key ON jobs (uid, client_key) WHERE client_key IS NOT NULL;
    CREATE INDEX live_jobs ON jobs (id) WHERE state <> 'done';
    CREATE INDEX ended_jobs ON jobs (ended_s) WHERE state = 'done';

    CREATE TABLE specs (
        job INTEGER PRIMARY KEY,
        spec BLOB NOT NULL
    );

    CREATE TABLE attempts (
        job INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        state TEXT NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (job, attempt)
    ) WITHOUT ROWID;

    -- I6 in the database itself: a GPU has one owner, or the commit fails
    CREATE TABLE gpu_owners (
        node TEXT NOT NULL,
        gpu INTEGER NOT NULL,
        job INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        PRIMARY KEY (node, gpu)
    ) WITHOUT ROWID;
    CREATE INDEX gpus_of_attempt ON gpu_owners (job, attempt);

    CREATE TABLE nodes (
        name TEXT PRIMARY KEY,
        data BLOB NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE events (
        seq INTEGER PRIMARY KEY,
        at_s REAL NOT NULL,
        kind TEXT NOT NULL,
        job INTEGER,
        node TEXT,
        data BLOB NOT NULL
    );
    CREATE INDEX events_of_job ON events (job) WHERE job IS NOT NULL;

    CREATE TABLE blobs (
        digest TEXT PRIMARY KEY,
        data BLOB NOT NULL
    ) WITHOUT ROWID;
    """,
)

SCHEMA_VERSION: Final = len(MIGRATIONS)
