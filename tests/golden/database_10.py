"""Prints database-10.sql: the database of a head of schema 10 that is in use.

It is to be run in a checkout of fc8bcacd, the last one with that schema:
``PYTHONPATH=CHECKOUT python database_10.py > database-10.sql``.

Job 1 has two of four GPUs, 2 has ended, 3 runs without a GPU and has migrated, 4 waits for two
GPUs. The row of job 4 is older than checksums, and that of job 2 is damaged.
"""

import importlib
import sqlite3
import tempfile
from pathlib import Path

from tests.support.books import Books

#: It is elsewhere today.
MigrationProgress = importlib.import_module("gschedd.core.state").MigrationProgress

with tempfile.TemporaryDirectory() as directory:
    books = Books(Path(directory))
    books.register(cpus=8, gpus=4)
    for resources in ("nodes=1:gpus=2", "nodes=1:gpus=1", "nodes=1", "nodes=1:gpus=2"):
        books.submit(resources, deadline_s=books.now_s + 1e6 if resources == "nodes=1" else 0.0)
    books.schedule()
    moved = books.head.state.jobs[3]
    moved.moves, moved.migration = 1, MigrationProgress(asked_s=1.0, saved_s=2.0, resumed_s=9.0)
    books.head.state.unstored.jobs[3] = moved
    books.exit(2)
    books.store.close()
    with sqlite3.connect(books.store.path) as db:
        db.execute("UPDATE jobs SET seal = NULL WHERE id = 4")
        db.execute("UPDATE jobs SET cpu_s = 1e6 WHERE id = 2")
    print("\n".join(db.iterdump()))
    print("PRAGMA user_version = 10;")
