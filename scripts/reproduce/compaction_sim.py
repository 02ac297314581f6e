"""The case of `compaction_case` in simulated time: the head's own core and policies."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from baselines.registry import ALL
from gsched.model.resources import Allocation
from gsched.model.training import Training
from gschedd.plan.snapshot import Plan, Policy, Snapshot
from gschedd.sim.cluster import read_cluster
from gschedd.sim.recorder import JobResult
from gschedd.sim.simulation import Options, Simulation
from gschedd.sim.workload import TraceJob
from scripts.reproduce.compaction_case import (
    BATCH,
    CPUS,
    GPUS,
    NODES,
    PARAMETERS,
    PARTS,
    STEP_TIME_S,
    Part,
    Step,
    Told,
)

#: From the order to move a training to its first further step, where no live run has measured it.
MOVE_S: Final = 15.0
#: When the late ones come, where no live run says so.
LATE_AT_S: Final = 20.0


class Costs(Struct, frozen=True, kw_only=True):
    """What a live run has measured, or what is taken to be so without one.

    Attributes:
        move_s: from the order to move a training to its first further step, seconds.
        step_s: of a training's steps, seconds, by its name; `STEP_TIME_S` where it is missing.
        startup_s: from a training's start to its first step, seconds, by its name; else none.
        submitted_s: when jobs were submitted, seconds after the first, by name.
    """

    move_s: float = MOVE_S
    step_s: Mapping[str, float] = MappingProxyType({})
    startup_s: Mapping[str, float] = MappingProxyType({})
    submitted_s: Mapping[str, float] = MappingProxyType({})


class Decisions:
    """A policy that is asked as ever; what it decides is kept.

    Args:
        policy: that decides.
        names: of the jobs, by number.
    """

    def __init__(self, policy: Policy, names: Mapping[int, str]) -> None:
        self.steps: list[Step] = []
        self._policy = policy
        self._names = names
        self._places: dict[int, tuple[str, ...]] = {}

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the policy's plan."""
        plan = self._policy(snapshot)
        for move in plan.moves:
            self._note(move.job, move.allocation, moved_from=self._places[move.job])
        for start in plan.starts:
            self._note(start.job, start.allocation)
        return plan

    def _note(self, job: int, to: Allocation, moved_from: tuple[str, ...] = ()) -> None:
        nodes = self._places[job] = tuple(sorted(share.node for share in to))
        self.steps.append(Step(job=self._names[job], nodes=nodes, moved_from=moved_from))


def simulate(policy: str, costs: Costs | None = None, parts: Sequence[Part] = PARTS) -> Told:
    """Run the case under a policy.

    Raises:
        RuntimeError: not all jobs ended well, or a plan was refused.
    """
    costs = costs or Costs()
    jobs = _trace(costs, parts)
    names = {number: job.name for number, job in enumerate(jobs, 1)}
    decisions = Decisions(ALL.choose(policy).plan, names)
    results: dict[str, JobResult] = {}

    def keep(result: JobResult) -> None:
        results[result.name] = result

    simulation = Simulation(
        read_cluster(f"{len(NODES)}xcpus={CPUS},gpus={GPUS}"),
        jobs,
        decisions,
        options=Options(plans_training=True, move_s=costs.move_s),
        on_result=keep,
    )
    simulation.run()
    found = simulation.summary(policy)
    if found.outcomes != {"exited": len(jobs)} or found.oddities:
        raise RuntimeError(
            f"{policy}: {found.outcomes}, refused {found.refused}, oddities {found.oddities}, "
            f"last failure {simulation.head.policy_failure!r}"
        )
    moves = {step.job for step in decisions.steps if step.moved_from}
    return Told(
        policy=policy,
        steps=decisions.steps,
        submitted_s={job.name: job.submit_s for job in jobs},
        started_s={
            name: each.start_s for name, each in results.items() if each.start_s is not None
        },
        ended_s={name: each.end_s for name, each in results.items()},
        deadline_s={
            job.name: job.submit_s + job.deadline_s for job in jobs if job.deadline_s is not None
        },
        move_s=dict.fromkeys(sorted(moves), costs.move_s),
        lost_s=dict.fromkeys(sorted(moves), costs.move_s),
        step_s={part.name: _step_s(part, costs) for part in parts if part.deadline_s},
        startup_s=dict(costs.startup_s),
    )


def _trace(costs: Costs, parts: Sequence[Part]) -> Sequence[TraceJob]:
    """Return the jobs in order of submission: those that come at once as they stand in the case."""
    jobs: list[TraceJob] = []
    for part in parts:
        usual_s = LATE_AT_S if part.submit_s is None else part.submit_s
        submit_s = costs.submitted_s.get(part.name, usual_s)
        training = None
        if part.deadline_s is not None:
            training = Training(
                parameters=PARAMETERS,
                samples=part.samples,
                batch=BATCH,
                epochs=1,
                step_time_s=_step_s(part, costs),
            )
        jobs.append(
            TraceJob(
                submit_s=submit_s,
                duration_s=part.work_s,
                name=part.name,
                gpus=part.gpus,
                resources=part.resources,
                deadline_s=part.deadline_s,
                training=training,
                startup_s=costs.startup_s.get(part.name, 0.0),
            )
        )
    return sorted(jobs, key=lambda job: job.submit_s)


def _step_s(part: Part, costs: Costs) -> float:
    return costs.step_s.get(part.name, STEP_TIME_S)
