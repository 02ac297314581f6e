"""The report of a day, week or month: its figures from the rows of usage."""

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gsched.protocol.reports import (
    DeadlineCount,
    ErrorSpread,
    FailureRow,
    HeldRow,
    IdleRow,
    MoveCost,
    NodeTime,
    PeriodReport,
    PreemptionCost,
    QueueWait,
    UsedPart,
    UsePart,
)
from gschedd.models.measures import FLOORS, Q
from gschedd.monitor.usage_queries import (
    CPU_MEASURED,
    DIGITS,
    HOUR_S,
    Wanted,
    held,
    hours,
    usage_of,
)

#: Steps of the figure of use: an hour, six hours, a day.
STEPS: Final = {"daily": 24, "weekly": 28, "monthly": 30}
#: Nodes that are named with a cause of failures.
NODES_MOST: Final = 5
_PREDICTED: Final = (
    ("run time", Q.WALL, "predicted_wall_s", "predicted_wall_high_s", "wall_s"),
    (
        "memory",
        Q.MEMORY,
        "predicted_memory_bytes",
        "predicted_memory_high_bytes",
        "CASE memory_mean_bytes WHEN 0 THEN memory_peak_bytes ELSE memory_mean_bytes END",
    ),
)


def report_of(
    db: sqlite3.Connection, wanted: Wanted, *, form: str, server: str, now_s: float, behind: int
) -> PeriodReport:
    """Return the report of a period; ``now_s``: until when what still runs counts."""
    had = held(db, wanted, now_s, steps=STEPS[form])
    shares = _Shares(had.rows, had.offered)
    return PeriodReport(
        server=server,
        form=form,
        since_s=wanted.since_s,
        until_s=wanted.until_s,
        now_s=now_s,
        filters=wanted.words,
        total=usage_of(db, wanted, "queue")[-1],
        offered=had.offered,
        busy=had.busy,
        users=shares.by(lambda row: row.user),
        accounts=shares.by(lambda row: row.account or "-"),
        queues=shares.by(lambda row: row.queue),
        gpu_types=shares.by_gpu_type(),
        waits=_waits(db, wanted),
        used=_used_parts(db, wanted),
        deadlines=_deadlines(db, wanted),
        predictions=list(_predictions(db, wanted)),
        moves=_moves(db, wanted),
        preemptions=_preemptions(db, wanted),
        idle=_idle(db, wanted),
        failures=_failures(db, wanted),
        behind=behind,
    )


class _Shares:
    """Hours of groups, and the parts of all hours that these are."""

    def __init__(self, had: Sequence[HeldRow], offered: NodeTime) -> None:
        self._rows = had
        self._offered = offered

    def by(self, key: Callable[[HeldRow], str]) -> list[UsePart]:
        groups: dict[str, list[float]] = {}
        for row in self._rows:
            sums = groups.setdefault(key(row), [0.0, 0.0])
            sums[0] += row.cpu_s
            sums[1] += row.gpu_s
        return self._sorted(groups)

    def by_gpu_type(self) -> list[UsePart]:
        """Return hours by type; of attempts with several, each type has its part."""
        groups: dict[str, list[float]] = {}
        for row in self._rows:
            if not row.gpu_type:
                continue
            terms = [each.partition(":") for each in row.gpu_type.split("+")]
            counts = {name: float(count) if count else 1.0 for name, _, count in terms}
            for name, count in counts.items():
                part = count / sum(counts.values())
                sums = groups.setdefault(name, [0.0, 0.0])
                sums[0] += row.cpu_s * part
                sums[1] += row.gpu_s * part
        found = self._sorted(groups)
        for share in found:  # against the GPUs of that type
            share.cpu_part = None
            of_type_s = self._offered.gpu_s_by_type.get(share.group, 0.0)
            share.gpu_part = _part(share.gpu_hours * HOUR_S, of_type_s)
        return found

    def _sorted(self, groups: Mapping[str, Sequence[float]]) -> list[UsePart]:
        found = [
            UsePart(
                group=name,
                cpu_hours=hours(cpu_s),
                gpu_hours=hours(gpu_s),
                cpu_part=_part(cpu_s, self._offered.cpu_s),
                gpu_part=_part(gpu_s, self._offered.gpu_s),
            )
            for name, (cpu_s, gpu_s) in groups.items()
        ]
        return sorted(found, key=lambda each: (-each.gpu_hours, -each.cpu_hours, each.group))


