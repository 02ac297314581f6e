"""What reports and accounts are made from: a narrow row for each attempt and job that has ended."""

import errno
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gsched.model.arrays import count
from gsched.model.job import LaunchFailure, Outcome
from gsched.model.resources import percent_held
from gsched.model.states import LaunchStage, OutcomeKind, Subject
from gsched.protocol.samples import UseSamples
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job, Part
from gschedd.monitor.model import MonitorBegin
from gschedd.monitor.records import HeadRecords
from gschedd.monitor.store import MonitorTable
from gschedd.store.purge import DAY_S

#: Rows that are removed at once.
SLICE: Final = 1000

#: Columns of ``usage``. What is 0 or NULL there was not measured, or not stated.
#: ``jobs``: how many jobs ended with the row: 1 with the last attempt of a job, any number for
#: elements of an array that were cancelled before they were jobs. An attempt of number 0 is a job
#: that ended without one, a negative one stands for such elements.
#: ``wait_s``: from the submission to the job's first start.
_USAGE: Final = """
CREATE TABLE IF NOT EXISTS usage (
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, ended_s REAL NOT NULL,
    jobs INTEGER NOT NULL DEFAULT 0, submitted_s REAL NOT NULL, wait_s REAL,
    user TEXT NOT NULL, account TEXT NOT NULL, queue TEXT NOT NULL, name TEXT NOT NULL,
    node TEXT NOT NULL, nodes INTEGER NOT NULL, cpus INTEGER NOT NULL, gpus REAL NOT NULL,
    gpu_type TEXT NOT NULL, memory_bytes INTEGER NOT NULL, walltime_s REAL,
    wall_s REAL NOT NULL, cpu_used_s REAL NOT NULL, gpu_used_s REAL,
    memory_peak_bytes INTEGER NOT NULL, memory_mean_bytes INTEGER NOT NULL,
    outcome TEXT NOT NULL, cause TEXT NOT NULL, exit_status INTEGER NOT NULL,
    deadline_s REAL NOT NULL, met INTEGER, guaranteed INTEGER,
    predicted_wall_s REAL, predicted_wall_high_s REAL,
    predicted_memory_bytes REAL, predicted_memory_high_bytes REAL,
    idle_gpu_s REAL NOT NULL DEFAULT 0, returned_gpu_s REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (job, attempt));
CREATE INDEX IF NOT EXISTS usage_by_end ON usage (ended_s);
"""
_MOVES: Final = """
CREATE TABLE IF NOT EXISTS usage_moves (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, job INTEGER NOT NULL, user TEXT NOT NULL,
    account TEXT NOT NULL, queue TEXT NOT NULL, name TEXT NOT NULL, gpus REAL NOT NULL,
    cost_s REAL NOT NULL, save_s REAL NOT NULL, size_bytes INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS usage_moves_by_time ON usage_moves (at_s);
"""
#: What nodes had, and since when and until when; without ``until_s``: to this day. Between, they
#: were down.
_NODES: Final = """
CREATE TABLE IF NOT EXISTS usage_nodes (
    seq INTEGER PRIMARY KEY, node TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL,
    up INTEGER NOT NULL, cpus INTEGER NOT NULL, gpus INTEGER NOT NULL, gpu_types TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS usage_nodes_now ON usage_nodes (node) WHERE until_s IS NULL;
"""
_IDLED: Final = "UPDATE usage SET idle_gpu_s = ?, returned_gpu_s = ? WHERE job = ? AND attempt = ?"
_OLD: Final = (
    "DELETE FROM usage WHERE rowid IN (SELECT rowid FROM usage WHERE ended_s < ? LIMIT ?)",
    "DELETE FROM usage_moves WHERE seq IN (SELECT seq FROM usage_moves WHERE at_s < ? LIMIT ?)",
    "DELETE FROM usage_nodes WHERE seq IN (SELECT seq FROM usage_nodes WHERE until_s < ? LIMIT ?)",
)
#: Errors of a file system and of what it lies on.
_STORAGE: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ETIMEDOUT}
)
_CAUSES: Final[Mapping[OutcomeKind, str]] = {
    OutcomeKind.EXITED: "user program",
    OutcomeKind.SIGNALLED: "user program",
    OutcomeKind.OOM: "out of memory",
    OutcomeKind.WALLTIME: "walltime",
    OutcomeKind.NODE_LOST: "node",
    OutcomeKind.SUPERVISOR_LOST: "node",
}
_SUBJECTS: Final = {
    Subject.JOB: "start of the job",
    Subject.USER: "user account",
    Subject.NODE: "node",
}


