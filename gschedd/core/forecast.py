"""When a waiting job will start, if nothing new comes and every job runs to its walltime.

The policy itself is asked again at each end of a running job, on a copy of the queue; so a forecast
follows whatever the policy does. It is bounded, and says nothing rather than something wrong.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from gsched.model.job import JobSpec
from gsched.model.resources import Allocation
from gsched.model.states import JobState
from gschedd.core.cycle import snapshot
from gschedd.core.settings import Settings
from gschedd.core.state import Job, State
from gschedd.plan.snapshot import Group, OrderKey, Policy, RunningJob, Shape, Snapshot
from gschedd.plan.space import NodeSpace, Spaces

#: Ends of jobs looked at; beyond, the forecast would cost more than it is worth.
MAX_STEPS: Final = 200
#: Jobs before the one asked about; with more nothing is said.
MAX_AHEAD: Final = 2000
_NEW_JOB: Final = 2**62  # behind every job there is


def predict_start(seen: Snapshot, policy: Policy, *, job: int, key: OrderKey) -> float | None:
    """Return by when ``job`` starts, seconds since the epoch; None if it cannot be said.

    Args:
        seen: the present; jobs behind ``key`` are left out, as backfilling them delays nobody.
        key: the job's place in the order.
    """
    groups = {
        group.shape: [each for each in group.order[: MAX_AHEAD + 1] if each <= key]
        for group in seen.groups
        if group.order[0] <= key
    }
    if sum(map(len, groups.values())) > MAX_AHEAD:
        return None
    spaces = Spaces(seen.nodes)
    running = {each.job: each for each in seen.running}
    now_s = seen.now_s
    for _ in range(MAX_STEPS):
        starts = policy(_moment(seen, now_s, spaces, groups, running)).starts
        for start in starts:
            if start.job == job:
                return now_s
            spaces.take(start.allocation)
            running[start.job] = _started(start.job, start.allocation, start.shape, now_s)
            _remove(groups, start.shape, start.job)
        ends = [each.end_s for each in running.values() if each.end_s is not None]
        if not ends:
            return None
        now_s = max(now_s, min(ends))
        for each in [r for r in running.values() if r.end_s is not None and r.end_s <= now_s]:
            spaces.give(each.allocation)
            del running[each.job]
    return None


def predict_submission(
    state: State, settings: Settings, policy: Policy, *, spec: JobSpec, now_s: float
) -> float | None:
    """Return by when a job would start if it were submitted now; None if it cannot be said."""
    queue = settings.queues.get(spec.queue)
    if queue is None or not queue.started or spec.holds or spec.start_after_s > now_s:
        return None
    job = Job(id=_NEW_JOB, spec=spec, state=JobState.QUEUED, submitted_s=now_s, eligible_s=now_s)
    key, shape = state.order_key(job), state.shape_of(job)
    seen = snapshot(state, settings, now_s)
    orders = {group.shape: list(group.order) for group in seen.groups}
    orders[shape] = sorted([*orders.get(shape, []), key])
    groups = [Group(shape=each, order=order) for each, order in orders.items()]
    return predict_start(structs.replace(seen, groups=groups), policy, job=_NEW_JOB, key=key)


def _moment(
    seen: Snapshot,
    now_s: float,
    spaces: Spaces,
    groups: Mapping[Shape, list[OrderKey]],
    running: Mapping[int, RunningJob],
) -> Snapshot:
    """Return the present moved to ``now_s``; loads and predictions stay what they are."""
    nodes: dict[str, NodeSpace] = {space.name: space for space in spaces}
    return structs.replace(
        seen,
        now_s=now_s,
        nodes=nodes,
        groups=[Group(shape=shape, order=order) for shape, order in groups.items() if order],
        running=list(running.values()),
    )


def _started(job: int, allocation: Allocation, shape: Shape, now_s: float) -> RunningJob:
    end_s = None if shape.walltime_s is None else now_s + shape.walltime_s
    return RunningJob(job=job, allocation=allocation, started_s=now_s, end_s=end_s)


def _remove(groups: dict[Shape, list[OrderKey]], shape: Shape, job: int) -> None:
    groups[shape] = [key for key in groups[shape] if key[1] != job]
