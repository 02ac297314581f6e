"""Queries of the rows of usage: groups of past jobs, and who had CPUs and GPUs when."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from gsched.errors import InvalidRequestError
from gsched.model.resources import MEASURED_LEAST_S, percent_held
from gsched.model.states import NodeState
from gsched.protocol.reports import BusyPoint, HeldRow, NodeTime, UsageRow
from gschedd.core.state.records import Node
from gschedd.monitor.records import HeadRecords
from gschedd.monitor.usage import gpu_types_of

HOUR_S: Final = 3600.0
#: Digits after the point that figures have: hours to a few microseconds, as they are measured.
DIGITS: Final = 9
#: How a job ended: that it did, or why not.
ENDING: Final = (
    "CASE WHEN outcome = 'exited' AND exit_status = 0 THEN 'succeeded' "
    "WHEN outcome = 'exited' THEN 'exit code' ELSE replace(outcome, '_', ' ') END"
)
#: By what past jobs are put into groups, as SQL.
GROUPS: Final[Mapping[str, str]] = {
    "user": "user",
    "account": "CASE account WHEN '' THEN '-' ELSE account END",
    "queue": "queue",
    "name": "name",
    "outcome": ENDING,
    "node": "CASE node WHEN '' THEN '-' ELSE node END",
    "gpu-type": "CASE gpu_type WHEN '' THEN '-' ELSE gpu_type END",
    "day": "strftime('%Y-%m-%d', ended_s, 'unixepoch', 'localtime')",
    "week": "strftime('%Y-%m-%d', ended_s, 'unixepoch', 'localtime', '-6 days', 'weekday 1')",
    "month": "strftime('%Y-%m', ended_s, 'unixepoch', 'localtime')",
}
TIMES: Final = frozenset({"day", "week", "month"})
#: CPU-seconds that attempts had and used which ran long enough to compare them.
CPU_MEASURED: Final = (
    f"sum(CASE WHEN wall_s >= {MEASURED_LEAST_S} THEN cpus * wall_s END), "
    f"sum(CASE WHEN wall_s >= {MEASURED_LEAST_S} THEN cpu_used_s END)"
)
_SUMS: Final = (
    "sum(cpus * wall_s), sum(cpu_used_s), sum(gpus * wall_s), sum(wall_s), sum(jobs), "
    f"sum(wait_s), count(wait_s), {CPU_MEASURED}"
)


class Wanted(Struct, frozen=True, kw_only=True):
    """Which rows are wanted: a period, and whose; empty texts: all.

    Attributes:
        name: of jobs, with wildcards.
    """

    since_s: float
    until_s: float
    user: str = ""
    queue: str = ""
    name: str = ""

    @property
    def words(self) -> str:
        """Return whose they are: ``user alice, queue batch``."""
        named = (("user", self.user), ("queue", self.queue), ("name", self.name))
        return ", ".join(f"{word} {value}" for word, value in named if value)

    def whose(self) -> tuple[str, list[Any]]:
        """Return the condition without the period, and its values."""
        named = (("user = ?", self.user), ("queue = ?", self.queue), ("name GLOB ?", self.name))
        found = [(text, value) for text, value in named if value]
        return "".join(f" AND {text}" for text, _ in found), [value for _, value in found]

    def ended(self) -> tuple[str, list[Any]]:
        """Return the condition that a row ended in the period, and its values."""
        text, values = self.whose()
        return f" WHERE ended_s >= ? AND ended_s < ?{text}", [self.since_s, self.until_s, *values]


def hours(seconds: float) -> float:
    """Return seconds as hours."""
    return round(seconds / HOUR_S, DIGITS)


def usage_of(db: sqlite3.Connection, wanted: Wanted, by: str) -> list[UsageRow]:
    """Return the usage of jobs that ended in a period, in groups; the last one is the total.

    Those with the most GPU- and CPU-hours are first, groups by time in their order. What attempts
    used counts when they ended; an array counts as its elements.
    """
    if by not in GROUPS:
        raise InvalidRequestError(f"unknown group {by!r}", hint=f"valid: {', '.join(GROUPS)}")
    where, values = wanted.ended()
    query = f"SELECT {GROUPS[by]}, {ENDING}, {_SUMS} FROM usage{where} GROUP BY 1, 2"  # noqa: S608 # bound
    groups: dict[str, _UsageSum] = {}
    total = _UsageSum("total")
    for group, ending, *sums in db.execute(query, values):
        for each in (groups.setdefault(group, _UsageSum(group)), total):
            each.add(ending, sums)
    found = [each.row() for each in groups.values() if each.is_there]
    if by in TIMES:
        found.sort(key=lambda each: each.group)
    else:
        found.sort(key=lambda each: (-each.gpu_hours, -each.cpu_hours, -each.jobs, each.group))
    return [*found, total.row()]


class _UsageSum:
    """Sums over the rows of one group."""

    def __init__(self, name: str) -> None:
        self._row = UsageRow(group=name, causes={})
        self._wait_s = 0.0
        self._started = 0
        self._measured_s = [0.0, 0.0]  # CPU time that attempts had and used

    @property
    def is_there(self) -> bool:
        """Return whether there is anything in it."""
        return bool(self._row.jobs or self._row.wall_s)

    def add(self, ending: str, sums: Sequence[Any]) -> None:
        row = self._row
        cpu_s, used_s, gpu_s, wall_s, jobs, wait_s, waits, *measured = sums
        row.cpu_hours += cpu_s / HOUR_S
        row.cpu_hours_used += used_s / HOUR_S
        row.gpu_hours += gpu_s / HOUR_S
        row.wall_s += wall_s
        row.jobs += jobs
        self._wait_s += wait_s or 0.0
        self._started += waits
        pairs = zip(self._measured_s, measured, strict=True)
        self._measured_s = [before + (more or 0.0) for before, more in pairs]
        if ending == "succeeded":
            row.succeeded += jobs
        elif ending == "cancelled":
            row.cancelled += jobs
        elif jobs:
            row.failed += jobs
            row.causes[ending] = row.causes.get(ending, 0) + jobs

    def row(self) -> UsageRow:
        row = self._row
        had_s, used_s = self._measured_s
        if had_s > 0:
            row.cpu_efficiency = round(used_s / had_s, DIGITS)
        if self._started:
            row.wait_mean_s = round(self._wait_s / self._started, DIGITS)
        for name in ("cpu_hours", "cpu_hours_used", "gpu_hours", "wall_s"):
            setattr(row, name, round(getattr(row, name), DIGITS))
        row.causes = dict(sorted(row.causes.items(), key=lambda each: (-each[1], each[0])))
        return row


class _Span(NamedTuple):
    """For how long an attempt had CPUs and GPUs."""

    user: str
    account: str
    queue: str
    gpu_type: str
    cpus: int
    gpus: float
    begin_s: float
    end_s: float


class HeldTime(NamedTuple):
    """Who had CPUs and GPUs within a period, and the use in equal steps of it."""

    rows: list[HeldRow]
    busy: list[BusyPoint]
    offered: NodeTime


def held(db: sqlite3.Connection, wanted: Wanted, now_s: float, *, steps: int = 1) -> HeldTime:
    """Return what attempts had within a period, also those that still run.

    Args:
        now_s: until when running attempts count.
        steps: into how many equal parts the period is divided.
    """
    groups: dict[tuple[object, ...], HeldRow] = {}
    cpu_steps, gpu_steps = _Steps(wanted, steps), _Steps(wanted, steps)
    for span in (*_ended_spans(db, wanted), *_running_spans(db, wanted, now_s)):
        begin_s, end_s = max(span.begin_s, wanted.since_s), min(span.end_s, wanted.until_s)
        if end_s <= begin_s:
            continue
        key = span[:5]
        row = groups.get(key)
        if row is None:
            row = groups[key] = HeldRow(
                user=span.user,
                account=span.account,
                queue=span.queue,
                gpu_type=span.gpu_type,
                cpus=span.cpus,
            )
        row.runs += 1
        row.cpu_s += (end_s - begin_s) * span.cpus
        row.gpu_s += (end_s - begin_s) * span.gpus
        cpu_steps.add(begin_s, end_s, span.cpus)
        gpu_steps.add(begin_s, end_s, span.gpus)
    offered, cpus, gpus = _offered(db, wanted, now_s, steps)
    parts = zip(cpu_steps.sums, gpu_steps.sums, cpus.sums, gpus.sums, strict=True)
    busy = [
        BusyPoint(
            at_s=wanted.since_s + index * cpu_steps.step_s,
            cpus=round(min(1.0, cpu_s / all_cpu_s), 4) if all_cpu_s else None,
            gpus=round(min(1.0, gpu_s / all_gpu_s), 4) if all_gpu_s else None,
        )
        for index, (cpu_s, gpu_s, all_cpu_s, all_gpu_s) in enumerate(parts)
    ]
    return HeldTime(list(groups.values()), busy, offered)


class _Steps:
    """Sums of seconds times a number, in equal parts of a period."""

    def __init__(self, wanted: Wanted, steps: int) -> None:
        self._since_s = wanted.since_s
        self.step_s = (wanted.until_s - wanted.since_s) / steps
        self.sums = [0.0] * steps

    def add(self, begin_s: float, end_s: float, number: float) -> None:
        """Add a span within the period."""
        if not number:
            return
        first = int((begin_s - self._since_s) / self.step_s)
        for index in range(first, len(self.sums)):
            from_s = self._since_s + index * self.step_s
            if from_s >= end_s:
                return
            part_s = min(end_s, from_s + self.step_s) - max(begin_s, from_s)
            self.sums[index] += max(0.0, part_s) * number


def _ended_spans(db: sqlite3.Connection, wanted: Wanted) -> Iterator[_Span]:
    whose, values = wanted.whose()
    query = (
        "SELECT user, account, queue, gpu_type, cpus, gpus, ended_s - wall_s, ended_s FROM usage "  # noqa: S608 # bound
        f"WHERE ended_s > ? AND ended_s - wall_s < ? AND wall_s > 0{whose}"
    )
    return map(_Span._make, db.execute(query, [wanted.since_s, wanted.until_s, *values]))


def _running_spans(db: sqlite3.Connection, wanted: Wanted, now_s: float) -> Iterator[_Span]:
    """Yield the attempts that have not ended; those of a damaged record are left out."""
    records = HeadRecords(db)
    whose, values = wanted.whose()
    query = (
        "SELECT id, user, queue, attempts, specs.spec FROM head.jobs AS jobs "  # noqa: S608 # bound
        "JOIN head.specs AS specs ON specs.job = jobs.id "
        f"WHERE state <> 'done' AND state IN ('running', 'exiting', 'migrating'){whose}"
    )
    for job, user, queue, number, spec in db.execute(query, values):
        attempt = records.attempt(job, number)
        if attempt is None or attempt.started_s is None or attempt.ended_s is not None:
            continue
        gpus = percent_held(attempt.allocation) / 100
        yield _Span(
            user=user,
            account=msgspec.json.decode(spec).get("account", ""),
            queue=queue,
            gpu_type=gpu_types_of(records, attempt) if gpus else "",
            cpus=sum(share.cpus for share in attempt.allocation),
            gpus=gpus,
            begin_s=attempt.started_s,
            end_s=now_s,
        )


def _offered(
    db: sqlite3.Connection, wanted: Wanted, now_s: float, steps: int
) -> tuple[NodeTime, _Steps, _Steps]:
    """Return what nodes offered within a period, together and in steps."""
    total, by_type = NodeTime(), Counter[str]()
    cpu_steps, gpu_steps = _Steps(wanted, steps), _Steps(wanted, steps)
    largest: dict[str, tuple[int, int]] = {}
    query = (
        "SELECT node, since_s, coalesce(until_s, ?), up, cpus, gpus, gpu_types FROM usage_nodes "
        "WHERE coalesce(until_s, ?) > ? AND since_s < ?"
    )
    values = (now_s, now_s, wanted.since_s, wanted.until_s)
    rows = (*db.execute(query, values), *_unrecorded(db, now_s))
    for node, since_s, until_s, up, cpus, gpus, types in rows:
        begin_s, end_s = max(since_s, wanted.since_s), min(until_s, wanted.until_s)
        if end_s <= begin_s:
            continue
        most = largest.get(node, (0, 0))
        largest[node] = (max(cpus, most[0]), max(gpus, most[1]))
        lasts_s = end_s - begin_s
        if not up:
            total.down_cpu_s += lasts_s * cpus
            total.down_gpu_s += lasts_s * gpus
            continue
        total.cpu_s += lasts_s * cpus
        total.gpu_s += lasts_s * gpus
        for name, count in msgspec.json.decode(types).items():
            by_type[name or "-"] += lasts_s * count
        cpu_steps.add(begin_s, end_s, cpus)
        gpu_steps.add(begin_s, end_s, gpus)
    total.gpu_s_by_type = dict(by_type)
    total.nodes = len(largest)
    total.cpus = sum(cpus for cpus, _ in largest.values())
    total.gpus = sum(gpus for _, gpus in largest.values())
    return total, cpu_steps, gpu_steps


def _unrecorded(
    db: sqlite3.Connection, now_s: float
) -> Iterator[tuple[str, float, float, int, int, int, str]]:
    """Yield the nodes whose registrations are no longer in the events, as they are now."""
    query = "SELECT data FROM head.nodes WHERE name NOT IN (SELECT node FROM usage_nodes)"
    for (data,) in db.execute(query):
        node = msgspec.json.decode(data, type=Node)
        inventory = node.inventory
        types = msgspec.json.encode(Counter(gpu.type for gpu in inventory.gpus)).decode()
        up = int(node.state is NodeState.UP)
        yield node.name, node.since_s, now_s, up, inventory.cpus, len(inventory.gpus), types
