"""What each training needs to be in time, and which GPUs there are for all of them."""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

from gsched.config.policies import DeadlineConfig
from gschedd.allocation.changes import Speeds, timeline_for
from gschedd.allocation.fluid import Grid, Need, steps_for
from gschedd.allocation.running import TrainingJobs, on_open_nodes, open_gpus_of
from gschedd.allocation.shares import Levels
from gschedd.plan.snapshot import RunningJob, Snapshot
from gschedd.plan.training import TrainingProfile, gpu_count

#: No training has less of its work left than this part: what is all but done holds what it has.
ALMOST_DONE: Final = 1e-9

#: Who needs less than this needs next to nothing, however long it has been there; GPU seconds.
LEAST_GPU_S: Final = 1.0
#: For so many training jobs the plan ahead has as many steps as it may.
FEW: Final = 100


class Candidate(Struct, frozen=True, kw_only=True):
    """A training that can be in time if it gets what it needs.

    Attributes:
        gpu_s: GPU time that it needs at least, seconds.
        whole_gpu_s: what it would need now for all of its work.
        guaranteed: its deadline was guaranteed.
    """

    need: Need
    gpu_s: float
    whole_gpu_s: float
    guaranteed: bool


class Needs(Struct, frozen=True, kw_only=True):
    """All training jobs that are decided about, sorted by what can be done.

    Attributes:
        candidates: in the order in which they are kept: guaranteed ones, then who needs least.
        late: jobs that cannot be in time, or have no deadline, in the order in which they run.
        levels: numbers of GPUs that each of them all may have, by job.
        has: GPUs that those that run have, by job.
        held: jobs that start or move just now, or cannot migrate for the moment: they keep what
            they have, and may have other GPUs later.
    """

    candidates: tuple[Candidate, ...]
    late: tuple[int, ...]
    levels: Mapping[int, Levels]
    has: Mapping[int, int]
    held: frozenset[int]


def needs_of(snapshot: Snapshot, training_jobs: TrainingJobs, speeds: Speeds) -> Needs:
    """Return what the training jobs need that wait or can be moved."""
    candidates: list[Candidate] = []
    late: list[int] = []
    levels: dict[int, Levels] = {}
    has: dict[int, int] = {}
    held = {job: each for job, each in training_jobs.fixed.items() if _is_held(snapshot, each)}
    for job in [*training_jobs.movable, *held, *training_jobs.waiting]:
        profile = snapshot.profiles[job]
        running = training_jobs.movable.get(job) or held.get(job)
        has[job] = gpu_count(running.allocation) if running else 0
        levels[job] = _levels(profile, running, speeds)
        need = _need(profile, levels[job], running, snapshot.now_s)
        if need is not None and job in held:
            rate = 0.0 if held[job].leaving else _rate(profile, held[job], speeds)
            need = structs.replace(need, held=True, held_rate=rate)
        candidate = None if need is None else _candidate(profile, need, snapshot.now_s)
        if candidate is not None:
            candidates.append(candidate)
        elif job not in held:
            late.append(job)
    candidates.sort(key=lambda each: (not each.guaranteed, each.gpu_s, each.need.job))
    late.sort(key=lambda job: (-_waited(snapshot.profiles[job], levels[job], snapshot.now_s), job))
    return Needs(
        candidates=tuple(candidates), late=tuple(late), levels=levels, has=has, held=frozenset(held)
    )


def _waited(profile: TrainingProfile, levels: Levels, now_s: float) -> float:
    """Return how long a training has been there for each GPU second that it still needs.

    Who needs little soon goes first, and who has been there for long in the end: nobody starves.

    Source:
        The highest response ratio next of Brinch Hansen, Operating System Principles, 1973.
    """
    if not levels.rates or levels.rates[0] <= 0:
        return 0.0
    need_gpu_s = profile.work / levels.rates[0] * levels.gpus[0]
    return (now_s - profile.arrived_s) / max(need_gpu_s, LEAST_GPU_S)


def _is_held(snapshot: Snapshot, running: RunningJob) -> bool:
    """Return whether one that keeps what it has now may be given other GPUs later."""
    profile = snapshot.profiles[running.job]
    if not (profile.movable or profile.movable_later):
        return False
    return running.leaving or on_open_nodes(snapshot, running.allocation)


