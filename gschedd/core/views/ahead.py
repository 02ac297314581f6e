"""Which jobs are ahead of one that waits: who, and how much they request."""

import heapq
from typing import Final

from gsched.protocol.starts import AheadRow, AheadRows
from gschedd.core.state import Job, State

#: Jobs ahead that are named.
MAX_NAMED: Final = 10


def jobs_ahead(job: Job, state: State) -> AheadRows:
    """Return the jobs of its queue that would be considered before this one."""
    key = state.order_key(job)
    jobs = cpus = gpus = 0
    first: list[tuple[int, int]] = []
    for group in state.groups.values():
        if group.job_class.queue != job.spec.queue:
            continue
        count = group.position(key)
        request = group.job_class.request
        jobs += count
        cpus += count * request.cpus
        gpus += count * request.gpus
        first.extend(group.order[: min(count, MAX_NAMED)])
    named = (state.jobs[number] for _, number in heapq.nsmallest(MAX_NAMED, first))
    return AheadRows(jobs=jobs, cpus=cpus, gpus=gpus, first=tuple(map(_ahead_row, named)))


def _ahead_row(job: Job) -> AheadRow:
    spec = job.spec
    return AheadRow(
        id=job.id,
        name=spec.name,
        user=spec.owner.user,
        cpus=spec.request.cpus,
        gpus=spec.request.gpus,
        places=spec.request.places,
        priority=spec.priority,
        walltime_s=spec.walltime_s,
    )