class UsageModel:
    """Writes the tables of usage; `gschedd.monitor.usage_queries` reads them."""

    tables: Sequence[MonitorTable] = (
        MonitorTable(name="usage", schema=_USAGE),
        MonitorTable(name="usage_moves", schema=_MOVES),
        MonitorTable(name="usage_nodes", schema=_NODES),
    )
    kinds: Sequence[str] = (
        *("AttemptEnded", "JobEnded", "ElementsDropped", "MigrationMeasured", "GpusIdled"),
        *("NodeRegistered", "NodeDisconnected", "NodeRemoved"),
    )

    def __init__(self, begin: MonitorBegin) -> None:
        self._keep_days = begin.history.keep_days
        self._records = HeadRecords()

    def note_event(self, db: sqlite3.Connection, seq: int, fact: f.AnyFact) -> None:
        """Take an event in, within the transaction that moves the cursor."""
        match fact:
            case f.AttemptEnded():
                self._attempt_ended(db, fact)
            case f.JobEnded():
                self._job_ended(db, fact)
            case f.ElementsDropped():
                self._elements_dropped(db, seq, fact)
            case f.MigrationMeasured():
                self._moved(db, seq, fact)
            case f.GpusIdled():
                db.execute(_IDLED, (fact.idle_s, fact.returned_s, fact.job, fact.attempt))
            case f.NodeRegistered():
                inventory = fact.inventory
                types = Counter(gpu.type for gpu in inventory.gpus)
                has = (inventory.cpus, len(inventory.gpus), msgspec.json.encode(types).decode())
                _note_node(db, seq, fact, (1, *has))
            case f.NodeDisconnected():
                query = "SELECT cpus, gpus, gpu_types FROM usage_nodes WHERE node = ? "
                last = db.execute(query + "AND until_s IS NULL", (fact.node,)).fetchone()
                _note_node(db, seq, fact, (0, *last) if last else None)
            case f.NodeRemoved():
                _note_node(db, seq, fact, None)
            case _:
                pass

    def note_samples(self, db: sqlite3.Connection, samples: UseSamples) -> None:
        """Remove some rows that are too old."""
        if self._keep_days > 0:
            before_s = samples.now_s - self._keep_days * DAY_S
            for statement in _OLD:
                db.execute(statement, (before_s, SLICE))

    def _attempt_ended(self, db: sqlite3.Connection, fact: f.AttemptEnded) -> None:
        job, attempt = self._both(db, fact)
        if job is None or attempt is None:
            return  # it is purged, or its records are damaged
        _insert(db, {**_of_job(job), **_of_attempt(db, job, attempt, fact)})

    def _both(
        self, db: sqlite3.Connection, fact: f.AttemptFact
    ) -> tuple[Job | None, Attempt | None]:
        records = self._records
        return records.job(db, fact.job), records.attempt(db, fact.job, fact.attempt)

    def _job_ended(self, db: sqlite3.Connection, fact: f.JobEnded) -> None:
        job = self._records.job(db, fact.job)
        if job is None or job.spec.array is not None:  # the elements of an array count
            return
        outcome = fact.outcome
        deadline_s = job.spec.deadline_s
        ended = {
            "jobs": 1,
            "wait_s": None if job.started_s is None else max(0.0, job.started_s - job.submitted_s),
            "outcome": outcome.kind.value,
            "exit_status": outcome.pbs_status,
            "met": int(outcome.succeeded and fact.ended_s <= deadline_s) if deadline_s else None,
            "guaranteed": job.guaranteed if deadline_s else None,
        }
        values = ", ".join(f"{name} = ?" for name in ended)
        updated = db.execute(
            f"UPDATE usage SET {values} WHERE job = ? AND attempt = ? AND ended_s = ?",  # noqa: S608 # the names are constants
            (*ended.values(), job.id, job.attempts, fact.ended_s),
        )
        if not updated.rowcount:  # it ended while it waited
            number = {"attempt": 0, "ended_s": fact.ended_s, "cause": cause_of(outcome, ())}
            _insert(db, {**_of_job(job), **number, **ended})

    def _elements_dropped(self, db: sqlite3.Connection, seq: int, fact: f.ElementsDropped) -> None:
        array = self._records.job(db, fact.job)
        if array is None:
            return
        outcome = Outcome(kind=OutcomeKind.CANCELLED)
        ended = {
            "attempt": -seq,
            "ended_s": fact.at_s,
            "jobs": count(fact.elements),
            "outcome": outcome.kind.value,
            "cause": cause_of(outcome, ()),
            "exit_status": outcome.pbs_status,
        }
        _insert(db, {**_of_job(array), **ended})

    def _moved(self, db: sqlite3.Connection, seq: int, fact: f.MigrationMeasured) -> None:
        job, attempt = self._both(db, fact)
        if job is None or attempt is None:
            return
        spec = job.spec
        whose = (spec.owner.user, spec.account, spec.queue, spec.name)
        cost = (percent_held(attempt.allocation) / 100, fact.cost_s, fact.save_s, fact.size_bytes)
        db.execute(
            "INSERT OR REPLACE INTO usage_moves VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (seq, fact.at_s, job.id, *whose, *cost),
        )