def _part(some: float, of_all: float) -> float | None:
    return round(some / of_all, DIGITS) if of_all else None


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the value that a part of the values does not exceed, of values in ascending order."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _waits(db: sqlite3.Connection, wanted: Wanted) -> list[QueueWait]:
    """Return the waits of each queue, and of all queues first, where there are several."""
    where, values = wanted.ended()
    query = f"SELECT queue, wait_s FROM usage{where} AND wait_s IS NOT NULL ORDER BY wait_s"  # noqa: S608 # bound
    every: array[float] = array("d")
    queues: dict[str, array[float]] = {}
    for queue, wait_s in db.execute(query, values):
        every.append(wait_s)
        queues.setdefault(queue, array("d")).append(wait_s)
    rows = [("all", every)] if len(queues) > 1 else []
    return [
        QueueWait(
            queue=name,
            jobs=len(waits),
            median_s=quantile(waits, 0.5),
            p90_s=quantile(waits, 0.9),
            longest_s=waits[-1],
        )
        for name, waits in (*rows, *sorted(queues.items()))
    ]


def _used_parts(db: sqlite3.Connection, wanted: Wanted) -> list[UsedPart]:
    """Return what each user's attempts used of what they had, and all together first."""
    where, values = wanted.ended()
    sums = (
        f"{CPU_MEASURED}, sum(cpus * wall_s), "
        "sum(CASE WHEN memory_bytes THEN memory_peak_bytes * wall_s END), "
        "sum(CASE WHEN memory_bytes THEN 1.0 * memory_bytes * wall_s END), "
        "sum(gpu_used_s), sum(CASE WHEN gpu_used_s IS NOT NULL THEN gpus * wall_s END), "
        "sum(gpus * wall_s)"
    )
    query = f"SELECT user, {sums} FROM usage{where} AND wall_s > 0 GROUP BY user"  # noqa: S608 # bound
    users: list[tuple[str, list[float]]] = [
        (row[0], [each or 0.0 for each in row[1:]]) for row in db.execute(query, values)
    ]
    if not users:
        return []
    users.sort(key=lambda each: (-each[1][7], -each[1][2], each[0]))
    total = [sum(column) for column in zip(*(sums for _, sums in users), strict=True)]
    return [_used_part(user, sums) for user, sums in [("all", total), *users]]


def _used_part(user: str, sums: Sequence[float]) -> UsedPart:
    measured_cpu, cpu, all_cpu, memory, all_memory, gpu, measured_gpu, all_gpu = sums
    return UsedPart(
        user=user,
        cpu=_part(cpu, measured_cpu),
        memory=_part(memory, all_memory),
        gpu=_part(gpu, measured_gpu),
        cpu_hours=hours(all_cpu),
        gpu_hours=hours(all_gpu),
    )


def _deadlines(db: sqlite3.Connection, wanted: Wanted) -> DeadlineCount | None:
    where, values = wanted.ended()
    query = (
        "SELECT count(met), coalesce(sum(met), 0), coalesce(sum(guaranteed), 0), "  # noqa: S608 # bound
        f"coalesce(sum(guaranteed AND NOT met), 0) FROM usage{where} AND met IS NOT NULL"
    )
    jobs, met, guaranteed, broken = db.execute(query, values).fetchone()
    if not jobs:
        return None
    return DeadlineCount(
        jobs=jobs, met=met, missed=jobs - met, guaranteed=guaranteed, broken=broken
    )


def _predictions(db: sqlite3.Connection, wanted: Wanted) -> Iterable[ErrorSpread]:
    """Yield predictions against measurements, of runs that succeeded: others have no full time."""
    where, values = wanted.ended()
    for name, q, predicted, high, measured in _PREDICTED:
        query = (
            f"SELECT {predicted}, {high}, {measured} FROM usage{where} AND wall_s > 0 "  # noqa: S608 # bound
            f"AND outcome = 'exited' AND exit_status = 0 AND {predicted} IS NOT NULL"
        )
        errors: array[float] = array("d")
        covered = 0
        for expected, most, was in db.execute(query, values):
            if was > 0:
                errors.append((expected - was) / max(was, FLOORS[q]))
                covered += was <= most
        if errors:
            yield ErrorSpread(
                quantity=name,
                runs=len(errors),
                bias=round(quantile(sorted(errors), 0.5), DIGITS),
                error=round(quantile(sorted(map(abs, errors)), 0.5), DIGITS),
                covered=round(covered / len(errors), DIGITS),
            )


