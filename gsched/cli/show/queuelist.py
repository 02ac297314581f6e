"""How ``gstat`` shows queues."""

from collections.abc import Iterator, Sequence

from gsched.cli.show.columns import Column
from gsched.model.states import JobState
from gsched.model.units import format_duration
from gsched.protocol.api import QueueRow

QUEUE_COLUMNS = (
    Column("Queue", style="bold"),
    Column("Accepts"),
    Column("Starts"),
    Column("Priority", right=True, drop=1),
    Column("Limit", right=True, drop=2),
    Column("Default", right=True, drop=3),
    Column("Running", right=True),
    Column("Queued", right=True),
    Column("Held", right=True),
    Column("Waiting", right=True, drop=4),
    Column("Total", right=True),
    Column("For", drop=5, wraps=True, least=10),
)


def _users_of(queue: QueueRow) -> str:
    """Return who may use a queue, as ``users a,b; groups c; not d``; empty: everybody."""
    lists = (
        ("users", queue.allow_users),
        ("groups", queue.allow_groups),
        ("not", queue.deny_users),
    )
    return "; ".join(f"{what} {','.join(names)}" for what, names in lists if names)


def queue_rows(queues: Sequence[QueueRow]) -> Iterator[Sequence[str]]:
    """Yield a row of QUEUE_COLUMNS for each queue; a running job is one with resources."""
    running = (JobState.RUNNING, JobState.MIGRATING, JobState.EXITING)
    for queue in queues:
        yield (
            queue.name,
            "yes" if queue.enabled else "no",
            "yes" if queue.started else "no",
            str(queue.priority),
            format_duration(queue.max_walltime_s) if queue.max_walltime_s else "",
            format_duration(queue.default_walltime_s) if queue.default_walltime_s else "",
            str(sum(queue.jobs.get(state, 0) for state in running)),
            str(queue.jobs.get(JobState.QUEUED, 0)),
            str(queue.jobs.get(JobState.HELD, 0)),
            str(queue.jobs.get(JobState.WAITING, 0)),
            str(sum(queue.jobs.values())),
            _users_of(queue),
        )
