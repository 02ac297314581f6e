"""Prints database-11.sql: the database of a head of schema 11 that is in use.

It is to be run in a checkout of 46b81be3, the last one with that schema:
``PYTHONPATH=CHECKOUT python database_11.py > database-11.sql``.

Job 1 has two of four GPUs, 2 has ended at its checkpoint signal, 3 has a guaranteed deadline, runs
without a GPU and migrates, 4 waits for two GPUs. The row of job 2 is damaged.
"""

import importlib
import sqlite3
import tempfile
from pathlib import Path

from gsched.model.job import ExitRecord
from gsched.model.resources import Load, Share, Usage
from gsched.model.states import OutcomeKind
from gsched.protocol import node as n
from gschedd.models.robust import RobustModel
from tests.support.books import Books

#: Some have other names today.
f = importlib.import_module("gschedd.core.state.facts")

with tempfile.TemporaryDirectory() as directory:
    books = Books(Path(directory), make_model=RobustModel)
    books.register(cpus=8, gpus=4)
    for resources in ("nodes=1:gpus=2", "nodes=1:gpus=1", "nodes=1", "nodes=1:gpus=2"):
        books.submit(resources, deadline_s=books.now_s + 1e6 if resources == "nodes=1" else 0.0)
    books.schedule()
    now_s = books.now_s
    attempt = {"at_s": now_s, "job": 3, "attempt": 1}
    learned = {"kind": "k", "program": "p", "owner_uid": 1000}
    target = {"allocation": (Share(node="n1", cpus=1),), "why": "test", "by": "test"}
    facts = [
        f.DeadlineJudged(at_s=now_s, job=3, meets=True),
        f.MoveRequested(**attempt, **target, request=1),
        f.PlaceLost(at_s=now_s, job=3, reason="test"),
        f.MoveAbandoned(**attempt, reason="test"),
        f.MoveMeasured(**attempt, cost_s=1.0, **learned),
        f.MoveRequested(**attempt, **target, request=2, prepare=2),
        f.MovePrepared(at_s=now_s, job=3, ready=False),
        f.NodeProbeAsked(at_s=now_s, node="n1", request=1, due_s=now_s + 120),
    ]
    for fact in facts:
        books.take(books.head._advance([fact], "test"))
    record = ExitRecord(job=2, attempt=1, kind=OutcomeKind.SIGNALLED, signal=10, ended_s=now_s + 9)
    record = importlib.import_module("msgspec").structs.replace(record, asked=1, asked_s=now_s + 5)
    said = n.Exited(record=record, usage=Usage(wall_s=9), load=Load())
    books.take(books.head.reported("n1", said, now_s + 9))
    books.store.close()
    with sqlite3.connect(books.store.path) as db:
        db.execute("UPDATE jobs SET cpu_s = 1e6 WHERE id = 2")
    print("\n".join(db.iterdump()))
    print("PRAGMA user_version = 11;")
