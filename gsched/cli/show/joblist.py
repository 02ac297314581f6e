"""The rows of gstat's lists."""

from collections.abc import Iterator, Sequence

from gsched.cli.show.columns import Column
from gsched.cli.times import format_clock, local_times, short_start
from gsched.model.states import JobState
from gsched.model.units import format_duration, format_size
from gsched.model.wording import outcome_words
from gsched.protocol.api import JobList, JobRow
from gsched.protocol.arrays import ArrayRow

#: The first six are Torque's, in its order: id, name, owner, CPU time, state, queue.
LIST_COLUMNS = (
    Column("Job ID", style="bold"),
    Column("Name"),
    Column("User"),
    Column("Time Use", right=True),
    Column("S"),
    Column("Queue"),
    Column("CPUs", right=True),
    Column("GPUs", right=True),
    Column("Elapsed", right=True),
    Column("Limit", right=True),
    Column("Nodes"),
    Column("Reason", wraps=True),
)
WHY_COLUMNS = (
    Column("Job ID", style="bold"),
    Column("Name", least=10),
    Column("User", least=8, drop=1),
    Column("S"),
    Column("Expected", right=True),
    Column("Reason", wraps=True, least=32),
)
#: Of ``gstat --format usage``.
USE_COLUMNS = (
    Column("Job ID", style="bold"),
    Column("Name", least=10),
    Column("User", least=8, drop=2),
    Column("S", drop=4),
    Column("Elapsed", right=True, drop=3),
    Column("CPUs", right=True),
    Column("CPU use", right=True),
    Column("Memory", right=True),
    Column("Mem use", right=True),
    Column("GPUs", right=True),
    Column("GPU use", right=True),
    Column("GPU mem", right=True),
    Column("Age", right=True, drop=1),
)
_TERMINAL_COLUMNS = (
    Column("Job ID", style="bold"),
    Column("Name", least=10),
    Column("User", least=8, drop=4),
    Column("Time Use", right=True, drop=1),
    Column("S"),
    Column("Queue", least=8, drop=3),
    Column("GPUs", right=True, drop=2),
    Column("Elapsed", right=True),
    Column("Nodes or reason", wraps=True, least=32),
)


_TERMINAL_DEADLINES = (Column("Deadline", right=True, drop=5), Column("Slack", right=True))
#: Behind LIST_COLUMNS where any job shown has a deadline.
DEADLINE_COLUMNS = (
    Column("Deadline", right=True),
    Column("Ends by", right=True),
    Column("Slack", right=True),
    Column("Late"),
)


def has_deadlines(reply: JobList) -> bool:
    """Return whether any of the jobs has a deadline."""
    return any(job.deadline_s is not None for job in reply.jobs)


def plain_list(reply: JobList) -> tuple[Sequence[Column], Iterator[Sequence[str]]]:
    """Return columns and rows for a pipe: those of deadlines only where there are some."""
    if not has_deadlines(reply):
        return LIST_COLUMNS, list_rows(reply)
    both = zip(list_rows(reply), reply.jobs, strict=True)
    rows = ((*row, *_deadline_cells(job, reply.now_s)) for row, job in both)
    return (*LIST_COLUMNS, *DEADLINE_COLUMNS), rows


def _deadline_cells(job: JobRow, now_s: float) -> Sequence[str]:
    if job.deadline_s is None:
        return ("", "", "", "")
    ends = "" if job.predicted_end_s is None else format_clock(job.predicted_end_s, now_s=now_s)
    return (
        format_clock(job.deadline_s, now_s=now_s),
        ends,
        slack(job.slack_s),
        "late" if job.meets_deadline is False else "",
    )


def slack(slack_s: float | None) -> str:
    """Return ``01:30:00``, or ``-00:10:00`` of what is late; empty where nothing can be said."""
    if slack_s is None:
        return ""
    sign = "-" if slack_s <= -1 else ""
    return sign + format_duration(abs(slack_s))


def marked_slack(job: JobRow) -> str:
    """Return a job's slack for people, with a word before it where the job is late."""
    late = "LATE " if job.meets_deadline is False else ""
    return (late + slack(job.slack_s)).strip()


def list_rows(reply: JobList) -> Iterator[Sequence[str]]:
    """Yield a row of LIST_COLUMNS for each job; quick, because there may be 100,000 of them."""
    for job in reply.jobs:
        limit = format_duration(job.walltime_s) if job.walltime_s else ""
        yield (
            job.shown_id(reply.server),
            job.name,
            job.user,
            cpu_time(job),
            job.letter,
            job.queue,
            str(job.cpus),
            shown_gpus(job),
            elapsed(job, reply.now_s) if job.started_s else "",
            limit,
            "+".join(job.nodes),
            reason_words(job),
        )