def _levels(profile: TrainingProfile, running: RunningJob | None, speeds: Speeds) -> Levels:
    """Return the levels of a training; where it runs, as fast as it is on what it has."""
    levels = speeds.levels(profile)
    if running is None:
        return levels
    gpus = gpu_count(running.allocation)
    if gpus not in levels.gpus:
        return levels
    rate = _rate(profile, running, speeds)
    index = levels.gpus.index(gpus)
    if rate <= 0 or rate == levels.rates[index]:
        return levels
    return structs.replace(levels, rates=(*levels.rates[:index], rate, *levels.rates[index + 1 :]))


def _rate(profile: TrainingProfile, running: RunningJob, speeds: Speeds) -> float:
    """Return the work a second that a training does where it is; 0 without any GPU."""
    if not gpu_count(running.allocation):
        return 0.0
    return profile.speed.rate(speeds.layout_of(running.allocation))


def _need(
    profile: TrainingProfile, levels: Levels, running: RunningJob | None, now_s: float
) -> Need | None:
    if profile.deadline_s is None or not levels.gpus:
        return None
    has = 0 if running is None else gpu_count(running.allocation)
    return Need(
        job=profile.job,
        deadline_s=profile.deadline_s,
        work=max(profile.work, profile.total_work * ALMOST_DONE),
        levels=levels,
        has=has,
        move_s=profile.move_s,
        startup_s=_startup_s(profile, running, now_s),
        begun=has > 0 or profile.work < profile.total_work,
        rigid=not (profile.movable or profile.movable_later),
    )


def _startup_s(profile: TrainingProfile, running: RunningJob | None, now_s: float) -> float:
    """Return how long a training does no step from now on, if it starts or runs; seconds.

    One that has been stopped before takes the time of a migration until its first step.
    """
    if running is None or profile.work >= profile.total_work or running.leaving:
        return profile.startup_s
    begun_s = now_s if running.starting else running.started_s
    return max(profile.startup_s, begun_s + profile.move_s - now_s)


def _candidate(profile: TrainingProfile, need: Need, now_s: float) -> Candidate | None:
    least_gpu_s = math.inf
    for index, gpus in enumerate(need.levels.gpus):
        takes_s = need.alone_s(index)
        if now_s + takes_s <= need.deadline_s:
            least_gpu_s = min(least_gpu_s, gpus * takes_s)
    if least_gpu_s == math.inf:
        return None
    return Candidate(
        need=need,
        gpu_s=least_gpu_s,
        whole_gpu_s=least_gpu_s * max(profile.total_work, need.work) / need.work,
        guaranteed=profile.guaranteed is True,
    )


def grid_for(
    snapshot: Snapshot,
    training_jobs: TrainingJobs,
    speeds: Speeds,
    needs: Needs,
    settings: DeadlineConfig,
) -> Grid:
    """Return the GPUs that training jobs may have that wait or can be moved, over time."""
    now_s = snapshot.now_s
    timeline = timeline_for(snapshot, training_jobs.others)
    for job, running in training_jobs.fixed.items():
        if job in needs.held:
            continue
        ends_in_s = speeds.run_time_s(snapshot.profiles[job], gpu_count(running.allocation))
        timeline.take(open_gpus_of(snapshot, running.allocation), until_s=now_s + ends_in_s)
    free = sum(len(space.gpus) for space in snapshot.nodes.values() if space.open)
    free += sum(needs.has[job] for job in training_jobs.movable)
    times_s = [each.need.deadline_s for each in needs.candidates]
    times_s += [now_s + settings.reserve_after_s] if times_s else []
    return Grid.of(timeline, steps_for(now_s, times_s, _steps(len(times_s), settings)), free)


def _steps(training_jobs: int, settings: DeadlineConfig) -> int:
    """Return how many steps the plan ahead has: fewer where it is for many training jobs."""
    return max(
        settings.steps_min,
        min(settings.steps_max, settings.steps_max * FEW // (training_jobs or 1)),
    )
