"""How ``ghist`` shows past jobs."""

import sys
from collections.abc import Collection, Sequence

from gsched.cli.common import is_terminal, print_note
from gsched.cli.show.jobfields import cells_of, elapsed_s, gpus_of
from gsched.cli.show.render import print_table
from gsched.model.states import OutcomeKind
from gsched.model.wording import counted
from gsched.protocol.job_rows import HistoryReply, JobRow

_COLUMNS = (
    *("name", "user", "queue", "cpus", "gpu", "nodes", "began", "finished", "elapsed"),
    *("cpu_used", "outcome"),
)


def print_history(reply: HistoryReply, *, color: str) -> None:
    """Print a table of jobs, newest first, and the totals: in a pipe these go to stderr."""
    names = ["job" if is_terminal(sys.stdout) else "id", *_COLUMNS]
    if any(row.moves or row.moves_lost for row in reply.jobs):
        names.append("moves")
    if any(row.preemptions for row in reply.jobs):
        names.append("preempted")
    if any(row.deadline_s is not None for row in reply.jobs):
        names += ["by", "met"]
    columns, lines = cells_of(names, reply.jobs, reply)
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
    """Return jobs that were requested by id as a history, newest first.

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
        total_wall_s=sum(elapsed_s(row, now_s) or 0.0 for row in used),
        total_gpu_s=sum((elapsed_s(row, now_s) or 0.0) * gpus_of(row) for row in used),
        total_failed=sum(map(_failed, rest)) + sum(each.failed for each in counts),
        total_cancelled=sum(row.jobs for row in rest if _cancelled(row))
        + sum(each.deleted for each in counts),
    )
