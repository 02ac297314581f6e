"""What reports and accounts are made from: a narrow row for each attempt and job that has ended."""

import errno
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gsched.model.arrays import count
from gsched.model.job import LaunchFailure, Outcome
from gsched.model.resources import Usage, percent_held
from gsched.model.states import LaunchStage, OutcomeKind, Subject
from gsched.protocol.samples import UseSamples
from gschedd.core.state import facts as f
from gschedd.core.state.records import Attempt, Job, Part
from gschedd.monitor.feed import Event
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
#: ``wait_s``: from the submission to the job's first start; ``wall_s``: what is billed.
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
_PREEMPTIONS: Final = """
CREATE TABLE IF NOT EXISTS usage_preemptions (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, job INTEGER NOT NULL, attempt INTEGER NOT NULL,
    user TEXT NOT NULL, account TEXT NOT NULL, queue TEXT NOT NULL, name TEXT NOT NULL,
    way TEXT NOT NULL, lost_gpu_s REAL NOT NULL);
CREATE INDEX IF NOT EXISTS usage_preemptions_by_time ON usage_preemptions (at_s);
"""
#: What nodes had, and since when and until when; without ``until_s``: to this day. Between, they
#: were down.
_NODES: Final = """
CREATE TABLE IF NOT EXISTS usage_nodes (
    seq INTEGER PRIMARY KEY, node TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL,
    up INTEGER NOT NULL, cpus INTEGER NOT NULL, gpus INTEGER NOT NULL, gpu_types TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS usage_nodes_now ON usage_nodes (node) WHERE until_s IS NULL;
"""
#: What an event may leave out of a row, in the order of the columns.
_EMPTY: Final[dict[str, Any]] = dict.fromkeys(
    (
        *("job", "attempt", "ended_s", "jobs", "submitted_s", "wait_s", "user", "account"),
        *("queue", "name", "node", "nodes", "cpus", "gpus", "gpu_type", "memory_bytes"),
        *("walltime_s", "wall_s", "cpu_used_s", "gpu_used_s", "memory_peak_bytes"),
        *("memory_mean_bytes", "outcome", "cause", "exit_status", "deadline_s", "met"),
        *("guaranteed", "predicted_wall_s", "predicted_wall_high_s", "predicted_memory_bytes"),
        *("predicted_memory_high_bytes", "idle_gpu_s", "returned_gpu_s"),
    )
) | {"jobs": 0, "idle_gpu_s": 0.0, "returned_gpu_s": 0.0}
_OLD: Final = (
    "DELETE FROM usage WHERE rowid IN (SELECT rowid FROM usage WHERE ended_s < ? LIMIT ?)",
    "DELETE FROM usage_moves WHERE seq IN (SELECT seq FROM usage_moves WHERE at_s < ? LIMIT ?)",
    (
        "DELETE FROM usage_preemptions WHERE seq IN "
        "(SELECT seq FROM usage_preemptions WHERE at_s < ? LIMIT ?)"
    ),
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
        MonitorTable(name="usage_preemptions", schema=_PREEMPTIONS),
        MonitorTable(name="usage_nodes", schema=_NODES),
    )
    kinds: Sequence[str] = (
        *("AttemptEnded", "AttemptRecovered", "JobEnded", "ElementsDropped"),
        *("MigrationMeasured", "GpusIdled", "JobPreempted"),
        *("NodeRegistered", "NodeDisconnected", "NodeRemoved"),
    )

    def __init__(self, begin: MonitorBegin) -> None:
        self._keep_days = begin.history.keep_days

    def note_events(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        """Take events in, within the transaction that moves the cursor."""
        written = _Written(db)
        written.records.read(
            fact.job
            for _, fact in events
            if isinstance(fact, f.AttemptEnded | f.AttemptRecovered | f.JobEnded)
        )
        for seq, fact in events:
            match fact:
                case f.AttemptEnded():
                    written.attempt_ended(fact)
                case f.AttemptRecovered():
                    written.attempt_replaced(fact)
                case f.JobEnded():
                    written.job_ended(fact)
                case f.ElementsDropped():
                    written.elements_dropped(seq, fact)
                case f.MigrationMeasured():
                    written.moved(seq, fact)
                case f.JobPreempted():
                    written.preempted(seq, fact)
                case f.GpusIdled():
                    idled = {"idle_gpu_s": fact.idle_s, "returned_gpu_s": fact.returned_s}
                    written.change(fact.job, fact.attempt, None, idled)
                case f.NodeRegistered() | f.NodeDisconnected() | f.NodeRemoved():
                    _note_node_fact(db, seq, fact)
                case _:
                    pass
        written.write()

    def note_samples(self, db: sqlite3.Connection, samples: UseSamples) -> None:
        """Remove some rows that are too old."""
        if self._keep_days > 0:
            before_s = samples.now_s - self._keep_days * DAY_S
            for statement in _OLD:
                db.execute(statement, (before_s, SLICE))


class _Written:
    """The rows that events of one transaction make, which are written together.

    Attributes:
        records: of the head.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.records = HeadRecords(db)
        self._rows: dict[tuple[int, int], dict[str, Any]] = {}

    def _add(self, values: dict[str, Any]) -> None:
        self._rows[values["job"], values["attempt"]] = values

    def change(
        self, job: int, attempt: int, ended_s: float | None, values: Mapping[str, Any]
    ) -> bool:
        """Change the row of an attempt; return whether there is one, which ended at that time."""
        row = self._rows.get((job, attempt))
        if row is not None:
            if ended_s is not None and row["ended_s"] != ended_s:
                return False
            row.update(values)
            return True
        names = ", ".join(f"{name} = ?" for name in values)
        query = f"UPDATE usage SET {names} WHERE job = ? AND attempt = ?"  # noqa: S608 # constants
        bound = (*values.values(), job, attempt)
        if ended_s is not None:
            query, bound = f"{query} AND ended_s = ?", (*bound, ended_s)
        updated = self._db.execute(query, bound)
        return updated.rowcount > 0

    def write(self) -> None:
        """Write all rows."""
        marks = ", ".join("?" * len(_EMPTY))
        self._db.executemany(
            f"INSERT OR REPLACE INTO usage ({', '.join(_EMPTY)}) VALUES ({marks})",  # noqa: S608 # the names are constants
            (tuple((_EMPTY | row).values()) for row in self._rows.values()),
        )

    def attempt_ended(self, fact: f.AttemptEnded) -> None:
        """Add the row of an attempt."""
        job, attempt = self._both(fact)
        if job is None or attempt is None:
            return  # it is purged, or its records are damaged
        self._add({**_of_job(job), **_of_attempt(self.records, job, attempt)})

    def attempt_replaced(self, fact: f.AttemptRecovered) -> None:
        """Add the row of the attempt whose place another one has taken, which ends without a fact.

        An older one that has ended by a fact has its row.
        """
        job = self.records.job(fact.job)
        known = (self.records.attempt(fact.job, each) for each in range(fact.attempt - 1, 0, -1))
        older = next((each for each in known if each is not None), None)
        if job is None or older is None or older.ended_s is None:
            return
        if not self.change(fact.job, older.number, None, {"attempt": older.number}):
            self._add({**_of_job(job), **_of_attempt(self.records, job, older)})

    def _both(self, fact: f.AttemptFact) -> tuple[Job | None, Attempt | None]:
        return self.records.job(fact.job), self.records.attempt(fact.job, fact.attempt)

    def job_ended(self, fact: f.JobEnded) -> None:
        """Note that a job has ended with its last attempt, or add a row of one without."""
        job = self.records.job(fact.job)
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
        if not self.change(job.id, job.attempts, fact.ended_s, ended):  # it ended while it waited
            number = {"attempt": 0, "ended_s": fact.ended_s, "cause": cause_of(outcome, ())}
            self._add({**_of_job(job), **number, **ended})

    def elements_dropped(self, seq: int, fact: f.ElementsDropped) -> None:
        """Add a row of elements that were cancelled before they were jobs."""
        array = self.records.job(fact.job)
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
        self._add({**_of_job(array), **ended})

    def moved(self, seq: int, fact: f.MigrationMeasured) -> None:
        """Add a row of a migration."""
        job, attempt = self._both(fact)
        if job is None or attempt is None:
            return
        whose = _whose(job)
        cost = (percent_held(attempt.allocation) / 100, fact.cost_s, fact.save_s, fact.size_bytes)
        self._db.execute(
            "INSERT OR REPLACE INTO usage_moves VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (seq, fact.at_s, job.id, *whose, *cost),
        )

    def preempted(self, seq: int, fact: f.JobPreempted) -> None:
        """Add a row of a job that gives way."""
        job = self.records.job(fact.job)
        if job is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO usage_preemptions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(seq, fact.at_s, job.id, fact.attempt),
                    *(*_whose(job), fact.way, fact.gpus * fact.lost_s),
                ),
            )


def _whose(job: Job) -> tuple[str, str, str, str]:
    spec = job.spec
    return (spec.owner.user, spec.account, spec.queue, spec.name)


def _note_node_fact(
    db: sqlite3.Connection, seq: int, fact: f.NodeRegistered | f.NodeDisconnected | f.NodeRemoved
) -> None:
    """Note what a node has from a fact on."""
    if isinstance(fact, f.NodeRegistered):
        inventory = fact.inventory
        types = Counter(gpu.type for gpu in inventory.gpus)
        has = (inventory.cpus, len(inventory.gpus), msgspec.json.encode(types).decode())
        _note_node(db, seq, fact, (1, *has))
    elif isinstance(fact, f.NodeDisconnected):
        query = "SELECT cpus, gpus, gpu_types FROM usage_nodes WHERE node = ? AND until_s IS NULL"
        last = db.execute(query, (fact.node,)).fetchone()
        _note_node(db, seq, fact, (0, *last) if last else None)
    else:
        _note_node(db, seq, fact, None)


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


def _of_attempt(records: HeadRecords, job: Job, attempt: Attempt) -> dict[str, Any]:
    """Return the columns of an attempt that has ended.

    Its time is what users are billed for, as by `gschedd.core.state.billing`: from the start of its
    first part to the end of its last one, also where no part could be measured to its end.
    """
    usage, outcome = attempt.usage or Usage(), attempt.outcome or Outcome(kind=OutcomeKind.RERUN)
    ended_s = attempt.ended_s or attempt.assigned_s
    started_s = ended_s if attempt.started_s is None else attempt.started_s
    gpus = percent_held(attempt.allocation) / 100
    predicted = [part.prediction for part in attempt.parts.values() if part.prediction]
    walls = [(each.wall_s, each.wall_high_s) for each in predicted if each.wall_s is not None]
    return {
        "attempt": attempt.number,
        "ended_s": ended_s,
        "node": next(iter(attempt.parts), ""),
        "nodes": len(attempt.parts),
        "cpus": sum(share.cpus for share in attempt.allocation),
        "gpus": gpus,
        "gpu_type": gpu_types_of(records, attempt) if gpus else "",
        "memory_bytes": sum(share.memory_bytes for share in attempt.allocation)
        or job.spec.request.memory_bytes,
        "wall_s": max(0.0, ended_s - started_s),
        "cpu_used_s": usage.cpu_s,
        "gpu_used_s": _gpu_used_s(records, attempt) if gpus else None,
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


def _gpu_used_s(records: HeadRecords, attempt: Attempt) -> float | None:
    """Return for how long the GPUs of an attempt were busy, added up; None: nobody has measured.

    GPUs that others use as well are not measured for each of them: they count as in use. Those that
    a node only declares are not measured at all.
    """
    found = 0.0
    for part in attempt.parts.values():
        usage, held = part.usage, list(part.share.gpus_held)
        if usage is None or not held:
            continue
        known = records.gpus_on(part.share.node)
        if not usage.samples or not all(known.get(each.index, {}).get("uuid") for each in held):
            return None
        busy = usage.gpu_util_mean_percent / 100 * len(part.share.gpu_indices)
        shared = sum(each.percent for each in part.share.gpu_shares) / 100
        found += usage.wall_s * (busy + shared)
    return found


def gpu_types_of(records: HeadRecords, attempt: Attempt) -> str:
    """Return the GPUs of an attempt by type: ``a100``, or ``a100:2+h100:4``; ``-``: not known."""
    percent: Counter[str] = Counter()
    for share in attempt.allocation:
        gpus = records.gpus_on(share.node)
        for held in share.gpus_held:
            percent[gpus.get(held.index, {}).get("type") or "-"] += held.percent
    if len(percent) == 1:
        return next(iter(percent))
    return "+".join(f"{name}:{held / 100:g}" for name, held in sorted(percent.items()))


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
