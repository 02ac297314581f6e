"""Jobs in reservations: a reservation whose window is now is planned as a cluster of its own.

The policy for queues is asked once for each reservation that jobs wait for, about what is free of
it, and then about all other jobs, which find its nodes closed by `gschedd.plan.windows`. So each
has an order and a backfill reservation of its own, and no job waits for one elsewhere.
"""

from collections.abc import Iterable, Mapping

from msgspec import structs

from gsched.model.resources import Allocation, Share
from gsched.model.window import NodeWindow
from gschedd.plan.compose import joined, remaining
from gschedd.plan.moments import moment
from gschedd.plan.snapshot import Group, JobClass, Plan, Policy, RunningJob, Snapshot, Start, Wait
from gschedd.plan.space import FreeNode, common, emptied, take
from gschedd.plan.validate import has_room
from gschedd.plan.windows import ReservedWindow, holds_within
from gschedd.plan.words import Reason


def reserved_nodes(
    window: ReservedWindow, nodes: Mapping[str, FreeNode], given: Iterable[Allocation]
) -> dict[str, FreeNode]:
    """Return what is free of a reservation on each of its nodes.

    Args:
        window: of the reservation.
        nodes: what is free there.
        given: what its jobs have.
    """
    found = {
        share.node: _whole(share, nodes[share.node])
        for share in window.shares
        if share.node in nodes
    }
    for allocation in given:
        for share in allocation:
            if share.node in found and has_room(share, found[share.node]):
                found[share.node] = take(found[share.node], share)
    return {name: common(nodes[name], left) for name, left in found.items()}


def _whole(share: Share, space: FreeNode) -> FreeNode:
    """Return a part of a node as if nothing ran there."""
    idle = structs.replace(emptied(space), open=space.open)
    if share.exclusive:
        return idle
    return structs.replace(
        idle,
        cpus=share.cpus,
        memory_bytes=share.memory_bytes,
        gpus=tuple(gpu for gpu in idle.gpus if gpu.index in share.gpu_indices),
    )


class WithReservations:
    """A policy for the jobs of queues that plans those in reservations, too.

    Args:
        policy: plans the jobs of a cluster without reservations.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan for all jobs."""
        named = any(group.job_class.reservation for group in snapshot.groups)
        if not snapshot.reserved and not named:
            return self.policy(snapshot)
        now_s = snapshot.now_s
        made, left = Plan(), snapshot
        for window in snapshot.reserved:
            groups = [each for each in left.groups if window.name in each.job_class.may_use]
            if not groups or not window.from_s <= now_s < window.to_s:
                continue
            plan = self._within(left, window, groups)
            made = joined(made, plan)
            if plan.more:
                return structs.replace(made, more=True)
            left = _rest(left, plan)
        others = [each for each in left.groups if not each.job_class.reservation]
        magnetic = {each.job_class for each in others}
        planned = {wait.job_class for wait in made.waits} - magnetic
        waits = [wait for wait in made.waits if wait.job_class in planned]
        waits += [
            _unplanned(each, snapshot)
            for each in left.groups
            if each.job_class.reservation and each.job_class not in planned
        ]
        made = structs.replace(made, waits=tuple(waits))
        rest = self.policy(structs.replace(left, groups=others))
        return structs.replace(joined(made, rest), more=rest.more)

    def _within(self, snapshot: Snapshot, window: ReservedWindow, groups: list[Group]) -> Plan:
        """Return the plan for the jobs of a reservation; those that would outlast it wait."""
        left_s = window.to_s - snapshot.now_s
        fitting: dict[JobClass, JobClass] = {}
        planned: list[Group] = []
        waits: list[Wait] = []
        for group in groups:
            walltime_s = group.job_class.walltime_s
            if walltime_s is not None and walltime_s > left_s:
                waits.append(_wait(group, _too_long(window)))
                continue
            job_class = structs.replace(group.job_class, walltime_s=walltime_s or left_s)
            fitting[job_class] = group.job_class
            planned.append(Group(job_class=job_class, order=group.order))
        inside = [each for each in snapshot.running if each.reservation == window.name]
        nodes = reserved_nodes(window, snapshot.nodes, (each.allocation for each in inside))
        plan = self.policy(
            structs.replace(
                snapshot,
                groups=planned,
                nodes=nodes,
                running=[*inside, *_outsiders(snapshot, window, nodes)],
                windows=_other_windows(snapshot, window.name, nodes),
            )
        )
        starts = (
            structs.replace(start, job_class=fitting[start.job_class], reservation=window.name)
            for start in plan.starts
        )
        waits += [
            structs.replace(
                wait,
                job_class=fitting[wait.job_class],
                reserved=False,
                predicted_start_s=_in_time(wait, window),
            )
            for wait in plan.waits
        ]
        return structs.replace(plan, starts=tuple(starts), waits=tuple(waits))


