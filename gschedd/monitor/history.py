"""The use of nodes, GPUs and jobs over time, from the samples that the monitor takes."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from gsched.model.resources import LiveUse
from gsched.protocol.samples import GpuUseSample, NodeUseSample, UseSamples
from gschedd.monitor.feed import Event
from gschedd.monitor.model import MonitorBegin
from gschedd.monitor.store import MonitorTable

DAY_S: Final = 86400
#: Rows of the last day are as frequent as samples; older ones are means of so many seconds.
COARSE_S: Final = 300
#: Jobs are recorded that often at most: there are many more of them than nodes.
JOB_PERIOD_S: Final = 60
_MEGABYTE: Final = 1 << 20
#: A row is (key, at_s) and figures as MessagePack; both kinds of a table have the same columns.
_TABLES: Final = ("node_use", "node_use_coarse", "job_use", "job_use_coarse")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {0} (
    name NOT NULL, at_s INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (name, at_s)
) WITHOUT ROWID;
"""


class GpuPoint(Struct, frozen=True, array_like=True):
    """A GPU at a moment: percent busy (None: not measured), MiB in use, and whose jobs have it."""

    busy: float | None
    memory_mb: int
    jobs: tuple[int, ...] = ()


class NodePoint(Struct, frozen=True, array_like=True):
    """A node at a moment: percent of its CPUs, MiB of its memory, and its GPUs by index."""

    cpu: float
    memory_mb: int
    gpus: dict[int, GpuPoint]


class JobPoint(Struct, frozen=True, array_like=True):
    """A job at a moment, on all of its nodes: cores and GPUs that are busy, and MiB in use."""

    cores: float
    memory_mb: int
    gpus: float
    gpu_memory_mb: int


_encode = msgspec.msgpack.Encoder().encode
_decode_node = msgspec.msgpack.Decoder(NodePoint).decode
_decode_job = msgspec.msgpack.Decoder(JobPoint).decode


