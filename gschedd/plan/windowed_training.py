"""A policy for training jobs, kept out of windows to come, whatever it plans.

Policies for training jobs do not tell nodes apart by walltimes, so the longest walltime decides for
all of them which nodes are closed. A waiting job that no node could hold now, were all idle, as it
would run into a window on each, is therefore not shown to the policy: it starts nothing before, and
must not keep the others from nodes until the window begins.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, structs

from gsched.model.resources import Request
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.fit import NoFit, place
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, RunningJob, Snapshot, Wait
from gschedd.plan.space import Spaces, emptied
from gschedd.plan.windows import Closed, barred, barring, window_reason, without

_NONE: Final[frozenset[Closed]] = frozenset()


class _Barred(Struct, frozen=True, kw_only=True):
    """Why a waiting job cannot start now, and until when it cannot at least."""

    wait: Wait
    until_s: float


class OutsideWindows:
    """A policy for training jobs that starts none where it may run into a window.

    Args:
        policy: plans training jobs.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return its plan, with why the jobs wait that it was not shown."""
        if not snapshot.windows:
            return self.policy(snapshot)
        kept_out = _kept_out(snapshot)
        groups = [group for group in snapshot.groups if group.order[0][1] not in kept_out]
        profiles = {job: each for job, each in snapshot.profiles.items() if job not in kept_out}
        closed = _closed(snapshot, groups)
        nodes = snapshot.nodes
        if closed:
            nodes = {space.name: space for space in without(Spaces(nodes), closed)}
        seen = structs.replace(snapshot, groups=groups, nodes=nodes, profiles=profiles)
        return _with_waits(snapshot, self.policy(seen), kept_out)


def _kept_out(snapshot: Snapshot) -> dict[int, _Barred]:
    """Return the waiting jobs that no node could hold now, for the windows to come.

    Jobs whose deadlines are guaranteed are never among them.
    """
    windows, now_s = snapshot.windows, snapshot.now_s
    idle = Spaces(
        {
            name: structs.replace(emptied(space), open=space.open)
            for name, space in snapshot.nodes.items()
        }
    )
    fits: dict[tuple[Request, frozenset[Closed]], bool] = {}

    def holds(request: Request, closed: frozenset[Closed]) -> bool:
        if (request, closed) not in fits:
            left = without(idle, closed)
            fits[request, closed] = not isinstance(place(request, left), NoFit)
        return fits[request, closed]

    found: dict[int, _Barred] = {}
    for group in snapshot.groups:
        job_class, job = group.job_class, group.order[0][1]
        profile, request = snapshot.profiles.get(job), _least(job_class)
        closed = barred(windows, now_s, job_class.walltime_s)
        if not closed or profile is None or profile.guaranteed is True:
            continue
        if not holds(request, closed) and holds(request, _NONE):
            found[job] = _barred(snapshot, job_class, job)
    return found


def _least(job_class: JobClass) -> Request:
    request = job_class.request
    return at_count(request, request.places) if is_elastic(request) else request


def _barred(snapshot: Snapshot, job_class: JobClass, job: int) -> _Barred:
    windows, now_s, walltime_s = snapshot.windows, snapshot.now_s, job_class.walltime_s
    found = {node: barring(windows, node, now_s, walltime_s) for node in snapshot.nodes}
    ends_s = [window.to_s for window in found.values() if window is not None]
    nodes = [node for node, window in found.items() if window is not None]
    reason = window_reason(windows, nodes, now_s, walltime_s)
    wait = Wait(job_class=job_class, first=job, reason=reason)
    return _Barred(wait=wait, until_s=min(ends_s, default=math.inf))


def _closed(snapshot: Snapshot, waiting: Iterable[Group]) -> frozenset[Closed]:
    """Return what training jobs do not get of nodes, as any of them might run into a window there.

    A running job that cannot migrate gets no other node, so it does not count.
    """
    limits_s = [group.job_class.walltime_s for group in waiting]
    limits_s += [
        None if each.end_s is None else each.end_s - snapshot.now_s
        for each in snapshot.running
        if _may_move(snapshot, each)
    ]
    known_s = [limit_s for limit_s in limits_s if limit_s is not None]
    longest_s = max(known_s, default=0.0) if len(known_s) == len(limits_s) else None
    return barred(snapshot.windows, snapshot.now_s, longest_s)


def _may_move(snapshot: Snapshot, running: RunningJob) -> bool:
    profile = snapshot.profiles.get(running.job)
    return profile is not None and (profile.movable or profile.movable_later or running.leaving)


def _with_waits(snapshot: Snapshot, plan: Plan, kept_out: Mapping[int, _Barred]) -> Plan:
    """Return a plan with why jobs wait for windows.

    One whose deadline is not after its window will be late; of the others nothing can be said.
    """
    if not kept_out:
        return plan
    verdicts = []
    for job, each in kept_out.items():
        deadline_s = snapshot.profiles[job].deadline_s
        if deadline_s is not None:
            meets = False if deadline_s <= each.until_s else None
            why = str(each.wait.reason)
            verdicts.append(Forecast(job=job, meets=meets, firm=False, why=why, lacks_room=True))
    waits = (each.wait for each in kept_out.values())
    return structs.replace(plan, waits=(*plan.waits, *waits), verdicts=(*plan.verdicts, *verdicts))
