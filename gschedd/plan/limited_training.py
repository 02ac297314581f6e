"""A policy for training jobs, kept within the limits of users and queues, whatever it plans.

Training jobs that lack room under a limit even with their least are not shown to it. Where its plan
breaks a limit, the job that does so gets no more GPUs than the limit leaves, or keeps what it has,
and the policy plans again. What a running job leaves counts until it has left, so that no limit is
broken while jobs migrate. Of a job that waits for a limit no deadline is forecast.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from gschedd.plan.amounts import amounts_needed, amounts_there
from gschedd.plan.attainable import deadline_order
from gschedd.plan.elastic import at_count, is_elastic
from gschedd.plan.forecast import Forecast
from gschedd.plan.limits import AtLimit, LimitRoom
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, Snapshot, Wait
from gschedd.plan.training import TrainingProfile, gpu_count

#: So often the policy plans again at most; then what breaks a limit is left out of its plan.
MAX_ROUNDS: Final = 8


class _Break(Struct, frozen=True, kw_only=True):
    """A job of a plan that breaks a limit; ``gpus``: what the limit leaves it; 0: nothing."""

    job: int
    limit: AtLimit
    gpus: int


def within_limits(policy: Policy, snapshot: Snapshot) -> Plan:
    """Return the plan of a policy for training jobs within limits; without limits its own."""
    if snapshot.limits is None:
        return policy(snapshot)
    seen, waits = _without(snapshot, _lacking(snapshot, snapshot.limits))
    for _ in range(MAX_ROUNDS):
        plan, room = policy(seen), snapshot.limits.copy()
        broken = _first_break(seen, room, plan)
        if broken is None:
            return _with_waits(snapshot, plan, waits | _later(seen, room, plan))
        seen, more = _capped(seen, broken)
        waits |= more
    plan = _trimmed(seen, snapshot.limits.copy(), policy(seen))
    return _with_waits(snapshot, plan, waits)


def _lacking(snapshot: Snapshot, room: LimitRoom) -> dict[int, AtLimit]:
    """Return the waiting training jobs that no limit leaves room for, each alone."""
    found = {}
    for group in snapshot.groups:
        job_class, job = group.job_class, group.order[0][1]
        limit = room.lack(job_class.party, least_counted(job_class))
        if limit is not None and job in snapshot.profiles:
            found[job] = limit
    return found


def least_counted(job_class: JobClass) -> Mapping[str, float]:
    """Return what a job of a class counts at least."""
    request = job_class.request
    least = at_count(request, request.places) if is_elastic(request) else request
    return amounts_needed(least, job_class.walltime_s)


def _later(snapshot: Snapshot, room: LimitRoom, plan: Plan) -> dict[int, Wait]:
    """Return the waiting jobs that limits leave no room for once those with earlier deadlines run.

    Args:
        snapshot: of which the plan was made.
        room: what the plan leaves; what the jobs count is taken of it.
        plan: of the training jobs.
    """
    started = {start.job for start in plan.starts}
    waiting = {group.order[0][1]: group.job_class for group in snapshot.groups}
    waits: dict[int, Wait] = {}
    in_time = (verdict.job for verdict in plan.verdicts if verdict.meets)
    later = (job for job in in_time if job in waiting and job not in started)
    for job in sorted(later, key=lambda job: deadline_order(snapshot, job)):
        job_class = waiting[job]
        limit = room.lack(job_class.party, least_counted(job_class))
        if limit is None:
            room.take(job_class.party, least_counted(job_class))
        else:
            waits[job] = Wait(job_class=job_class, first=job, reason=limit)
    return waits


def _without(snapshot: Snapshot, limits: Mapping[int, AtLimit]) -> tuple[Snapshot, dict[int, Wait]]:
    """Return a snapshot without some waiting jobs, and why these wait."""
    groups: list[Group] = []
    waits: dict[int, Wait] = {}
    for group in snapshot.groups:
        job = group.order[0][1]
        if job in limits:
            waits[job] = Wait(job_class=group.job_class, first=job, reason=limits[job])
        else:
            groups.append(group)
    if not waits:
        return snapshot, waits
    profiles = {job: each for job, each in snapshot.profiles.items() if job not in waits}
    return structs.replace(snapshot, groups=groups, profiles=profiles), waits


def _first_break(snapshot: Snapshot, room: LimitRoom, plan: Plan) -> _Break | None:
    """Return the first job of a plan that breaks a limit, and take of the room what is within."""
    for move in plan.moves:
        limit = room.grown(move.job, move.allocation, snapshot.nodes)
        if limit is not None:
            has = room.book.held[move.job].amounts.get("gpus", 0) // 100
            gpus = _left(snapshot.profiles[move.job], limit, has, gpu_count(move.allocation))
            return _Break(job=move.job, limit=limit, gpus=gpus if gpus > has else 0)
        room.move(move.job, move.allocation, snapshot.nodes)
    for start in plan.starts:
        party, walltime_s = start.job_class.party, start.job_class.walltime_s
        counted = amounts_there(start.allocation, snapshot.nodes, walltime_s)
        limit = room.lack(party, counted)
        if limit is not None:
            gpus = _left(snapshot.profiles[start.job], limit, 0, gpu_count(start.allocation))
            return _Break(job=start.job, limit=limit, gpus=gpus)
        room.take(party, counted)
    return None


def _left(profile: TrainingProfile, limit: AtLimit, has: int, planned: int) -> int:
    """Return how many GPUs a job may get instead of those planned, in proportion; 0: none."""
    part = limit.left / limit.needed if limit.needed else 0.0
    most = has + int((planned - has) * part)
    adaptive = profile.adaptive
    least = adaptive.gpus_min if adaptive is not None else min(profile.gpus, default=planned)
    return min(most, planned - 1) if most >= least else 0


def _capped(snapshot: Snapshot, broken: _Break) -> tuple[Snapshot, dict[int, Wait]]:
    """Return a snapshot in which a job may have no more GPUs than a limit leaves, or none."""
    job, profile = broken.job, snapshot.profiles[broken.job]
    is_waiting = any(group.order[0][1] == job for group in snapshot.groups)
    if is_waiting and not broken.gpus:
        return _without(snapshot, {job: broken.limit})
    if broken.gpus:
        gpus = tuple(each for each in profile.gpus if each <= broken.gpus)
        adaptive = profile.adaptive
        if adaptive is not None:
            adaptive = structs.replace(adaptive, gpus_max=min(adaptive.gpus_max, broken.gpus))
        profile = structs.replace(profile, gpus=gpus, adaptive=adaptive)
    else:
        profile = structs.replace(profile, movable=False, movable_later=False)
    return structs.replace(snapshot, profiles={**snapshot.profiles, job: profile}), {}


def _trimmed(snapshot: Snapshot, room: LimitRoom, plan: Plan) -> Plan:
    """Return a plan without migrations, and without the starts that break a limit."""
    plan = structs.replace(plan, moves=())
    while (broken := _first_break(snapshot, room.copy(), plan)) is not None:
        starts = tuple(start for start in plan.starts if start.job != broken.job)
        refused = next(start for start in plan.starts if start.job == broken.job)
        wait = Wait(job_class=refused.job_class, first=broken.job, reason=broken.limit)
        plan = structs.replace(plan, starts=starts, waits=(*plan.waits, wait))
    return plan


def _with_waits(snapshot: Snapshot, plan: Plan, waits: Mapping[int, Wait]) -> Plan:
    """Return a plan with why jobs wait for limits; of their deadlines nothing can be said."""
    if not waits:
        return plan
    unknown = (
        Forecast(job=job, why=str(wait.reason), firm=False)
        for job, wait in waits.items()
        if snapshot.profiles[job].deadline_s is not None
    )
    others = (wait for wait in plan.waits if wait.first not in waits)
    verdicts = (verdict for verdict in plan.verdicts if verdict.job not in waits)
    return structs.replace(plan, waits=(*others, *waits.values()), verdicts=(*verdicts, *unknown))
