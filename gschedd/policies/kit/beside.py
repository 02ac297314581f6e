"""Two policies on one cluster: one for trainings with deadlines, one for all other jobs.

Both see the same snapshot; what the first plans, the second finds taken. So the others use what
trainings leave, and what they are given is checked first against the deadlines that can be met. A
share of the nodes keeps them from waiting for ever.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct, structs

from gsched.model.resources import Share
from gschedd.plan.snapshot import Group, Plan, Policy, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import NodeSpace, Spaces, kept_back

#: Starts of other jobs on GPUs that are checked against the deadlines, and made, in one cycle.
MAX_CHECKED: Final = 16

NEXT: Final = f"{MAX_CHECKED} others start beside the trainings first; it is looked at next"


class Fairness(Struct, frozen=True, kw_only=True):
    """How trainings with deadlines and all other jobs share a cluster.

    Attributes:
        share: of the nodes with GPUs that take work, on which no training with a deadline is
            started while other jobs wait for GPUs: 0 to below 1.
    """

    share: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError where that is no share."""
        if not 0 <= self.share < 1:
            raise ValueError(f"a share of {self.share} is not from 0 to below 1")


def beside(goals: Policy, rest: Policy, fairness: Fairness | None = None) -> Policy:
    """Return a policy that plans trainings by one policy and all other jobs by another."""
    chosen = fairness or Fairness()
    return lambda snapshot: _plan(snapshot, goals, rest, chosen)


def _plan(snapshot: Snapshot, goals: Policy, rest: Policy, fairness: Fairness) -> Plan:
    if not snapshot.goals:
        return rest(snapshot)
    trainings = [group for group in snapshot.groups if group.shape.goal in snapshot.goals]
    others = [group for group in snapshot.groups if group.shape.goal not in snapshot.goals]
    open_to_trainings = _without(snapshot, _kept_for_others(snapshot, others, fairness))
    theirs = structs.replace(snapshot, groups=trainings, nodes=open_to_trainings)
    first = goals(theirs)
    if not others:
        return first
    second = _harmless(theirs, goals, first, rest(_after(snapshot, others, first)))
    return structs.replace(
        first,
        starts=(*first.starts, *second.starts),
        waits=(*first.waits, *second.waits),
        again_s=_earlier(first.again_s, second.again_s),
    )


def _earlier(one_s: float | None, other_s: float | None) -> float | None:
    return min((each for each in (one_s, other_s) if each is not None), default=None)


def _kept_for_others(
    snapshot: Snapshot, others: Iterable[Group], fairness: Fairness
) -> frozenset[str]:
    """Return the nodes on which trainings start nothing while others wait for GPUs: the last.

    Of those that take work: a share that lies on drained nodes would be none.
    """
    if not fairness.share or not any(group.shape.request.gpus for group in others):
        return frozenset()
    nodes = snapshot.nodes
    names = sorted(name for name, space in nodes.items() if space.open and space.total_gpus)
    return frozenset(names[len(names) - int(len(names) * fairness.share) :])


def _without(snapshot: Snapshot, closed: frozenset[str]) -> Mapping[str, NodeSpace]:
    if not closed:
        return snapshot.nodes
    return {
        name: structs.replace(space, open=False) if name in closed else space
        for name, space in snapshot.nodes.items()
    }


def _after(snapshot: Snapshot, others: list[Group], plan: Plan) -> Snapshot:
    """Return what is left when a plan is carried out, for the other jobs."""
    spaces = Spaces(snapshot.nodes)
    running = {each.job: each for each in snapshot.running}
    coming: dict[str, list[Share]] = {}
    leaving: dict[str, list[Share]] = {}
    for move in plan.moves:
        for share in move.allocation:
            coming.setdefault(share.node, []).append(share)
        for share in running[move.job].allocation:
            leaving.setdefault(share.node, []).append(share)
    for node, shares in coming.items():
        spaces.put(kept_back(spaces[node], leaving.get(node, ()), shares))
    for start in plan.starts:
        spaces.take(start.allocation)
    nodes = {space.name: space for space in spaces}
    return structs.replace(snapshot, groups=others, nodes=nodes)


def _takes_gpus(start: Start) -> bool:
    return any(share.gpu_indices for share in start.allocation)


def _harmless(theirs: Snapshot, goals: Policy, first: Plan, second: Plan) -> Plan:
    """Return the plan for the other jobs without what would make a training late.

    The trainings are planned anew as if each of its starts that takes GPUs had been made already:
    one after the other, until `MAX_CHECKED` are made; the rest waits for the next cycle, which is
    asked for, as nothing else need happen before something ends.

    Args:
        theirs: what the policy for trainings saw.
        first: what it planned.
    """
    promised = {verdict.job for verdict in first.verdicts if verdict.meets}
    starts: list[Start] = []
    given: list[Start] = []
    waits = list(second.waits)
    again_s = second.again_s
    for start in second.starts:
        if promised and _takes_gpus(start):
            if len(given) == MAX_CHECKED:
                waits.append(Wait(shape=start.shape, first=start.job, reason=NEXT))
                again_s = theirs.now_s
                continue
            late = _late(theirs, goals, promised, [*given, start])
            if late:
                reason = f"would make job {late} miss its deadline"
                waits.append(Wait(shape=start.shape, first=start.job, reason=reason))
                continue
            given.append(start)
        starts.append(start)
    told = {wait.shape: wait for wait in reversed(waits)}
    return structs.replace(
        second, starts=tuple(starts), waits=tuple(told.values()), again_s=again_s
    )


def _late(theirs: Snapshot, goals: Policy, promised: Collection[int], given: list[Start]) -> int:
    """Return a training that would be late, of those that are not, or 0 if there is none."""
    spaces = Spaces(theirs.nodes)
    for start in given:
        spaces.take(start.allocation)
    running = [_started(start, theirs.now_s) for start in given]
    then = goals(
        structs.replace(
            theirs,
            nodes={space.name: space for space in spaces},
            running=[*theirs.running, *running],
        )
    )
    in_time = {verdict.job for verdict in then.verdicts if verdict.meets}
    return min((job for job in promised if job not in in_time), default=0)


def _started(start: Start, now_s: float) -> RunningJob:
    walltime_s = start.shape.walltime_s
    return RunningJob(
        job=start.job,
        allocation=start.allocation,
        started_s=now_s,
        end_s=None if walltime_s is None else now_s + walltime_s,
    )
