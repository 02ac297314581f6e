"""The fields of a job: a row of one table has a field's name, its column, and its value.

Lists of gstat and ghist, ``--format`` and ``--sort`` are made of these. A value is read from the
row of a job as a number or a text that can be compared, None where there is none, and then written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Protocol

from gsched.cli.show.columns import Column
from gsched.cli.times import COMPUTING, format_clock, format_time, local_times, short_start
from gsched.model.host_lists import compact
from gsched.model.states import JobState, OutcomeKind
from gsched.model.units import format_duration, format_gpu_hours, format_size
from gsched.model.wording import counted, outcome_word, outcome_words
from gsched.protocol.job_rows import ArrayRow, JobRow

Value = str | int | float | None


class JobReply(Protocol):
    """The reply that jobs are in: `gsched.protocol.job_rows.JobList` or ``HistoryReply``."""

    @property
    def server(self) -> str:
        """Return the head's name."""

    @property
    def now_s(self) -> float:
        """Return the moment of the reply, seconds since the epoch."""


class Field(Column):
    """One field of a job.

    Attributes:
        name: in ``--format`` and ``--sort``.
        attribute: of a row, which is its value as it is; None: it is computed.
        read: its value in a row, which lists are sorted by.
        write: its text, of the value, the row and the reply; None: the value as it is.
    """

    __slots__ = ("attribute", "name", "read", "write")

    def __init__(
        self,
        name: str,
        title: str,
        read: str | Callable[[JobRow, JobReply], Value],
        write: Callable[[Any, Any, Any], str] | None = None,
        **column: Any,
    ) -> None:
        super().__init__(title, **column)
        self.name = name
        self.attribute: Callable[[JobRow], Value] | None = None
        self.read: Callable[[JobRow, JobReply], Value]
        if isinstance(read, str):
            attribute = attrgetter(read)
            self.attribute = attribute
            self.read = lambda row, _: attribute(row)
        else:
            self.read = read
        self.write = write

    def shown(self, row: JobRow, view: JobReply) -> str | int | float:
        """Return what a format shows: a number where it is one; nothing for None."""
        value = self.read(row, view)
        if value is None:
            return ""
        return value if self.write is None else self.write(value, row, view)

    def cells(self, rows: Sequence[JobRow], view: JobReply) -> list[str]:
        """Return the texts of a column; quick, because there may be 100,000 of them."""
        read, write = self.read, self.write
        values: Iterable[Value]
        if self.attribute is not None:
            values = list(map(self.attribute, rows))
        else:
            values = [read(row, view) for row in rows]
        if write is None:
            return ["" if value is None else str(value) for value in values]
        if write in _OF_VALUES:  # of which many jobs have the same
            texts = {value: write(value, None, None) for value in set(values) - {None}}
            return [texts.get(value, "") for value in values]
        pairs = zip(values, rows, strict=True)
        return ["" if value is None else write(value, row, view) for value, row in pairs]


def cells_of(
    names: Sequence[str], rows: Sequence[JobRow], view: JobReply
) -> tuple[list[Field], list[tuple[str, ...]]]:
    """Return columns and lines of a list of jobs."""
    fields = [FIELDS[name] for name in names]
    return fields, list(zip(*(field.cells(rows, view) for field in fields), strict=True))


# --- values ---


def elapsed_s(row: JobRow, now_s: float) -> float | None:
    """Return for how long the job's attempts have run; None if none has."""
    if row.wall_s:
        return row.wall_s
    if row.started_s is None:
        return None
    return max(0.0, (row.ended_s or now_s) - row.started_s)


def _since_start_s(row: JobRow, now_s: float) -> float | None:
    """Return the same, but since the first start for an array: that is the sum of its elements."""
    if row.array is None or row.started_s is None or row.ended_s is not None:
        return elapsed_s(row, now_s)
    return max(0.0, now_s - row.started_s)


def _live(name: str) -> Callable[[JobRow, JobReply], Value]:
    return lambda row, _: None if row.live is None else getattr(row.live, name)


