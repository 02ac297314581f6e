"""How ``ghist`` shows past jobs."""

import sys
from collections.abc import Collection, Sequence

from gsched.cli.common import is_terminal, print_note
from gsched.cli.show.columns import Column
from gsched.cli.show.render import print_table
from gsched.cli.times import format_clock
from gsched.model.states import OutcomeKind
from gsched.model.units import format_duration
from gsched.model.wording import counted, outcome_word
from gsched.protocol.api import HistoryReply, JobRow

COLUMNS = (
    Column("Job ID", style="bold", least=24),  # ranges of elements may have many holes
    Column("Name", least=10),
    Column("User", least=8, drop=6),
    Column("Queue", least=8, drop=1),
    Column("CPUs", right=True, drop=4),
    Column("GPUs", right=True, drop=5),
    Column("Nodes", least=8, drop=7),
    Column("Started", drop=2),
    Column("Ended"),
    Column("Elapsed", right=True),
    Column("CPU time", right=True, drop=3),
    Column("Outcome", wraps=True, least=16),
)

#: Behind COLUMNS where any job shown has moved.
MOVES_COLUMN = Column("Moves", drop=9)
#: Behind these where any job shown has a deadline.
DEADLINE_COLUMNS = (Column("Deadline", drop=8), Column("Met"))


def elapsed_s(row: JobRow) -> float | None:
    """Return for how long the job's attempts ran; None if none did."""
    if row.wall_s and row.ended_s is not None:
        return row.wall_s
    if row.started_s is None or row.ended_s is None:
        return None
    return max(0.0, row.ended_s - row.started_s)


def print_history(reply: HistoryReply, *, color: str) -> None:
    """Print a table of jobs, newest first, and the totals: in a pipe these go to stderr."""
    columns: Sequence[Column] = COLUMNS
    lines = [_line(reply, row) for row in reply.jobs]
    if any(row.moves or row.moves_lost for row in reply.jobs):
        columns = (*columns, MOVES_COLUMN)
        lines = [(*line, _moves(row)) for line, row in zip(lines, reply.jobs, strict=True)]
    if any(row.deadline_s is not None for row in reply.jobs):
        columns = (*columns, *DEADLINE_COLUMNS)
        lines = [
            (*line, *_deadline(reply, row)) for line, row in zip(lines, reply.jobs, strict=True)
        ]
    print_table(columns, lines, color=color)
    if reply.damaged:
        named = ", ".join(str(job) for job in reply.damaged[:10])
        print_note(
            f"the records of {len(reply.damaged)} jobs in the head's database are damaged: {named}",
            command="ghist",
        )
    totals = describe_totals(reply)
    if is_terminal(sys.stdout):
        print(f"\n{totals}")
    else:
        print_note(totals, command="ghist")


def _line(reply: HistoryReply, row: JobRow) -> Sequence[str]:
    return (
        row.shown_id(reply.server),
        row.name,
        row.user,
        row.queue,
        str(row.cpus),
        str(row.gpus),
        ",".join(row.nodes),
        format_clock(row.started_s, now_s=reply.now_s),
        format_clock(row.ended_s, now_s=reply.now_s),
        format_duration(elapsed_s(row)),
        format_duration(row.cpu_s),
        row.state if row.outcome is None else outcome_word(row.outcome),
    )


def _moves(row: JobRow) -> str:
    """Return how often a job has moved, how long that kept it from working, and what failed."""
    if not row.moves and not row.moves_lost:
        return ""
    cost = f", {format_duration(row.moves_cost_s)} lost" if row.moves_cost_s else ""
    restarts = f", {counted(row.moves_lost, 'restart')} instead" if row.moves_lost else ""
    return f"{row.moves}{cost}{restarts}"


def _deadline(reply: HistoryReply, row: JobRow) -> Sequence[str]:
    """Return a job's deadline, and whether it was met, with what was left or too much."""
    if row.deadline_s is None:
        return ("", "")
    deadline = format_clock(row.deadline_s, now_s=reply.now_s)
    if row.meets_deadline is None or row.ended_s is None:
        return (deadline, "")
    spare = format_duration(abs(row.slack_s or 0.0))
    if row.meets_deadline:
        return (deadline, f"met, {spare} left")
    if row.ended_s <= row.deadline_s:
        cancelled = row.outcome is not None and row.outcome.kind == OutcomeKind.CANCELLED
        return (deadline, "n/a (cancelled)" if cancelled else "missed (job failed)")
    return (deadline, f"missed by {spare}")


def describe_totals(reply: HistoryReply) -> str:
    """Return one line about all jobs that matched, also those that the limit left out."""
    cut = f" (showing the newest {len(reply.jobs)}: see --limit)" if reply.more else ""
    cancelled = f", {reply.total_cancelled} cancelled" if reply.total_cancelled else ""
    jobs = counted(reply.total_jobs, "job")
    return (
        f"{jobs}{cut}, {reply.total_failed} failed{cancelled}, "
        f"{reply.total_cpu_s / 3600:.2f} CPU hours used, {reply.total_gpu_s / 3600:.2f} GPU hours"
    )


def _cancelled(row: JobRow) -> bool:
    return row.outcome is not None and row.outcome.kind == OutcomeKind.CANCELLED


def _failed(row: JobRow) -> bool:
    return row.outcome is not None and row.outcome.exit_status != 0 and not _cancelled(row)


def totals_of(
    rows: Sequence[JobRow], *, server: str, now_s: float, arrays: Collection[int] = ()
) -> HistoryReply:
    """Return jobs that were asked for by id as a history, newest first.

    Args:
        arrays: numbers of arrays whose row stands for all their elements; that of another one
            stands beside those of its elements.
    """
    ordered = sorted(rows, key=lambda row: (row.ended_s or now_s, row.id), reverse=True)
    whole = [row for row in ordered if row.id in arrays and row.array is not None]
    counts = [row.array for row in whole if row.array is not None]
    rest = [row for row in ordered if row.jobs]
    used = [*rest, *whole]
    return HistoryReply(
        server=server,
        now_s=now_s,
        jobs=tuple(ordered),
        total_jobs=sum(row.jobs for row in rest) + sum(each.elements for each in counts),
        total_cpu_s=sum(row.cpu_s for row in used),
        total_wall_s=sum(elapsed_s(row) or 0.0 for row in used),
        total_gpu_s=sum((elapsed_s(row) or 0.0) * row.gpus for row in used),
        total_failed=sum(map(_failed, rest)) + sum(each.failed for each in counts),
        total_cancelled=sum(row.jobs for row in rest if _cancelled(row))
        + sum(each.deleted for each in counts),
    )
