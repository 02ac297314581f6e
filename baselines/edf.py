"""Earliest deadline first, in two ways that are compared with in the literature.

`plan`: the whole cluster to one training at a time, and nothing is interrupted. Source: a baseline
of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149.

`plan_scaled`: in order of deadlines each training has as many GPUs as it can run on, although fewer
may be as fast, or as many as are left; whoever has an earlier deadline takes them from the others.
Source: a baseline of Gu et al., "ElasticFlow", ASPLOS 2023.

Training jobs without a deadline come last, in order of arrival.
"""

from typing import Final

from baselines.kit.whole import plan_one_at_a_time
from gschedd.allocation.changes import Speeds, carry_out, timeline_for
from gschedd.allocation.running import TrainingJobs
from gschedd.allocation.shares import MinimumShare, claim
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import TrainingProfile, gpu_count

#: Of so many that have to wait the ends are predicted; those behind them are said to be late.
MAX_PREDICTED: Final = 50


def plan(snapshot: Snapshot) -> Plan:
    """Start the training with the earliest deadline on all GPUs, when no other one runs."""
    return plan_one_at_a_time(snapshot, _by_deadline, firm=False)


def plan_scaled(snapshot: Snapshot) -> Plan:
    """Give each training, by deadline, as many GPUs as it can run on of those that are left."""
    training_jobs, speeds = TrainingJobs.of(snapshot), Speeds(snapshot)
    timeline = timeline_for(snapshot, training_jobs.others)
    profiles = snapshot.profiles
    for job, running in training_jobs.fixed.items():
        gpus = gpu_count(running.allocation)
        timeline.take(gpus, until_s=snapshot.now_s + speeds.run_time_s(profiles[job], gpus))
    numbers: dict[int, int] = {}
    verdicts: list[Forecast] = []
    jobs = [*training_jobs.movable, *training_jobs.waiting]
    predicted = 0
    for job in sorted(jobs, key=lambda job: _by_deadline(profiles[job])):
        if predicted == MAX_PREDICTED and timeline.free[0] < 1:
            verdicts.append(_too_many(job))
            continue
        profile = profiles[job]
        sizes = speeds.sizes(profile)
        taken = claim(timeline, sizes, len(sizes.gpus) - 1, profile.work, profile.startup_s)
        numbers[job] = taken.gpus
        predicted += not taken.gpus
        verdicts.append(_verdict(profile, taken))
    changes = carry_out(snapshot, training_jobs, numbers, {})
    return Plan(
        starts=changes.starts,
        waits=changes.waits,
        moves=changes.moves,
        verdicts=tuple(verdicts),
    )


def _verdict(profile: TrainingProfile, taken: MinimumShare) -> Forecast:
    meets = profile.deadline_s is None or taken.end_s <= profile.deadline_s
    return Forecast(
        job=profile.job,
        meets=meets,
        end_s=taken.end_s if taken.end_s < float("inf") else None,
        gpus=taken.gpus,
        why="" if meets else "others have earlier deadlines",
        firm=False,
    )


def _too_many(job: int) -> Forecast:
    return Forecast(job=job, meets=False, why="too many have earlier deadlines", firm=False)


def _by_deadline(profile: TrainingProfile) -> tuple[float, ...]:
    deadline_s = float("inf") if profile.deadline_s is None else profile.deadline_s
    return (deadline_s, profile.arrived_s, profile.job)
