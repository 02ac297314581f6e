"""The whole cluster to one training at a time: what two baselines share, but for the order."""

import math
from collections.abc import Callable, Iterable

from gsched.model.resources import Allocation
from gschedd.allocation.changes import Speeds, timeline_for
from gschedd.allocation.running import TrainingJobs
from gschedd.allocation.shares import Timeline
from gschedd.plan.elastic import allocate_on, free_gpus
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import JobClass, Plan, Snapshot, Start, Wait
from gschedd.plan.space import Spaces
from gschedd.plan.training import TrainingProfile, gpus_by_node

#: By what training jobs are ordered, the first one best; the job id is last, so that no two are
#: alike.
Order = Callable[[TrainingProfile], tuple[float, ...]]


def plan_one_at_a_time(snapshot: Snapshot, order: Order, *, firm: bool) -> Plan:
    """Start the first training in order on all GPUs that it can use, when no other one runs.

    Nothing is interrupted. Every training is told when it will be done if none arrives that goes
    before it; GPUs that other jobs hold count from when these are planned to end.

    Args:
        snapshot: what there is.
        order: of the training jobs.
        firm: whether none that arrives can go before one that is there.
    """
    training_jobs, speeds = TrainingJobs.of(snapshot), Speeds(snapshot)
    waiting = sorted(training_jobs.waiting, key=lambda job: order(snapshot.profiles[job]))
    running = [*training_jobs.movable.values(), *training_jobs.fixed.values()]
    timeline = timeline_for(snapshot, training_jobs.others)
    end_s = snapshot.now_s
    verdicts: list[Forecast] = []
    for each in running:
        profile = snapshot.profiles[each.job]
        here = gpus_by_node(each.allocation)
        if here:
            end_s = max(
                end_s, snapshot.now_s + profile.run_time_s(speeds.layout_of(each.allocation))
            )
        verdicts.append(_verdict(profile, end_s, sum(here.values()), firm=firm))
    starts: list[Start] = []
    waits: list[Wait] = []
    for job in waiting:
        profile, job_class = snapshot.profiles[job], training_jobs.waiting[job]
        place = None if running or starts else _all_gpus(profile, job_class, snapshot, speeds)
        if place:
            here = gpus_by_node(place)
            gpus = sum(here.values())
            ends_s = end_s + profile.run_time_s(speeds.layout_of(place))
            starts.append(
                Start(job=job, job_class=job_class, allocation=place, why="first in order")
            )
        else:
            start_s, gpus = _next_start(profile, end_s, timeline, speeds)
            ends_s = start_s + speeds.run_time_s(profile, gpus)
            waits.append(Wait(job_class=job_class, first=job, reason=_reason(running or starts)))
        verdicts.append(_verdict(profile, ends_s, gpus, firm=firm))
        if ends_s < math.inf:  # nobody waits for a training that can never start
            end_s = ends_s
    return Plan(starts=tuple(starts), waits=tuple(waits), verdicts=tuple(verdicts))


def _next_start(
    profile: TrainingProfile, from_s: float, timeline: Timeline, speeds: Speeds
) -> tuple[float, int]:
    """Return when a training can start at the earliest, and the most GPUs it can have then.

    Where other jobs never give enough GPUs back, that is at an infinite time, on none.
    """
    steps = list(zip(timeline.starts_s, timeline.free, strict=True))
    for index, (begin_s, free) in enumerate(steps):
        if index + 1 < len(steps) and steps[index + 1][0] <= from_s:
            continue
        gpus = _most_of(profile, free, speeds)
        if gpus:
            return max(begin_s, from_s), gpus
    return math.inf, 0


def _most_of(profile: TrainingProfile, free: int, speeds: Speeds) -> int:
    """Return the largest number of so many free GPUs on which a training can run; 0: none."""
    most = speeds.most(profile)
    if most <= free:
        return most
    fitting = (gpus for gpus in reversed(profile.gpus) if gpus <= free)
    return next((gpus for gpus in fitting if speeds.run_time_s(profile, gpus) < math.inf), 0)


def _all_gpus(
    profile: TrainingProfile, job_class: JobClass, snapshot: Snapshot, speeds: Speeds
) -> Allocation | None:
    """Return as many of the free GPUs as a training can use, the fullest nodes first."""
    spaces = Spaces(snapshot.nodes)
    free = sorted(
        free_gpus(job_class.request, spaces).items(), key=lambda item: (-item[1], item[0])
    )
    most = min(sum(count for _, count in free), speeds.most(profile))
    for gpus in reversed(profile.gpus):
        if gpus > most or not speeds.run_time_s(profile, gpus) < math.inf:
            continue
        place = allocate_on(job_class.request, spaces, _poured(free, gpus))
        if place:
            return place
    return None


def _poured(free: Iterable[tuple[str, int]], gpus: int) -> dict[str, int]:
    """Return so many GPUs, as many as there are of one node after the other."""
    counts: dict[str, int] = {}
    for name, count in free:
        if gpus:
            counts[name] = min(count, gpus)
            gpus -= counts[name]
    return counts


def _reason(before: object) -> str:
    return "one training runs at a time" if before else "other jobs hold too many of the GPUs"


def _verdict(profile: TrainingProfile, end_s: float, gpus: int, *, firm: bool) -> Forecast:
    meets = profile.deadline_s is None or end_s <= profile.deadline_s
    return Forecast(
        job=profile.job,
        meets=meets,
        end_s=end_s if end_s < math.inf else None,
        gpus=gpus,
        why="" if meets else "jobs ahead of it in the queue",
        firm=firm,
    )
