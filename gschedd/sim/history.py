"""A site's own past, from the head's database, as a trace and a cluster."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

from msgspec import structs

from gsched.config.load import load_config
from gsched.errors import ConfigError, UsageError
from gsched.model.request import format_resources
from gschedd.core.state.records import Job
from gschedd.sim.cluster import ClusterNode
from gschedd.sim.sites import site_file
from gschedd.sim.traces import Trace
from gschedd.sim.workload import TraceJob
from gschedd.store.reader import HistoryFilter, Reader
from gschedd.store.schema import SCHEMA_VERSION, check_version, create, take_over
from gschedd.store.seals import text_of

DATABASE: Final = "gsched.db"
ALL_JOBS: Final = 10**9


def database_path(*, database: str, state_dir: str, config: str) -> str:
    """Return the database that is meant: named itself, by its directory, or by a configuration.

    Raises:
        UsageError: two ways of naming it, or it is not there.
        ConfigError: the configuration cannot be used.
    """
    if database and state_dir:
        raise UsageError("--database and --state-dir say the same", hint="give one")
    path = database
    if not path:
        directory = state_dir or load_config(site_file(config) or None).head.state_dir
        path = os.path.join(directory, DATABASE)
    if not Path(path).is_file():
        raise UsageError(
            f"no database {path}",
            hint="set GSCHED_HEAD to your head's socket, or name it with --database FILE or "
            "--state-dir DIR",
        )
    return path


def read_history(
    path: str, *, since_s: float, until_s: float | None, limit: int | None
) -> tuple[Trace, tuple[ClusterNode, ...]]:
    """Return the jobs that were submitted in a span of time and have run, and the site's nodes.

    A job takes as long as its last attempt did, and uses the CPU that it used then. Jobs that
    never ran are left out.

    Raises:
        UsageError: there is none.
        ConfigError: no node has ever registered, or the database cannot be used.
    """
    try:
        with _reader(path) as reader:
            # one that ended after the beginning may have been submitted long before
            past, _ = reader.history(HistoryFilter(since_s=since_s, limit=ALL_JOBS))
            nodes = reader.nodes()
    except sqlite3.DatabaseError as error:
        raise ConfigError(
            f"{path} cannot be read as a head's database: {error}",
            hint="name gsched.db of a state directory, or a copy of it",
        ) from error
    trace = Trace(path=path, form="history")
    for job in past:
        if not isinstance(job, Job):
            trace.skip("never ran", job.count)
        elif since_s <= job.submitted_s and (until_s is None or job.submitted_s < until_s):
            _take(trace, job)
    if not trace.jobs:
        raise UsageError(
            f"database {path} holds no job of that time that has run",
            hint="ghist --since shows what there is",
        )
    if not nodes:
        raise ConfigError(f"database {path} knows no node", hint="describe one with --cluster")
    trace.jobs.sort(key=lambda job: job.submit_s)
    if limit is not None:
        del trace.jobs[limit:]
    begin_s = trace.jobs[0].submit_s
    trace.jobs = [structs.replace(job, submit_s=job.submit_s - begin_s) for job in trace.jobs]
    own = tuple(ClusterNode(name=node.name, inventory=node.inventory, speed=1.0) for node in nodes)
    return trace, own


@contextmanager
def _reader(path: str) -> Iterator[Reader]:
    """Give a reader of a database; of one that an older head has left, of an upgraded copy."""
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        check_version(path, version)
        if version == SCHEMA_VERSION:
            with closing(Reader(path)) as reader:
                yield reader
            return
        with TemporaryDirectory(prefix="gsim-") as directory:
            copy = os.path.join(directory, DATABASE)
            with closing(sqlite3.connect(copy)) as upgraded:
                upgraded.text_factory = text_of
                db.backup(upgraded)
                (take_over if version else create)(upgraded)
                upgraded.commit()
            with closing(Reader(copy)) as reader:
                yield reader


def _take(trace: Trace, job: Job) -> None:
    attempt, outcome = job.attempt, job.outcome
    if attempt is None or attempt.started_s is None or attempt.ended_s is None:
        trace.skip("never ran")
        return
    run_s = max(0.0, attempt.ended_s - attempt.started_s)
    spec = job.spec
    usage = attempt.usage
    code = outcome.exit_code if outcome is not None else None
    trace.jobs.append(
        TraceJob(
            submit_s=job.eligible_s,
            duration_s=run_s,
            user=spec.owner.user,
            project=spec.account,
            qos=spec.qos,
            name=spec.name,
            kind=spec.kind,
            queue=spec.queue,
            nodes=len(attempt.parts) if spec.every_node else 0,
            priority=spec.priority,
            cpus_used=usage.cpu_s / run_s if usage is not None and run_s else None,
            memory_used_bytes=usage.memory_peak_bytes if usage is not None else None,
            exit_code=code or 0,
            resources=format_resources(spec.request, spec.walltime_s),
        )
    )
