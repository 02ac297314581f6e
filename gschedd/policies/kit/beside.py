"""Two policies on one cluster: one for trainings with deadlines, one for all other jobs.

Both see the same snapshot; what the first plans, the second finds taken. So the others use what
trainings leave, and what they are given is checked first against the deadlines that can be met. A
share of the nodes keeps them from waiting for ever.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from gsched.model.resources import Share
from gschedd.plan.snapshot import Group, Plan, Policy, RunningJob, Snapshot, Start
from gschedd.plan.space import NodeSpace, Spaces, kept_back


class Fairness(Struct, frozen=True, kw_only=True):
    """How trainings with deadlines and all other jobs share a cluster.

    Attributes:
        share: of the nodes with GPUs, on which no training with a deadline is started while other
            jobs wait for GPUs: 0 to below 1.
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
    trainings = [group for group in snapshot.groups if group.shape.goal in snapshot.goals]
    others = [group for group in snapshot.groups if group.shape.goal not in snapshot.goals]
    if not snapshot.goals:
        return rest(snapshot)
    closed = _kept_for_others(snapshot, others, fairness)
    first = goals(structs.replace(snapshot, groups=trainings, nodes=_without(snapshot, closed)))
    if not others:
        return first
    second = rest(_after(snapshot, others, first))
    harmed = _harmed(snapshot, goals, trainings, first, second, closed)
    if harmed:
        kept = tuple(start for start in second.starts if not _takes_gpus(start))
        second = structs.replace(second, starts=kept)
    return structs.replace(
        first, starts=(*first.starts, *second.starts), waits=(*first.waits, *second.waits)
    )


def _kept_for_others(
    snapshot: Snapshot, others: Iterable[Group], fairness: Fairness
) -> frozenset[str]:
    """Return the nodes on which trainings start nothing while others wait for GPUs: the last."""
    if not fairness.share or not any(group.shape.request.gpus for group in others):
        return frozenset()
    names = sorted(name for name, space in snapshot.nodes.items() if space.total_gpus)
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


def _harmed(
    snapshot: Snapshot,
    goals: Policy,
    trainings: list[Group],
    first: Plan,
    second: Plan,
    closed: frozenset[str],
) -> bool:
    """Return whether what the others are given would make a training late that is not late now.

    The trainings are planned anew as if it had been given already.
    """
    given = [start for start in second.starts if _takes_gpus(start)]
    if not given:
        return False
    spaces = Spaces(_without(snapshot, closed))
    for start in given:
        spaces.take(start.allocation)
    running = [
        RunningJob(
            job=start.job,
            allocation=start.allocation,
            started_s=snapshot.now_s,
            end_s=(
                None if start.shape.walltime_s is None else snapshot.now_s + start.shape.walltime_s
            ),
        )
        for start in given
    ]
    then = goals(
        structs.replace(
            snapshot,
            groups=trainings,
            nodes={space.name: space for space in spaces},
            running=[*snapshot.running, *running],
        )
    )
    meets = {verdict.job for verdict in then.verdicts if verdict.meets}
    return any(verdict.meets and verdict.job not in meets for verdict in first.verdicts)