def _gpu_live(name: str) -> Callable[[JobRow, JobReply], Value]:
    """Read what a job uses of GPUs; of those that are declared only nothing is measured."""

    def read(row: JobRow, _: JobReply) -> Value:
        live = row.live
        if live is None or not (live.gpus > 0 or live.gpu_memory_bytes > 0):
            return None
        value: float = getattr(live, name)
        return value

    return read


def _idle_gpus(row: JobRow, _: JobReply) -> Value:
    return row.live.gpus_idle or None if row.live is not None else None


def _use_age(row: JobRow, view: JobReply) -> float | None:
    return None if row.live is None else max(0.0, view.now_s - row.live.at_s)


def gpu_words(row: JobRow, _: object = None) -> str:
    """Return how many GPUs a job has or requests, or the part of one: ``40%``."""
    return str(row.gpus) if row.gpu_share is None else f"{row.gpu_share.percent}%"


def gpus_of(row: JobRow) -> float:
    """Return how many GPUs a job has or requests; 0.4 of a job with 40 % of one."""
    return row.gpus if row.gpu_share is None else row.gpu_share.percent / 100


def slack_words(slack_s: float | None) -> str:
    """Return ``01:30:00``, or ``-00:10:00`` of a job that is late; empty where it is unknown."""
    if slack_s is None:
        return ""
    sign = "-" if slack_s <= -1 else ""
    return sign + format_duration(abs(slack_s))


def _marked_slack(row: JobRow, _: JobReply) -> str:
    late = "LATE " if row.meets_deadline is False else ""
    return (late + slack_words(row.slack_s)).strip()


def reason_words(row: JobRow, _: object = None) -> str:
    """Return why a job waits or how it ended; of an array first where its elements are."""
    words = row.reason
    if not words:
        words = ending_words(row)
    elif " UTC" in words:  # a list may have 100,000 rows: no call for nothing
        words = local_times(words)
    array = row.array
    if array is None or row.outcome is not None:
        return words
    summary = array_summary(array)
    return f"{summary}; {words}" if words else summary


def short_words(row: JobRow, view: JobReply) -> str:
    """Return the same in a few words: ``2 CPUs short``, ``exit 3``, ``4 running, 16 waiting``."""
    if row.outcome is not None and row.state == JobState.DONE:
        return outcome_word(row.outcome)
    words = local_times(row.short_reason or row.reason.partition(";")[0], now_s=view.now_s)
    if row.array is None:
        return words
    summary = array_summary(row.array)
    return f"{summary}; {words}" if words and row.array.waiting else summary


def ending_words(row: JobRow) -> str:
    """Return how a job ended, or nothing."""
    if row.state != JobState.DONE or row.outcome is None:
        return ""
    return outcome_words(row.outcome, walltime_s=row.walltime_s)


def array_summary(array: ArrayRow) -> str:
    """Return how many elements of an array are in which state: ``3 waiting, 2 running``."""
    counts = (
        (array.waiting, "waiting"),
        (array.running, "running"),
        (array.succeeded, "succeeded"),
        (array.failed, "failed"),
        (array.deleted, "cancelled"),
    )
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _why(row: JobRow, _: JobReply) -> str:
    return _with_start(row, reason_words(row))


def _why_once(row: JobRow, _: JobReply) -> str:
    """Return the same; of a job behind others like it what these wait for is not repeated."""
    reason = reason_words(row)
    if row.short_reason.startswith("behind job ") and row.array is None:
        reason = reason.partition(";")[0]
    return _with_start(row, reason)


def _with_start(row: JobRow, reason: str) -> str:
    unknown = "" if row.start is None else row.start.unknown
    is_stated = unknown in reason or unknown.startswith(COMPUTING)
    if is_stated or is_for_its_hold(row.state, unknown):
        return reason
    return f"{reason}; start unknown: {unknown}"


