"""Prints database-14.sql: the database of a head of schema 14 that is in use.

It is to be run in a checkout of 8fcfce8e, one with that schema:
``PYTHONPATH=CHECKOUT python database_14.py > database-14.sql``.

Job 1 has two of four GPUs, 2 has ended at its checkpoint signal, 3 has a guaranteed deadline, runs
without a GPU and migrates, 4 waits for two GPUs. The row of job 2 is damaged.
"""

import sqlite3
import tempfile
from pathlib import Path

from gsched.model.job import ExitRecord
from gsched.model.resources import Load, Share, Usage
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.core.state import facts as f
from gschedd.models.robust import RobustModel
from tests.support.books import Books

with tempfile.TemporaryDirectory() as directory:
    books = Books(Path(directory), make_model=RobustModel)
    books.register(cpus=8, gpus=4)
    for resources in ("nodes=1:gpus=2", "nodes=1:gpus=1", "nodes=1", "nodes=1:gpus=2"):
        books.submit(resources, deadline_s=books.now_s + 1e6 if resources == "nodes=1" else 0.0)
    books.schedule()
    now_s = books.now_s
    share = Share(node="n1", cpus=1)
    for fact in (
        f.DeadlineJudged(at_s=now_s, job=3, meets=True),
        f.MigrationRequested(
            at_s=now_s, job=3, attempt=1, allocation=(share,), why="test", by="test", request=1
        ),
        f.TargetLost(at_s=now_s, job=3, reason="test"),
        f.MigrationAbandoned(at_s=now_s, job=3, attempt=1, reason="test"),
        f.MigrationRequested(
            at_s=now_s, job=3, attempt=1, allocation=(share,), why="test", by="test", request=2
        ),
    ):
        books.take(books.head._advance([fact], "test"))
    started = n.Started(job=1, attempt=1, pid=1, started_s=now_s)
    books.take(books.head.reported("n1", started, now_s))
    record = ExitRecord(job=2, attempt=1, kind=OutcomeKind.SIGNALLED, signal=10, ended_s=now_s + 9)
    exited = n.Exited(record=record, usage=Usage(wall_s=9), load=Load())
    books.take(books.head.reported("n1", exited, now_s + 9))
    books.store.close()
    with sqlite3.connect(books.store.path) as db:
        db.execute("UPDATE jobs SET cpu_s = 1e6 WHERE id = 2")
    print("\n".join(db.iterdump()))
    print("PRAGMA user_version = 14;")
