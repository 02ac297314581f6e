"""Keeps the starts of any policy for training jobs out of future windows.

Policies for training jobs do not tell nodes apart by walltimes, so the longest walltime decides for
all of them which nodes are closed. A waiting job that no node could hold now, were all idle, as it
would run into a window on each, is therefore not shown to the policy: it starts nothing before, and
must not keep the others from nodes until the window begins.

Where a longer job has closed nodes that shorter ones could have, the policy plans once more, with
the shorter ones and these nodes only. What starts there has ended before the longer job could.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
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


def outside_windows(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the plan of a policy that starts no training job where it may run into a window.

    It says why the jobs wait that the policy was not shown.
    """
    if not snapshot.windows:
        return policy(snapshot)
    kept_out = _kept_out(snapshot)
    groups = [group for group in snapshot.groups if group.order[0][1] not in kept_out]
    profiles = {job: each for job, each in snapshot.profiles.items() if job not in kept_out}
    closed = _closed(snapshot, groups)
    nodes = snapshot.nodes
    if closed:
        nodes = {space.name: space for space in without(Spaces(nodes), closed)}
    seen = structs.replace(snapshot, groups=groups, nodes=nodes, profiles=profiles)
    plan = _with_shorter(policy, snapshot, policy(seen), groups, closed)
    return _with_waits(snapshot, plan, kept_out)


def _with_shorter(
    policy: Policy,
    snapshot: Snapshot,
    plan: Plan,
    groups: Iterable[Group],
    closed: frozenset[Closed],
) -> Plan:
    """Return a plan with starts of shorter jobs on what was closed for the longest one.

    Args:
        policy: that made the plan.
        snapshot: all nodes.
        plan: for those that were open.
        groups: which the policy was shown.
        closed: what was not.
    """
    while closed:
        started = {start.job for start in plan.starts}
        left = (group for group in groups if group.order[0][1] not in started)
        shorter = [(group, own) for group in left if (own := _barred_of(snapshot, group)) < closed]
        if not shorter:
            break
        still_closed = _NONE.union(*(own for _, own in shorter))
        seen = _opened(
            snapshot, plan, [group for group, _ in shorter], closed - still_closed, still_closed
        )
        more = policy(seen)
        plan = plan if more.moves else _joined(plan, more)
        closed = still_closed
    return plan


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


def _barred_of(snapshot: Snapshot, group: Group) -> frozenset[Closed]:
    return barred(snapshot.windows, snapshot.now_s, group.job_class.walltime_s)


def _opened(
    snapshot: Snapshot,
    plan: Plan,
    groups: Sequence[Group],
    opened: Iterable[Closed],
    closed: Iterable[Closed],
) -> Snapshot:
    """Return what a policy is shown of the nodes that are open for shorter jobs only.

    Nothing that runs may be migrated; nodes to or from which the plan migrates jobs are left out.
    """
    spaces = Spaces(snapshot.nodes)
    for start in plan.starts:
        spaces.take(start.allocation)
    running = {each.job: each.allocation for each in snapshot.running}
    moved = {
        share.node
        for move in plan.moves
        for share in (*move.allocation, *running.get(move.job, ()))
    }
    names = {each if isinstance(each, str) else each.node for each in opened} - moved
    others = (name for name in snapshot.nodes if name not in names)
    nodes = {space.name: space for space in without(spaces, (*closed, *others))}
    waiting = {group.order[0][1] for group in groups}
    profiles = {
        job: structs.replace(profile, movable=False, movable_later=False)
        for job, profile in snapshot.profiles.items()
        if job in waiting or job in running
    }
    return structs.replace(snapshot, groups=groups, nodes=nodes, profiles=profiles)


def _joined(plan: Plan, more: Plan) -> Plan:
    """Return a plan with the starts of another one, and what that says of the jobs of these."""
    jobs = {start.job for start in more.starts}
    newer = (verdict for verdict in more.verdicts if verdict.job in jobs)
    kept = (verdict for verdict in plan.verdicts if verdict.job not in jobs)
    return structs.replace(
        plan,
        starts=(*plan.starts, *more.starts),
        waits=tuple(wait for wait in plan.waits if wait.first not in jobs),
        verdicts=(*kept, *newer),
    )


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
