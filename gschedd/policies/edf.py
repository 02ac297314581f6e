"""Earliest deadline first, in two ways that are compared with in the literature.

`plan`: the whole cluster to one training at a time, and nothing is interrupted. Source: a baseline
of Fu Maozhong et al., doi 10.7544/issn1000-1239.202220149.

`plan_scaled`: in order of deadlines each training has as many GPUs as it can run on, although fewer
may be as fast, or as many as are left; whoever has an earlier deadline takes them from the others.
Source: a baseline of Gu et al., "ElasticFlow", ASPLOS 2023.

Trainings without a deadline come last, in order of arrival.
"""

from gschedd.plan.snapshot import Plan, Snapshot, Verdict
from gschedd.plan.training import Goal
from gschedd.policies.kit.changes import Speeds, Trainings, carry_out, gpus_of, profile_for
from gschedd.policies.kit.shares import claim
from gschedd.policies.kit.whole import plan_one_at_a_time


def plan(snapshot: Snapshot) -> Plan:
    """Start the training with the earliest deadline on all GPUs, when no other one runs."""
    return plan_one_at_a_time(snapshot, _by_deadline)


def plan_scaled(snapshot: Snapshot) -> Plan:
    """Give each training, by deadline, as many GPUs as it can run on of those that are left."""
    trainings, speeds = Trainings.of(snapshot), Speeds(snapshot)
    profile = profile_for(snapshot, trainings.others)
    goals = snapshot.goals
    for job, running in trainings.fixed.items():
        gpus = gpus_of(running.allocation)
        profile.take(gpus, until_s=snapshot.now_s + speeds.run_time_s(goals[job], gpus))
    numbers: dict[int, int] = {}
    verdicts: list[Verdict] = []
    jobs = [*trainings.movable, *trainings.waiting]
    for job in sorted(jobs, key=lambda job: _by_deadline(goals[job])):
        goal = goals[job]
        sizes = speeds.sizes(goal)
        taken = claim(profile, sizes, len(sizes.gpus) - 1, goal.work)
        numbers[job] = taken.gpus
        meets = goal.deadline_s is None or taken.end_s <= goal.deadline_s
        known = taken.end_s if taken.end_s < float("inf") else None
        why = "" if meets else "others have earlier deadlines"
        verdicts.append(Verdict(job=job, meets=meets, end_s=known, gpus=taken.gpus, why=why))
    changes = carry_out(snapshot, trainings, numbers, {})
    return Plan(
        starts=changes.starts,
        waits=changes.waits,
        moves=changes.moves,
        verdicts=tuple(verdicts),
    )


def _by_deadline(goal: Goal) -> tuple[float, ...]:
    deadline_s = float("inf") if goal.deadline_s is None else goal.deadline_s
    return (deadline_s, goal.arrived_s, goal.job)
