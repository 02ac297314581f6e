"""Earliest deadline first, in two ways that are compared with in the literature.

`plan`: the whole cluster to one training at a time, and nothing is interrupted. Source: a baseline
of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149.

`plan_scaled`: in order of deadlines each training has as many GPUs as it can run on, although fewer
may be as fast, or as many as are left; whoever has an earlier deadline takes them from the others.
Source: a baseline of Gu et al., "ElasticFlow", ASPLOS 2023.

Trainings without a deadline come last, in order of arrival.
"""

from typing import Final

from gschedd.allocation.changes import Speeds, carry_out, profile_for
from gschedd.allocation.running import Trainings
from gschedd.allocation.shares import Claim, claim
from gschedd.plan.snapshot import DeadlineForecast, Plan, Snapshot
from gschedd.plan.training import TrainingProfile, gpu_count
from gschedd.policies.kit.whole import plan_one_at_a_time

#: Of so many that have to wait the ends are foretold; those behind them are said to be late.
MAX_FORETOLD: Final = 50


def plan(snapshot: Snapshot) -> Plan:
    """Start the training with the earliest deadline on all GPUs, when no other one runs."""
    return plan_one_at_a_time(snapshot, _by_deadline, firm=False)


def plan_scaled(snapshot: Snapshot) -> Plan:
    """Give each training, by deadline, as many GPUs as it can run on of those that are left."""
    trainings, speeds = Trainings.of(snapshot), Speeds(snapshot)
    profile = profile_for(snapshot, trainings.others)
    goals = snapshot.goals
    for job, running in trainings.fixed.items():
        gpus = gpu_count(running.allocation)
        profile.take(gpus, until_s=snapshot.now_s + speeds.run_time_s(goals[job], gpus))
    numbers: dict[int, int] = {}
    verdicts: list[DeadlineForecast] = []
    jobs = [*trainings.movable, *trainings.waiting]
    foretold = 0
    for job in sorted(jobs, key=lambda job: _by_deadline(goals[job])):
        if foretold == MAX_FORETOLD and profile.free[0] < 1:
            verdicts.append(_too_many(job))
            continue
        goal = goals[job]
        sizes = speeds.sizes(goal)
        taken = claim(profile, sizes, len(sizes.gpus) - 1, goal.work, goal.startup_s)
        numbers[job] = taken.gpus
        foretold += not taken.gpus
        verdicts.append(_verdict(goal, taken))
    changes = carry_out(snapshot, trainings, numbers, {})
    return Plan(
        starts=changes.starts,
        waits=changes.waits,
        moves=changes.moves,
        verdicts=tuple(verdicts),
    )


def _verdict(goal: TrainingProfile, taken: Claim) -> DeadlineForecast:
    meets = goal.deadline_s is None or taken.end_s <= goal.deadline_s
    return DeadlineForecast(
        job=goal.job,
        meets=meets,
        end_s=taken.end_s if taken.end_s < float("inf") else None,
        gpus=taken.gpus,
        why="" if meets else "others have earlier deadlines",
        firm=False,
    )


def _too_many(job: int) -> DeadlineForecast:
    return DeadlineForecast(job=job, meets=False, why="too many have earlier deadlines", firm=False)


def _by_deadline(goal: TrainingProfile) -> tuple[float, ...]:
    deadline_s = float("inf") if goal.deadline_s is None else goal.deadline_s
    return (deadline_s, goal.arrived_s, goal.job)
