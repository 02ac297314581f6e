"""What users see of the jobs of others where the site keeps these private (T69)."""

from typing import Final

from msgspec import structs

from gsched.protocol import job_rows

#: The name and the owner of such a job.
HIDDEN: Final = "-"
#: All else that is shown of it: resources, state and times.
_SHOWN: Final = (
    *("id", "short_number", "array", "queue", "state", "letter", "submitted_s", "started_s"),
    *("ended_s", "cpus", "places", "gpus", "gpus_most", "gpu_share", "memory_bytes", "priority"),
    *("walltime_s", "nodes"),
)


def anonymous(row: job_rows.JobRow) -> job_rows.JobRow:
    """Return the line of a job without all that is not its resources, state or times."""
    shown = {name: getattr(row, name) for name in _SHOWN}
    return job_rows.JobRow(name=HIDDEN, user=HIDDEN, **shown)


def anonymous_ahead(row: job_rows.AheadRow) -> job_rows.AheadRow:
    """Return a job that is ahead of another without its name and owner."""
    return structs.replace(row, name=HIDDEN, user=HIDDEN)