def _rest(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return what is left when a plan for a reservation is carried out."""
    if not plan.starts:
        return snapshot
    started: dict[JobClass, set[int]] = {}
    for start in plan.starts:
        started.setdefault(start.job_class, set()).add(start.job)
    groups = []
    for group in snapshot.groups:
        gone = started.get(group.job_class)
        if gone is None:
            groups.append(group)
        elif order := [key for key in group.order if key[1] not in gone]:
            groups.append(Group(job_class=group.job_class, order=order))
    most = snapshot.starts_max
    left = remaining(snapshot, groups, plan)
    running = [*left.running, *(_started(start, snapshot.now_s) for start in plan.starts)]
    return structs.replace(
        left, running=running, starts_max=None if most is None else most - len(plan.starts)
    )


def _started(start: Start, now_s: float) -> RunningJob:
    walltime_s = start.job_class.walltime_s
    return RunningJob(
        job=start.job,
        allocation=start.allocation,
        started_s=now_s,
        end_s=None if walltime_s is None else now_s + walltime_s,
        reservation=start.reservation,
    )


def _outsiders(
    snapshot: Snapshot, window: ReservedWindow, nodes: Mapping[str, FreeNode]
) -> Iterable[RunningJob]:
    """Yield the jobs of others that still run on whole nodes of a reservation."""
    if all(share.exclusive for share in window.shares):
        for each in snapshot.running:
            if each.reservation != window.name and any(
                share.node in nodes for share in each.allocation
            ):
                mine = tuple(share for share in each.allocation if share.node in nodes)
                yield structs.replace(each, allocation=mine)


def _other_windows(
    snapshot: Snapshot, name: str, nodes: Iterable[str]
) -> dict[str, tuple[NodeWindow, ...]]:
    found = {
        node: tuple(each for each in snapshot.windows.get(node, ()) if each.reservation != name)
        for node in nodes
    }
    return {node: windows for node, windows in found.items() if windows}


def _in_time(wait: Wait, window: ReservedWindow) -> float | None:
    """Return when a job starts by its plan, if the reservation holds until it has ended."""
    start_s, walltime_s = wait.predicted_start_s, wait.job_class.walltime_s
    if start_s is None or start_s + (walltime_s or 0.0) > window.to_s:
        return None
    return start_s


def _wait(group: Group, reason: Reason) -> Wait:
    return Wait(job_class=group.job_class, first=group.order[0][1], reason=reason)


def _too_long(window: ReservedWindow) -> Reason:
    words = (
        f"reservation {window.name} ends at {moment(window.to_s)}, before its walltime would end"
    )
    return Reason(words, "reservation ends")


def _unplanned(group: Group, snapshot: Snapshot) -> Wait:
    """Return why jobs wait whose reservation is not now."""
    name = group.job_class.reservation
    windows = [each for each in snapshot.reserved if each.name == name]
    if not windows:
        words = (
            f"there is no reservation {name}; galter --reservation gives it another one, or none"
        )
        return _wait(group, Reason(words, "no reservation"))
    if name not in group.job_class.may_use:
        words = f"reservation {name} is for other users and projects, or for maintenance"
        return _wait(group, Reason(words, "reservation of others"))
    later = [each for each in windows if each.from_s > snapshot.now_s]
    if not later:
        words = f"reservation {name} has ended"
        return _wait(group, Reason(words, words))
    first = min(later, key=lambda each: each.from_s)
    words = f"reservation {name} begins at {moment(first.from_s)}"
    walltime_s = group.job_class.walltime_s
    if not any(holds_within(each, snapshot.now_s, walltime_s) for each in later):
        ends = f"ends at {moment(first.to_s)}, which is less than its walltime"
        return _wait(group, Reason(f"{words} and {ends}", "reservation too short"))
    return _wait(group, Reason(words, words))
