"""Two policies on one cluster: one for training jobs with deadlines, one for all other jobs.

Both see the same snapshot; what the first plans, the second finds taken. So the others use what
training jobs leave, and what they are given is checked first against the deadlines that can be met.
A share of the nodes keeps them from waiting for ever.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import Final

from msgspec import Struct, structs

from gsched.model.ids import short_job_id
from gsched.model.resources import Request, Share, percent_held
from gschedd.plan.amounts import amounts_there
from gschedd.plan.attainable import within_nodes
from gschedd.plan.limited_training import within_limits
from gschedd.plan.snapshot import Group, Plan, Policy, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import FreeNode, Spaces, kept_back
from gschedd.plan.validate import has_room
from gschedd.plan.windowed_training import outside_windows
from gschedd.plan.windows import Closed, without
from gschedd.plan.words import Reason

#: Starts of other jobs on GPUs that are checked against the deadlines, and made, in one cycle.
MAX_CHECKED: Final = 16

NEXT: Final = Reason(
    f"{MAX_CHECKED} other jobs beside the training jobs start first; this job is checked next",
    "checked next",
)


class Composed:
    """A policy that plans training jobs by one policy and all other jobs by another.

    It is called for all of it at once, or asked step by step, where the training policy runs
    elsewhere: `training_view`, then ``training`` there, `remaining`, then ``queue_policy``,
    `to_check`, then `check` there, `settled`.

    Attributes:
        training: plans the training jobs.
        limited: the same within the limits of users and queues and outside windows, with forecasts
            that nodes can keep.
        queue_policy: plans all other jobs.

    Args:
        share: of the nodes with GPUs that take work, on which no training with a deadline is
            started while other jobs wait for GPUs: 0 to below 1.
        adaptive_only: ``training`` plans adaptive training jobs only; ``queue_policy`` plans all
            others on the fewest GPUs that they request.
    """

    def __init__(
        self,
        training: Policy,
        queue_policy: Policy,
        *,
        share: float = 0.0,
        adaptive_only: bool = False,
    ) -> None:
        self.training = training
        self.limited: Policy = training
        for layer in (within_nodes, outside_windows, within_limits):
            self.limited = partial(layer, self.limited)
        self.queue_policy = queue_policy
        self._share = share
        self._adaptive_only = adaptive_only

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan for all jobs."""
        training_view = self.training_view(snapshot)
        if training_view is None:
            return self.queue_policy(snapshot)
        first = self.limited(training_view)
        others = [
            group
            for group in snapshot.groups
            if group.job_class.training not in training_view.profiles
        ]
        if not others:
            return first
        rest = remaining(snapshot, others, first)
        second = self.queue_policy(rest)
        requests = {group.job_class.request for group in training_view.groups}
        running = (profile.request for profile in training_view.profiles.values())
        claim = claim_of(requests.union(filter(None, running)))
        starts = to_check(first, second, rest, claim, training_view.profiles)
        late = check(self.limited, training_view, first, starts)
        return joined(first, settled(second, starts, late, now_s=snapshot.now_s))

    def training_view(self, snapshot: Snapshot) -> Snapshot | None:
        """Return what the policy for training jobs is shown; None where there are none."""
        profiles = {  # once: the head works each out when it is requested
            job: profile
            for job, profile in snapshot.profiles.items()
            if profile.adaptive is not None or not self._adaptive_only
        }
        if not profiles:
            return None
        training_jobs = [group for group in snapshot.groups if group.job_class.training in profiles]
        others = [group for group in snapshot.groups if group.job_class.training not in profiles]
        nodes = _without(snapshot, self.kept_for_others(snapshot, others))
        return structs.replace(snapshot, groups=training_jobs, nodes=nodes, profiles=profiles)

    def kept_for_others(self, snapshot: Snapshot, others: Iterable[Group]) -> frozenset[str]:
        """Return the last nodes: no training job starts there while others wait for GPUs.

        Of those that take work: a share that lies on drained nodes would be none.
        """
        share = self._share
        if not share or not any(group.job_class.request.takes_gpus for group in others):
            return frozenset()
        nodes = snapshot.nodes
        names = sorted(name for name, space in nodes.items() if space.open and space.total_gpus)
        return frozenset(names[len(names) - int(len(names) * share) :])


def joined(first: Plan, second: Plan) -> Plan:
    """Return the plan for training jobs and that for all other jobs as one."""
    return structs.replace(
        first,
        starts=(*first.starts, *second.starts),
        waits=(*first.waits, *second.waits),
        again_s=_earlier(first.again_s, second.again_s),
    )