def is_for_its_hold(state: str, unknown: str) -> bool:
    """Return whether a start is unknown because the job is held, which its reason says."""
    return state == JobState.HELD and unknown.startswith("the job is held")


def priority_of(row: JobRow) -> float:
    """Return by what a job is ordered: the sum of the terms of its priority, or its own."""
    return row.priority if row.terms is None else round(row.terms.priority, 2)


def _nodes_or_reason(row: JobRow, view: JobReply) -> str:
    return short_words(row, view) or compact(row.nodes)


def migrations(row: JobRow, _: JobReply) -> str:
    """Return how often a job has migrated, the time without progress, and restarts instead."""
    if not row.moves and not row.moves_lost:
        return ""
    cost = f", {format_duration(row.moves_cost_s)} lost" if row.moves_cost_s else ""
    restarts = f", {counted(row.moves_lost, 'restart')} instead" if row.moves_lost else ""
    return f"{row.moves}{cost}{restarts}"


def preemptions(row: JobRow, _: JobReply) -> str:
    """Return how often a job had to give way, and the work that this has cost."""
    lost = f", {format_gpu_hours(row.preempted_gpu_s)} lost" if row.preempted_gpu_s else ""
    return f"{row.preemptions}{lost}" if row.preemptions else ""


def _met(row: JobRow, _: JobReply) -> str | None:
    """Return whether a finished job has met its deadline, with what was left or too much."""
    if row.deadline_s is None or row.meets_deadline is None or row.ended_s is None:
        return None
    spare = format_duration(abs(row.slack_s or 0.0))
    if row.meets_deadline:
        return f"met, {spare} left"
    if row.ended_s <= row.deadline_s:
        cancelled = row.outcome is not None and row.outcome.kind == OutcomeKind.CANCELLED
        return "n/a (cancelled)" if cancelled else "missed (job failed)"
    return f"missed by {spare}"


# --- texts ---


def _duration(value: float, *_: object) -> str:
    return format_duration(value)


def _size(value: int, *_: object) -> str:
    return format_size(value)


def _moment(value: float, *_: object) -> str:
    return format_time(value)


def _clock(value: float, _: JobRow, view: JobReply) -> str:
    return format_clock(value, now_s=view.now_s)


def _percent(value: float, *_: object) -> str:
    return f"{value:.0f}%"


def cpu_time(row: JobRow) -> str:
    """Return the CPU time used, ``0`` before the start, as Torque's qstat has it."""
    return format_duration(row.cpu_s) if row.cpu_s or row.started_s else "0"


#: Texts that follow from the value alone.
_OF_VALUES: Final[tuple[Callable[[Any, Any, Any], str], ...]] = (
    _duration,
    _size,
    _moment,
    _percent,
)