def _moves(db: sqlite3.Connection, wanted: Wanted) -> MoveCost | None:
    whose, values = wanted.whose()
    query = (
        "SELECT count(*), sum(cost_s), max(cost_s), sum(cost_s * gpus), sum(size_bytes) "  # noqa: S608 # bound
        f"FROM usage_moves WHERE at_s >= ? AND at_s < ?{whose}"
    )
    row: Sequence[Any] = db.execute(query, [wanted.since_s, wanted.until_s, *values]).fetchone()
    moves, cost_s, longest_s, gpu_s, size_bytes = row
    if not moves:
        return None
    return MoveCost(
        moves=moves,
        cost_s=round(cost_s, DIGITS),
        longest_s=round(longest_s, DIGITS),
        gpu_hours=hours(gpu_s),
        checkpoint_bytes=size_bytes,
    )


def _preemptions(db: sqlite3.Connection, wanted: Wanted) -> PreemptionCost | None:
    whose, values = wanted.whose()
    of_attempts = (
        "SELECT job, user, max(way IN ('requeue', 'cancel')) AS stopped, "  # noqa: S608 # bound
        f"sum(lost_gpu_s) AS lost FROM usage_preemptions WHERE at_s >= ? AND at_s < ?{whose} "
        "GROUP BY job, attempt"
    )
    query = (
        "SELECT count(*), sum(NOT stopped), count(DISTINCT job), count(DISTINCT user), sum(lost) "  # noqa: S608 # bound
        f"FROM ({of_attempts})"
    )
    row: Sequence[Any] = db.execute(query, [wanted.since_s, wanted.until_s, *values]).fetchone()
    attempts, saved, jobs, users, gpu_s = row
    if not attempts:
        return None
    return PreemptionCost(
        attempts=attempts,
        saved=saved,
        jobs=jobs,
        users=users,
        gpu_hours=hours(gpu_s),
    )


def _idle(db: sqlite3.Connection, wanted: Wanted) -> list[IdleRow]:
    where, values = wanted.ended()
    query = (
        "SELECT user, sum(idle_gpu_s), sum(returned_gpu_s) "  # noqa: S608 # bound
        f"FROM usage{where} AND idle_gpu_s + returned_gpu_s > 0 GROUP BY user ORDER BY 2 DESC, 1"
    )
    return [
        IdleRow(
            user=user,
            gpu_hours=hours(idle_s),
            returned_gpu_hours=hours(returned_s),
        )
        for user, idle_s, returned_s in db.execute(query, values)
    ]


def _failures(db: sqlite3.Connection, wanted: Wanted) -> list[FailureRow]:
    """Return failed attempts by cause, the most frequent first, and the nodes with most of them."""
    where, values = wanted.ended()
    query = (
        "SELECT cause, count(*), count(DISTINCT user), sum(cpus * wall_s), sum(gpus * wall_s) "  # noqa: S608 # bound
        f"FROM usage{where} AND cause <> '' GROUP BY cause ORDER BY 2 DESC, 1"
    )
    found = {
        cause: FailureRow(
            cause=cause,
            attempts=attempts,
            users=users,
            cpu_hours=hours(cpu_s),
            gpu_hours=hours(gpu_s),
            nodes={},
        )
        for cause, attempts, users, cpu_s, gpu_s in db.execute(query, values)
    }
    query = (
        f"SELECT cause, node, count(*) FROM usage{where} AND cause IN ('node', 'storage') "  # noqa: S608 # bound
        "AND node <> '' GROUP BY cause, node ORDER BY 3 DESC, 2"
    )
    for cause, node, count in db.execute(query, values):
        if len(found[cause].nodes) < NODES_MOST:
            found[cause].nodes[node] = count
    return list(found.values())