def _earlier(one_s: float | None, other_s: float | None) -> float | None:
    return min((each for each in (one_s, other_s) if each is not None), default=None)


def _without(snapshot: Snapshot, closed: Collection[Closed]) -> Mapping[str, FreeNode]:
    if not closed:
        return snapshot.nodes
    return {space.name: space for space in without(Spaces(snapshot.nodes), closed)}


def remaining(snapshot: Snapshot, others: list[Group], plan: Plan) -> Snapshot:
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
    limits = None if snapshot.limits is None else snapshot.limits.copy()
    if limits is not None:
        for move in plan.moves:
            limits.move(move.job, move.allocation, snapshot.nodes)
        for start in plan.starts:
            counted = amounts_there(start.allocation, snapshot.nodes, start.job_class.walltime_s)
            limits.take(start.job_class.party, counted)
    return structs.replace(snapshot, groups=others, nodes=nodes, limits=limits, starts_max=None)


def _takes_gpus(start: Start) -> bool:
    return percent_held(start.allocation) > 0


def to_check(
    first: Plan,
    second: Plan,
    rest: Snapshot,
    claim: "PerGpuDemand",
    training_jobs: Container[int],
) -> tuple[Start, ...]:
    """Return the starts of other jobs that might make a training late that can be in time.

    These are all that take GPUs and, where such a training waits, those that leave too little of
    CPUs or memory beside the GPUs of a node.

    Args:
        first: the plan for the training jobs.
        second: the plan for the other jobs.
        rest: what the first plan leaves.
        claim: what training jobs ask for.
        training_jobs: all of them.
    """
    in_time = {verdict.job for verdict in first.verdicts if verdict.meets}
    if not in_time:
        return ()
    running = [*rest.running, *(_started(start, rest.now_s) for start in first.starts)]
    waiting = (rest.profiles.get(job) for job in in_time - {each.job for each in running})
    if all(profile is None or profile.deadline_s is None for profile in waiting):
        return tuple(start for start in second.starts if _takes_gpus(start))
    beside = starts_beside(
        structs.replace(rest, running=running),
        second,
        claim=claim,
        training_jobs=training_jobs,
        open_to_others=(),
    )
    spared = {start.job for start in beside}
    return tuple(start for start in second.starts if start.job not in spared)


def check(
    profiles: Policy,
    training_view: Snapshot,
    first: Plan,
    starts: Iterable[Start],
    may_go_on: Callable[[], bool] = lambda: True,
) -> dict[int, int]:
    """Return which training each of some starts of other jobs would make late; 0: none.

    The training jobs are planned anew as if each of these starts had been made already: one after
        the
    other, until `MAX_CHECKED` are made. The rest waits for the next cycle.

    Args:
        profiles: plans the training jobs.
        theirs: what it saw.
        first: what it planned.
        starts: in order.
        may_go_on: whether there is time for a further one; asked after each.
    """
    guaranteed = {verdict.job for verdict in first.verdicts if verdict.meets}
    given: list[Start] = []
    late: dict[int, int] = {}
    for start in starts:
        if len(given) == MAX_CHECKED or (late and not may_go_on()):
            break
        late[start.job] = _late(training_view, profiles, guaranteed, [*given, start])
        if not late[start.job]:
            given.append(start)
    return late


def settled(
    second: Plan, checked: Iterable[Start], late: Mapping[int, int], *, now_s: float
) -> Plan:
    """Return the plan for the other jobs without what would make a training late.

    What was not looked at waits for the next cycle, which is requested, as nothing else need happen
    before something ends.

    Args:
        second: what was planned.
        checked: those of its starts that `to_check` has named.
        late: what `check` has said of them; empty where nothing can be late.
        now_s: of the snapshot.
    """
    starts: list[Start] = []
    waits = list(second.waits)
    again_s = second.again_s
    doubtful = {start.job for start in checked}
    for start in second.starts:
        if late and start.job in doubtful:
            training = late.get(start.job)
            if training is None:
                waits.append(Wait(job_class=start.job_class, first=start.job, reason=NEXT))
                again_s = now_s
                continue
            if training:
                name = short_job_id(training)
                reason = Reason(
                    f"would make job {name} miss its deadline", f"would delay job {name}"
                )
                waits.append(Wait(job_class=start.job_class, first=start.job, reason=reason))
                continue
        starts.append(start)
    first_waits = {wait.job_class: wait for wait in reversed(waits)}
    return structs.replace(
        second, starts=tuple(starts), waits=tuple(first_waits.values()), again_s=again_s
    )