def _insert(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    marks = ", ".join("?" * len(values))
    db.execute(
        f"INSERT OR REPLACE INTO usage ({', '.join(values)}) VALUES ({marks})",  # noqa: S608 # the names are constants
        tuple(values.values()),
    )


def _note_node(
    db: sqlite3.Connection, seq: int, fact: f.NodeFact, has: tuple[object, ...] | None
) -> None:
    """Note that a node has something else from now on; None: it is gone."""
    query = "UPDATE usage_nodes SET until_s = ? WHERE node = ? AND until_s IS NULL"
    db.execute(query, (fact.at_s, fact.node))
    if has is not None:
        row = (seq, fact.node, fact.at_s, None, *has)
        db.execute("INSERT OR REPLACE INTO usage_nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def _of_job(job: Job) -> dict[str, Any]:
    """Return the columns of a job, as of one that never ran."""
    spec = job.spec
    return {
        "job": job.id,
        "submitted_s": job.submitted_s,
        "user": spec.owner.user,
        "account": spec.account,
        "queue": spec.queue,
        "name": spec.name,
        "node": "",
        "nodes": 0,
        "cpus": spec.request.cpus,
        "gpus": spec.request.gpus,
        "gpu_type": "",
        "memory_bytes": spec.request.memory_bytes,
        "walltime_s": spec.walltime_s,
        "wall_s": 0.0,
        "cpu_used_s": 0.0,
        "memory_peak_bytes": 0,
        "memory_mean_bytes": 0,
        "deadline_s": spec.deadline_s,
    }


def _of_attempt(
    db: sqlite3.Connection, job: Job, attempt: Attempt, fact: f.AttemptEnded
) -> dict[str, Any]:
    """Return the columns of an attempt that has ended."""
    usage, outcome = fact.usage, fact.outcome
    gpus = percent_held(attempt.allocation) / 100
    predicted = [part.prediction for part in attempt.parts.values() if part.prediction]
    walls = [(each.wall_s, each.wall_high_s) for each in predicted if each.wall_s is not None]
    return {
        "attempt": attempt.number,
        "ended_s": fact.ended_s,
        "node": next(iter(attempt.parts), ""),
        "nodes": len(attempt.parts),
        "cpus": sum(share.cpus for share in attempt.allocation),
        "gpus": gpus,
        "gpu_type": gpu_types_of(db, attempt) if gpus else "",
        "memory_bytes": sum(share.memory_bytes for share in attempt.allocation)
        or job.spec.request.memory_bytes,
        "wall_s": usage.wall_s,
        "cpu_used_s": usage.cpu_s,
        "gpu_used_s": _gpu_used_s(db, attempt) if gpus else None,
        "memory_peak_bytes": usage.memory_peak_bytes,
        "memory_mean_bytes": usage.memory_mean_bytes,
        "outcome": outcome.kind.value,
        "cause": cause_of(outcome, tuple(attempt.parts.values())),
        "exit_status": outcome.pbs_status,
        "predicted_wall_s": max((wall for wall, _ in walls), default=None),
        "predicted_wall_high_s": max((high or wall for wall, high in walls), default=None),
        "predicted_memory_bytes": sum(p.use.memory_bytes for p in predicted) or None,
        "predicted_memory_high_bytes": sum(p.high.memory_bytes for p in predicted) or None,
    }


def _gpu_used_s(db: sqlite3.Connection, attempt: Attempt) -> float | None:
    """Return for how long the GPUs of an attempt were busy, added up; None: nobody has measured.

    GPUs that others use as well are not measured for each of them: they count as in use. Those that
    a node only declares are not measured at all.
    """
    found = 0.0
    for part in attempt.parts.values():
        usage, held = part.usage, list(part.share.gpus_held)
        if usage is None or not held:
            continue
        known = _gpus_on(db, part.share.node)
        if not usage.samples or not all(known.get(each.index, {}).get("uuid") for each in held):
            return None
        busy = usage.gpu_util_mean_percent / 100 * len(part.share.gpu_indices)
        shared = sum(each.percent for each in part.share.gpu_shares) / 100
        found += usage.wall_s * (busy + shared)
    return found


def gpu_types_of(db: sqlite3.Connection, attempt: Attempt) -> str:
    """Return the GPUs of an attempt by type: ``a100``, or ``a100:2+h100:4``; ``-``: not known."""
    percent: Counter[str] = Counter()
    for share in attempt.allocation:
        gpus = _gpus_on(db, share.node)
        for held in share.gpus_held:
            percent[gpus.get(held.index, {}).get("type") or "-"] += held.percent
    if len(percent) == 1:
        return next(iter(percent))
    return "+".join(f"{name}:{held / 100:g}" for name, held in sorted(percent.items()))


def _gpus_on(db: sqlite3.Connection, node: str) -> dict[int, dict[str, Any]]:
    """Return the GPUs of a node by index."""
    row = db.execute("SELECT data FROM head.nodes WHERE name = ?", (node,)).fetchone()
    inventory = msgspec.json.decode(row[0])["inventory"] if row is not None else {}
    return {gpu["index"]: gpu for gpu in inventory.get("gpus", ())}


def cause_of(outcome: Outcome, parts: Sequence[Part]) -> str:
    """Return why an attempt or job failed, in words; empty: it did not."""
    if outcome.succeeded:
        return ""
    if outcome.kind is OutcomeKind.LAUNCH_FAILED:
        records = (part.record for part in parts)
        failures = (record.failure for record in records if record is not None)
        return _cause_of_start(next((each for each in failures if each is not None), None))
    return _CAUSES.get(outcome.kind, "")


def _cause_of_start(failure: LaunchFailure | None) -> str:
    if failure is None:
        return "node"
    if failure.errno in _STORAGE:
        return "storage"
    if failure.stage in {LaunchStage.MESSAGE, LaunchStage.ORDER}:
        return "node"
    return _SUBJECTS[failure.subject]
