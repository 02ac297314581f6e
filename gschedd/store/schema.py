"""The database's schema, as steps from each version to the next.

Every step runs in one transaction after a backup; a head refuses a database that is newer than it.
"""

import sqlite3
from collections.abc import Iterator
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
    # What attempts have cost, in the order in which the head learned of it, beside what had been
    # predicted (said, high). The columns are those of gschedd.store.history.
    """
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
        asked_cpus INTEGER NOT NULL,
        asked_gpus INTEGER NOT NULL,
        asked_memory_bytes INTEGER NOT NULL,
        asked_walltime_s REAL NOT NULL,

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
        said_wall_s REAL,
        said_wall_high_s REAL,
        said_cpu_cores REAL,
        said_memory_bytes REAL,
        said_gpus_busy REAL,
        said_gpu_memory_bytes REAL,
        high_cpu_cores REAL,
        high_memory_bytes REAL,
        high_gpus_busy REAL,
        high_gpu_memory_bytes REAL
    );
    CREATE UNIQUE INDEX one_run_per_part ON history (job, attempt, node);
    CREATE INDEX runs_of_kind ON history (kind);
    CREATE INDEX runs_of_node ON history (node);
    CREATE INDEX ended_runs ON history (ended_s);
    CREATE INDEX events_of_nodes ON events (at_s) WHERE job IS NULL;
    """,
    # What is kept of jobs that have deadlines or move (JSON, see gschedd.store.rows.Course).
    """
    ALTER TABLE jobs ADD COLUMN course BLOB;
    """,
    # How long trainings took until their first steps is learned anew from the newest such events.
    """
    CREATE INDEX measured_startups ON events (seq) WHERE kind = 'StartupMeasured';
    """,
    # Likewise how long their steps take, and what moves have cost them.
    """
    CREATE INDEX measured_steps ON events (seq) WHERE kind = 'StepsMeasured';
    CREATE INDEX measured_moves ON events (seq) WHERE kind = 'MoveMeasured';
    """,
    # Checksums of rows (see gschedd.store.seals); rows written before have none.
    """
    ALTER TABLE jobs ADD COLUMN seal INTEGER;
    ALTER TABLE specs ADD COLUMN seal INTEGER;
    ALTER TABLE attempts ADD COLUMN seal INTEGER;
    ALTER TABLE nodes ADD COLUMN seal INTEGER;
    ALTER TABLE events ADD COLUMN seal INTEGER;
    ALTER TABLE history ADD COLUMN seal INTEGER;
    """,
    # Every start of a head on this database: see gschedd.core.recovery.lineage.
    """
    CREATE TABLE epochs (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL,
        began_s REAL NOT NULL,
        prev_seq INTEGER NOT NULL,
        prev_job INTEGER NOT NULL,
        first_job INTEGER NOT NULL,
        accepted INTEGER NOT NULL
    );
    """,
    # A GPU may have several owners. What they have of it is limited here, too (I6): 100 % of its
    # time, and its memory where a node has told that. Who owned a GPU until now owns all of it.
    """
    CREATE TABLE gpus (
        node TEXT NOT NULL,
        gpu INTEGER NOT NULL,
        memory_bytes INTEGER NOT NULL,
        PRIMARY KEY (node, gpu)
    ) WITHOUT ROWID;
    ALTER TABLE gpu_owners RENAME TO whole_gpu_owners;
    DROP INDEX gpus_of_attempt;
    CREATE TABLE gpu_owners (
        node TEXT NOT NULL,
        gpu INTEGER NOT NULL,
        job INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        percent INTEGER NOT NULL CHECK (percent BETWEEN 1 AND 100),
        memory_bytes INTEGER NOT NULL CHECK (memory_bytes >= 0),
        PRIMARY KEY (node, gpu, job)
    ) WITHOUT ROWID;
    INSERT INTO gpu_owners (node, gpu, job, attempt, percent, memory_bytes)
        SELECT node, gpu, job, attempt, 100, 0 FROM whole_gpu_owners;
    DROP TABLE whole_gpu_owners;
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
    """,
    # Texts of before belong to nobody's quota.
    """
    CREATE INDEX ended_jobs_of_user ON jobs (uid, ended_s) WHERE state = 'done';
    ALTER TABLE blobs ADD COLUMN uid INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE blobs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX blobs_of_user ON blobs (uid, bytes);
    """,
    # Elements of arrays that were cancelled before they started; see gschedd.store.unstarted.
    """
    CREATE INDEX dropped_elements ON events (at_s) WHERE kind = 'ElementsDropped';
    CREATE INDEX unstarted_elements ON jobs (ended_s)
    WHERE state = 'done' AND outcome = 'cancelled' AND attempts = 0 AND id >= 1099511627776;
    """,
)


def statements_of(step: str) -> Iterator[str]:
    """Yield the statements of a step; the body of a trigger is part of its statement."""
    statement = ""
    for part in step.split(";")[:-1]:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


SCHEMA_VERSION: Final = len(MIGRATIONS)