class UseHistory:
    """Keeps samples for a day, and means of five minutes for as long as is configured."""

    tables: Sequence[MonitorTable] = tuple(
        MonitorTable(name=name, schema=_SCHEMA.format(name), derived=False) for name in _TABLES
    )
    kinds: Sequence[str] = ()

    def __init__(self, begin: MonitorBegin) -> None:
        self._keep_s = begin.config.keep_sample_days * DAY_S
        self._jobs_s = 0.0
        self._bin = 0
        self._purged_s = 0.0

    def note_events(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        """Take no event in."""

    def note_samples(self, db: sqlite3.Connection, samples: UseSamples) -> None:
        """Write a row for each node that tells its load, and for each running job."""
        at_s = int(samples.now_s)
        nodes = [(each.name, at_s, _encode(_node_point(each))) for each in _telling(samples)]
        db.executemany("INSERT OR REPLACE INTO node_use VALUES (?, ?, ?)", nodes)
        if at_s - self._jobs_s >= JOB_PERIOD_S:
            self._jobs_s = at_s
            jobs = [
                (each.id, at_s, _encode(_job_point(each.use)))
                for each in samples.jobs
                if each.use is not None
            ]
            db.executemany("INSERT OR REPLACE INTO job_use VALUES (?, ?, ?)", jobs)
        this = at_s // COARSE_S
        if this != self._bin:
            if self._bin:
                begin_s = self._bin * COARSE_S
                _coarsen(db, "node_use", begin_s, [name for name, *_ in nodes], _mean_node)
                _coarsen(db, "job_use", begin_s, [each.id for each in samples.jobs], _mean_job)
            self._bin = this
            self._purge(db, at_s)

    def _purge(self, db: sqlite3.Connection, at_s: int) -> None:
        """Remove what is too old; once an hour."""
        if at_s - self._purged_s < 3600:
            return
        self._purged_s = at_s
        for name in _TABLES:
            kept_s = self._keep_s if name.endswith("_coarse") else DAY_S
            if kept_s:
                db.execute(f"DELETE FROM {name} WHERE at_s < ?", (at_s - kept_s,))  # noqa: S608 # constants


def _telling(samples: UseSamples) -> Iterable[NodeUseSample]:
    return (each for each in samples.nodes if each.state == "up" and each.load is not None)


def _node_point(node: NodeUseSample) -> NodePoint:
    load = node.load
    assert load is not None, "it tells its load"
    return NodePoint(
        cpu=round(load.cpu_percent, 1),
        memory_mb=load.memory_used_bytes // _MEGABYTE,
        gpus={gpu.index: _gpu_point(node, at, gpu) for at, gpu in enumerate(node.gpus)},
    )


def _gpu_point(node: NodeUseSample, at: int, gpu: GpuUseSample) -> GpuPoint:
    load = node.load
    assert load is not None, "it tells its load"
    busy, memory = load.gpu_util_percent, load.gpu_memory_used_bytes
    return GpuPoint(
        busy=round(busy[at], 1) if at < len(busy) else None,
        memory_mb=memory[at] // _MEGABYTE if at < len(memory) else 0,
        jobs=gpu.jobs,
    )


def _job_point(use: LiveUse) -> JobPoint:
    return JobPoint(
        cores=round(use.cpu_cores, 2),
        memory_mb=use.memory_bytes // _MEGABYTE,
        gpus=round(use.gpus, 3),
        gpu_memory_mb=use.gpu_memory_bytes // _MEGABYTE,
    )


def _coarsen(
    db: sqlite3.Connection,
    table: str,
    begin_s: int,
    names: Iterable[str | int],
    mean: Callable[[list[bytes]], bytes],
) -> None:
    """Write the means of five minutes that begin at a moment."""
    query = f"SELECT data FROM {table} WHERE name = ? AND at_s >= ? AND at_s < ?"  # noqa: S608 # a constant
    rows = []
    for name in names:
        found = [data for (data,) in db.execute(query, (name, begin_s, begin_s + COARSE_S))]
        if found:
            rows.append((name, begin_s, mean(found)))
    db.executemany(f"INSERT OR REPLACE INTO {table}_coarse VALUES (?, ?, ?)", rows)  # noqa: S608 # a constant


def _mean_node(found: list[bytes]) -> bytes:
    points = [_decode_node(data) for data in found]
    gpus = {}
    for index in points[-1].gpus:
        same = [point.gpus[index] for point in points if index in point.gpus]
        busy = [each.busy for each in same if each.busy is not None]
        gpus[index] = GpuPoint(
            busy=round(sum(busy) / len(busy), 1) if busy else None,
            memory_mb=max(each.memory_mb for each in same),
            jobs=tuple(dict.fromkeys(job for each in same for job in each.jobs)),
        )
    count = len(points)
    return _encode(
        NodePoint(
            cpu=round(sum(each.cpu for each in points) / count, 1),
            memory_mb=max(each.memory_mb for each in points),
            gpus=gpus,
        )
    )


def _mean_job(found: list[bytes]) -> bytes:
    points = [_decode_job(data) for data in found]
    count = len(points)
    return _encode(
        JobPoint(
            cores=round(sum(each.cores for each in points) / count, 2),
            memory_mb=max(each.memory_mb for each in points),
            gpus=round(sum(each.gpus for each in points) / count, 3),
            gpu_memory_mb=max(each.gpu_memory_mb for each in points),
        )
    )


def node_points(
    db: sqlite3.Connection, node: str, since_s: float, until_s: float
) -> list[tuple[int, NodePoint]]:
    """Return how a node was used within a period, by time."""
    return [
        (at_s, _decode_node(data)) for at_s, data in _rows(db, "node_use", node, since_s, until_s)
    ]


def job_points(
    db: sqlite3.Connection, job: int, since_s: float, until_s: float
) -> list[tuple[int, JobPoint]]:
    """Return what a job used within a period, by time."""
    rows = _rows(db, "job_use", job, since_s, until_s)
    return [(at_s, _decode_job(data)) for at_s, data in rows]


def period_s(since_s: float, until_s: float, sample_s: float) -> float:
    """Return the time between rows of a period; where there are none for longer, it is a gap."""
    return COARSE_S if until_s - since_s > DAY_S else sample_s


def _rows(
    db: sqlite3.Connection, table: str, name: str | int, since_s: float, until_s: float
) -> list[tuple[int, bytes]]:
    if until_s - since_s > DAY_S:
        table += "_coarse"
    query = f"SELECT at_s, data FROM {table} WHERE name = ? AND at_s BETWEEN ? AND ? ORDER BY at_s"  # noqa: S608 # a constant
    return db.execute(query, (name, since_s, until_s)).fetchall()