def terminal_list(reply: JobList) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Return columns and rows that have a chance to fit 80 characters."""
    rows: list[Sequence[str]] = [
        (
            job.shown_id(reply.server),
            job.name,
            job.user,
            cpu_time(job),
            job.letter,
            job.queue,
            shown_gpus(job) if job.gpus or job.gpu_share else "",
            elapsed(job, reply.now_s),
            reason_words(job) or "+".join(job.nodes),
        )
        for job in reply.jobs
    ]
    if not has_deadlines(reply):
        return _TERMINAL_COLUMNS, rows
    *first, last = _TERMINAL_COLUMNS
    deadlines = [(_clock(job.deadline_s, reply.now_s), marked_slack(job)) for job in reply.jobs]
    shown = 2 if any(slack for _, slack in deadlines) else 1  # of none is anything known yet
    return (*first, *_TERMINAL_DEADLINES[:shown], last), [
        (*row[:-1], *cells[:shown], row[-1]) for row, cells in zip(rows, deadlines, strict=True)
    ]


def shown_gpus(job: JobRow) -> str:
    """Return how many GPUs a job has or asks for, or the part of one: ``40%``."""
    return str(job.gpus) if job.gpu_share is None else f"{job.gpu_share.percent}%"


def _clock(at_s: float | None, now_s: float) -> str:
    return "" if at_s is None else format_clock(at_s, now_s=now_s)


def reason_words(job: JobRow) -> str:
    """Return why a job waits or how it ended; of an array first where its elements are."""
    words = local_times(job.reason) or ending(job)
    array = job.array
    if array is None or job.outcome is not None:
        return words
    summary = array_summary(array)
    return f"{summary}; {words}" if words else summary


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


def why_rows(reply: JobList) -> Iterator[Sequence[str]]:
    """Yield a row of WHY_COLUMNS for each job that waits."""
    for job in reply.jobs:
        starts = short_start(job.start, job.predicted_start_s, now_s=reply.now_s)
        reason = reason_words(job)
        unknown = "" if job.start is None else job.start.unknown
        if unknown and unknown not in reason and not is_for_its_hold(job.state, unknown):
            reason = f"{reason}; start unknown: {unknown}"
        yield (job.shown_id(reply.server), job.name, job.user, job.letter, starts, reason)


def is_for_its_hold(state: str, unknown: str) -> bool:
    """Return whether a start is unknown because the job is held, which its reason says."""
    return state == JobState.HELD and unknown.startswith("the job is held")


def use_rows(reply: JobList) -> Iterator[Sequence[str]]:
    """Yield a row of USE_COLUMNS for each job: what it has, and what it uses at the moment."""
    for job in reply.jobs:
        live = job.live
        # of GPUs that are declared only, or that nothing runs on, nothing is measured
        is_measured = live is not None and (live.gpus > 0 or live.gpu_memory_bytes > 0)
        yield (
            job.shown_id(reply.server),
            job.name,
            job.user,
            job.letter,
            elapsed(job, reply.now_s),
            str(job.cpus),
            f"{live.cpu_cores:.1f}" if live else "",
            format_size(job.memory_bytes) if job.memory_bytes else "",
            format_size(live.memory_bytes) if live else "",
            shown_gpus(job) if job.gpus or job.gpu_share else "",
            f"{live.gpu_percent:.0f}%" if live and is_measured else "",
            format_size(live.gpu_memory_bytes) if live and is_measured else "",
            f"{max(0.0, reply.now_s - live.at_s):.0f}s" if live else "",
        )


def cpu_time(job: JobRow) -> str:
    """Return the CPU time used, ``0`` before the start, as Torque's qstat has it."""
    return format_duration(job.cpu_s) if job.cpu_s or job.started_s else "0"


def elapsed(job: JobRow, now_s: float) -> str:
    """Return for how long the job's attempts have run, or nothing if none has."""
    if job.wall_s:
        return format_duration(job.wall_s)
    if job.started_s is None:
        return ""
    return format_duration(max(0.0, (job.ended_s or now_s) - job.started_s))


def ending(job: JobRow) -> str:
    """Return how a job ended, or nothing."""
    if job.state != JobState.DONE or job.outcome is None:
        return ""
    return outcome_words(job.outcome, walltime_s=job.walltime_s)
