"""Rounds of policies for adaptive jobs: when one is, and about which jobs it decides."""

import math
from typing import Final

from gschedd.allocation.adaptive.candidates import AdaptiveJob
from gschedd.allocation.running import TrainingJobs
from gschedd.plan.snapshot import Snapshot

#: A decision that is late by this part of a round at most is the round's.
LATE: Final = 0.05


def is_round(snapshot: Snapshot, round_s: float) -> bool:
    """Return whether running jobs are decided about.

    That is at multiples of a round, or a little later; and when moves of the round had to wait for
    others, and one of these is over.
    """
    now_s = snapshot.now_s
    return snapshot.moves_left or now_s - _begin_s(now_s, round_s) <= LATE * round_s


def next_round_s(now_s: float, round_s: float) -> float:
    """Return when the next round begins, seconds since the epoch."""
    return _begin_s(now_s, round_s) + round_s


def _begin_s(now_s: float, round_s: float) -> float:
    """Return when the present round began, seconds since the epoch."""
    return math.floor(now_s / round_s) * round_s


def adaptive_jobs(snapshot: Snapshot, round_s: float) -> list[AdaptiveJob]:
    """Return the adaptive jobs about which is decided now.

    They are those that wait and, in a round, those that may be migrated and ran when it began. A
    job that has started since keeps its GPUs until the next round: otherwise two jobs could take
    them from each other in each cycle of a round, and none would ever do a step.
    """
    begin_s = _begin_s(snapshot.now_s, round_s)
    training_jobs = TrainingJobs.of(snapshot)
    jobs: list[AdaptiveJob] = []
    for number, job_class in training_jobs.waiting.items():
        profile = snapshot.profiles[number]
        if profile.adaptive is not None:
            jobs.append(
                AdaptiveJob(
                    job=number,
                    profile=profile.adaptive,
                    request=job_class.request,
                    must_run=profile.guaranteed is True,
                )
            )
    for number, running in training_jobs.movable.items() if is_round(snapshot, round_s) else ():
        profile = snapshot.profiles[number]
        if running.started_s >= begin_s:
            continue
        if profile.adaptive is not None and profile.request is not None:
            jobs.append(
                AdaptiveJob(
                    job=number,
                    profile=profile.adaptive,
                    request=profile.request,
                    allocation=running.allocation,
                    must_run=profile.guaranteed is True,
                )
            )
    return sorted(jobs, key=lambda each: each.job)