#: What a format can show and lists are sorted by, and what lists show of it.
_NAMED: Final = (
    Field("id", "Job ID", "id", lambda _, row, view: row.shown_id(view.server), style="bold"),
    Field("number", "Number", "id"),
    Field("name", "Name", "name", least=12),
    Field("user", "User", "user", least=8, drop=7, once=True),
    Field("account", "Account", "account"),
    Field("qos", "QOS", "qos"),
    Field("reservation", "Reservation", "reservation"),
    Field("queue", "Queue", "queue", least=8, drop=4, once=True),
    Field("state", "State", "state"),
    Field("letter", "S", "letter", drop=11),
    Field("priority", "Priority", lambda row, _: priority_of(row), right=True),
    Field("cpus", "CPUs", "cpus", right=True, drop=6),
    Field("gpus", "GPUs", "gpus", right=True),
    Field("chunks", "Chunks", "places", right=True),
    Field("memory", "Memory", lambda row, _: row.memory_bytes or None, _size, right=True),
    Field("nodes", "Nodes", lambda row, _: "+".join(row.nodes), least=8, drop=8),
    Field("submitted", "Submitted", "submitted_s", _moment),
    Field("started", "Started", "started_s", _moment),
    Field("ended", "Ended", "ended_s", _moment),
    Field(
        "elapsed",
        "Elapsed",
        lambda row, view: _since_start_s(row, view.now_s),
        _duration,
        right=True,
        drop=10,
    ),
    Field("limit", "Limit", lambda row, _: row.walltime_s or None, _duration, right=True, drop=2),
    Field("cputime", "Time Use", "cpu_s", lambda _, row, __: cpu_time(row), right=True, drop=-1),
    Field("cpu_use", "CPU use", _live("cpu_cores"), lambda v, *_: f"{v:.1f}", right=True),
    Field("memory_use", "Mem use", _live("memory_bytes"), _size, right=True),
    Field("gpu_use", "GPU use", _gpu_live("gpu_percent"), _percent, right=True),
    Field("gpu_memory_use", "GPU mem", _gpu_live("gpu_memory_bytes"), _size, right=True),
    Field("gpus_idle", "Idle", _idle_gpus, right=True, drop=3),
    Field("use_age", "Age", _use_age, lambda v, *_: f"{v:.0f}s", right=True, drop=1),
    Field("attempt", "Attempt", "attempt", right=True),
    Field("reason", "Reason", reason_words, wraps=True, least=20),
    Field("short_reason", "Reason", short_words, least=20),
    Field("start", "Expected start", "predicted_start_s", _moment, right=True),
    Field("deadline", "Deadline", "deadline_s", _moment),
    Field("slack", "Slack", "slack_s", lambda v, *_: slack_words(v), right=True),
    Field("comment", "Comment", "comment"),
    Field(
        "exit",
        "Exit",
        lambda row, _: None if row.outcome is None else row.outcome.exit_status,
        right=True,
    ),
)
#: Columns of lists that show more than one value, or one in another way.
_LISTED: Final = (
    Field(
        "job",
        "Job ID",
        lambda row, _: row.shown_id("").removesuffix("."),
        style="bold",
        least=24,  # ranges of elements may have many holes
    ),
    Field("jobs", "Jobs", lambda *_: None, right=True),
    Field("gpu", "GPUs", gpu_words, right=True),
    Field(
        "any_gpu",
        "GPUs",
        lambda row, _: gpu_words(row) if row.gpus or row.gpu_share else None,
        right=True,
    ),
    Field("nodes_or_reason", "Nodes or reason", _nodes_or_reason, least=18),
    Field(
        "nodes_first",
        "Nodes or reason",
        lambda row, view: compact(row.nodes) or _nodes_or_reason(row, view),
        least=18,
    ),
    Field(
        "expected",
        "Expected",
        lambda row, view: short_start(row.start, row.predicted_start_s, now_s=view.now_s),
        right=True,
    ),
    Field("why", "Reason", _why, wraps=True, least=32),
    Field("why_once", "Reason", _why_once, wraps=True, least=32),
    Field("by", "Deadline", "deadline_s", _clock, right=True, drop=5),
    Field("ends_by", "Ends by", "predicted_end_s", _clock, right=True),
    Field("marked_slack", "Slack", _marked_slack, right=True),
    Field("late", "Late", lambda row, _: "late" if row.meets_deadline is False else None),
    Field("began", "Started", "started_s", _clock, drop=3),
    Field("finished", "Ended", "ended_s", _clock),
    Field("cpu_used", "CPU time", "cpu_s", _duration, right=True, drop=2),
    Field(
        "outcome",
        "Outcome",
        lambda row, _: row.state if row.outcome is None else outcome_word(row.outcome),
        wraps=True,
        least=16,
    ),
    Field("moves", "Moves", migrations, drop=9),
    Field("preempted", "Preempted", preemptions, drop=9),
    Field("met", "Met", _met),
)
#: By name, in the order in which messages and manual pages list them.
NAMED: Final[Mapping[str, Field]] = MappingProxyType({each.name: each for each in _NAMED})
FIELDS: Final[Mapping[str, Field]] = MappingProxyType(
    {each.name: each for each in (*_NAMED, *_LISTED)}
)
