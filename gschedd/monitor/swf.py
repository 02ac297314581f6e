"""Past jobs in the Standard Workload Format, version 2.2, as simulators and archives read it.

Source:
    Chapin et al., Benchmarks and standards for the evaluation of parallel job schedulers, JSSPP
    1999; fields and header comments as at the Parallel Workloads Archive.
"""

import sqlite3
import time
from collections.abc import Iterator
from typing import IO, Any, Final

from gsched.model.states import OutcomeKind
from gsched.version import VERSION
from gschedd.monitor.usage_queries import Wanted

KIB: Final = 1024
#: Statuses: a job has failed, has succeeded, or was cancelled.
FAILED, COMPLETED, CANCELLED = 0, 1, 5
UNKNOWN: Final = -1
_NAMES: Final = "SELECT DISTINCT {0} FROM usage{1} AND jobs = 1 ORDER BY {0}"
_JOBS: Final = (
    "SELECT submitted_s, ended_s, attempt, wall_s, cpus, cpu_used_s, memory_peak_bytes, "
    "walltime_s, memory_bytes, outcome, exit_status, user, name, queue FROM usage{0} "
    "AND jobs = 1 ORDER BY submitted_s, job"
)


def write_swf(db: sqlite3.Connection, wanted: Wanted, server: str, out: IO[bytes]) -> None:
    """Write the jobs that ended in a period, in the order of their submissions.

    The run of a job is its last attempt. Elements of arrays that were cancelled before they became
    jobs are left out.
    """
    where, values = wanted.ended()
    numbers = {
        column: {
            name: number
            for number, (name,) in enumerate(db.execute(_NAMES.format(column, where), values), 1)
        }
        for column in ("user", "name", "queue")
    }
    query = (
        "SELECT count(*), min(submitted_s), max(ended_s), max(cpus), max(wall_s), max(nodes) "  # noqa: S608 # bound
        f"FROM usage{where} AND jobs = 1"
    )
    totals = db.execute(query, values).fetchone()
    begin_s = int(totals[1] or wanted.since_s)
    header = _header(server, totals, begin_s, wanted, numbers["queue"])
    out.write("".join(f"; {line}\n" for line in header).encode())
    for number, row in enumerate(db.execute(_JOBS.format(where), values), start=1):
        out.write(_line(number, row, begin_s, numbers).encode())


def _header(
    server: str, totals: tuple[Any, ...], begin_s: int, wanted: Wanted, queues: dict[str, int]
) -> Iterator[str]:
    jobs, _, end_s, cpus, wall_s, nodes = totals
    yield "Version: 2.2"
    yield f"Computer: {server}"
    yield f"Conversion: greport of gsched {VERSION}"
    yield f"MaxJobs: {jobs}"
    yield f"MaxRecords: {jobs}"
    yield "Preemption: No"
    yield f"UnixStartTime: {begin_s}"
    yield f"TimeZoneString: {time.tzname[0]}"
    yield f"StartTime: {time.ctime(begin_s)}"
    yield f"EndTime: {time.ctime(int(end_s or wanted.until_s))}"
    yield f"MaxNodes: {nodes or 0}"
    yield f"MaxProcs: {cpus or 0}"
    yield f"MaxRuntime: {int(wall_s or 0)}"
    yield f"Queues: {len(queues)}"
    for name, number in queues.items():
        yield f"Queue: {number} {name}"
    yield "Note: processors are CPUs; the format has no GPUs. Memory is per processor."
    yield "Note: numbers of users and executables (names of jobs) are those of this file only."


def _line(
    number: int, row: tuple[Any, ...], begin_s: int, numbers: dict[str, dict[str, int]]
) -> str:
    (submitted_s, ended_s, attempt, wall_s, cpus, cpu_s, peak, limit_s, memory, *rest) = row
    outcome, exit_status, user, name, queue = rest
    ran = attempt > 0
    wait_s = max(0.0, ended_s - (wall_s if ran else 0.0) - submitted_s)
    status = COMPLETED if outcome == OutcomeKind.EXITED and exit_status == 0 else FAILED
    fields = (
        number,
        round(submitted_s - begin_s),
        round(wait_s),
        round(wall_s) if ran else UNKNOWN,
        cpus if ran else UNKNOWN,
        f"{cpu_s / cpus:.2f}" if ran and cpus else UNKNOWN,
        -(-peak // KIB // cpus) if ran and peak and cpus else UNKNOWN,
        cpus,
        round(limit_s) if limit_s else UNKNOWN,
        -(-memory // KIB // cpus) if memory and cpus else UNKNOWN,
        CANCELLED if outcome == OutcomeKind.CANCELLED else status,
        numbers["user"][user],
        UNKNOWN,
        numbers["name"][name],
        numbers["queue"][queue],
        *(UNKNOWN, UNKNOWN, UNKNOWN),
    )
    return " ".join(map(str, fields)) + "\n"