def _late(
    training_view: Snapshot, profiles: Policy, guaranteed: Collection[int], given: list[Start]
) -> int:
    """Return a training that would be late, of those that are not, or 0 if there is none."""
    spaces = Spaces(training_view.nodes)
    for start in given:
        spaces.take(start.allocation)
    running = [_started(start, training_view.now_s) for start in given]
    then = profiles(
        structs.replace(
            training_view,
            nodes={space.name: space for space in spaces},
            running=[*training_view.running, *running],
        )
    )
    in_time = {verdict.job for verdict in then.verdicts if verdict.meets}
    return min((job for job in guaranteed if job not in in_time), default=0)


def _started(start: Start, now_s: float) -> RunningJob:
    walltime_s = start.job_class.walltime_s
    return RunningJob(
        job=start.job,
        allocation=start.allocation,
        started_s=now_s,
        end_s=None if walltime_s is None else now_s + walltime_s,
    )


class PerGpuDemand(Struct, frozen=True, kw_only=True):
    """What training jobs may ask for beside each GPU; see `starts_beside`.

    Attributes:
        cpus, memory_bytes: the most that any of them asks for with one GPU.
        whole: some of them asks for whole nodes or for consumable resources.
    """

    cpus: float
    memory_bytes: float
    whole: bool


def claim_of(requests: Iterable[Request]) -> PerGpuDemand:
    """Return what training jobs with these requests may ask for."""
    cpus, memory_bytes, whole = 0.0, 0.0, False
    for request in requests:
        whole = whole or request.exclusive
        for chunk in request.chunks:
            if chunk.gpus:
                cpus = max(cpus, chunk.cpus / chunk.gpus)
                memory_bytes = max(memory_bytes, chunk.memory_bytes / chunk.gpus)
                whole = whole or bool(chunk.generic)
    return PerGpuDemand(cpus=cpus, memory_bytes=memory_bytes, whole=whole)


class LeftOver(Struct, frozen=True, kw_only=True):
    """What the last plan for training jobs has left of what was free when it was requested.

    Attributes:
        nodes: what is left of them.
        not_for: jobs behind a training job that has come since: the next plan decides about it.
    """

    nodes: Mapping[str, FreeNode]
    not_for: frozenset[int] = frozenset()


def starts_beside(
    snapshot: Snapshot,
    plan: Plan,
    *,
    claim: PerGpuDemand,
    training_jobs: Container[int],
    open_to_others: Container[str],
    left: LeftOver | None = None,
) -> tuple[Start, ...]:
    """Return the starts of other jobs that take nothing the next plan for training jobs may use.

    For each GPU of a node that training jobs could get, now or later, as much is left beside it as
    the most demanding of them asks for. Starts on GPUs wait for that plan, but
    for those on GPUs that the last one has left.

    Args:
        snapshot: on which the other jobs were planned.
        plan: that plan.
        claim: what training jobs ask for.
        training_jobs: those that run: each may be moved.
        open_to_others: nodes on which training jobs start nothing.
        left: by the last plan; None: nothing.
    """
    left = left or LeftOver(nodes={})
    free, over, nothing = Spaces(snapshot.nodes), Spaces(left.nodes), Spaces({})
    held = _held(snapshot.running, training_jobs)
    accepted: list[Start] = []
    for start in plan.starts:
        mine = nothing if start.job in left.not_for else over
        if start.reservation or all(
            share.node in open_to_others
            or (share.node in mine and has_room(share, mine[share.node]))
            or _spares(free[share.node], share, held.get(share.node, ()), claim)
            for share in start.allocation
        ):
            free.take(start.allocation)
            over.take(share for share in start.allocation if share.node in over)
            accepted.append(start)
    return tuple(accepted)


def _held(running: Iterable[RunningJob], training_jobs: Container[int]) -> dict[str, list[Share]]:
    """Return what running training jobs have, by node."""
    held: dict[str, list[Share]] = {}
    for job in running:
        if job.job in training_jobs:
            for share in job.allocation:
                held.setdefault(share.node, []).append(share)
    return held


def _spares(space: FreeNode, share: Share, held: Iterable[Share], claim: PerGpuDemand) -> bool:
    """Return whether a share leaves what training jobs may ask for on its node."""
    if percent_held([share]):
        return False
    gpus = space.total_gpus
    if not gpus or not space.open:
        return True
    if claim.whole or share.exclusive:
        return False
    cpus = gpus * claim.cpus - sum(each.cpus for each in held)
    memory_bytes = gpus * claim.memory_bytes - sum(each.memory_bytes for each in held)
    return (
        space.cpus - share.cpus >= cpus and space.memory_bytes - share.memory_bytes >= memory_bytes
    ) or (share.cpus == 0 and share.memory_bytes == 0)
