"""Consolidation of running training jobs: the paper's way, and ours, which asks for the gain."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from gsched.model.resources import Request
from gschedd.allocation.configurations import (
    FreeNodes,
    Paces,
    form_of,
)
from gschedd.allocation.performance import ROUNDING_S
from gschedd.allocation.running import may_migrate
from gschedd.plan.elastic import allocate_on
from gschedd.plan.layouts import has_alike_gpus, layout_of
from gschedd.plan.snapshot import Move, RunningJob, Snapshot
from gschedd.plan.space import Spaces
from gschedd.plan.training import Layout, TrainingProfile, gpu_count, gpus_by_node


class Running(Struct, frozen=True, kw_only=True):
    """A training that runs and may be moved."""

    job: RunningJob
    profile: TrainingProfile
    request: Request
    layout: Layout

    @property
    def counts(self) -> dict[str, int]:
        """Return its GPUs by node."""
        return gpus_by_node(self.job.allocation)


class Moved(Struct, frozen=True, kw_only=True):
    """A running training and where it is to go on."""

    running: Running
    move: Move
    layout: Layout


def is_scattered(snapshot: Snapshot) -> bool:
    """Return whether more than half of the nodes are half empty or worse, but not empty.

    The paper's trigger: such a node runs something on at most half of its GPUs. Nodes without GPUs,
    and those that take no work, do not count.
    """
    nodes = [space for space in snapshot.nodes.values() if space.open and space.total_gpus]
    half_empty = sum(
        0 < space.total_gpus - len(space.gpus) <= space.total_gpus / 2 for space in nodes
    )
    return half_empty > len(nodes) / 2


def movables(snapshot: Snapshot) -> list[Running]:
    """Return the training jobs that may migrate, by job: none on a node that accepts no jobs."""
    spaces = Spaces(snapshot.nodes)
    found: list[Running] = []
    for job in snapshot.running:
        profile = snapshot.profiles.get(job.job)
        if profile is None or profile.request is None or not may_migrate(job, profile, snapshot):
            continue
        if has_alike_gpus(profile.request) and gpu_count(job.allocation):
            layout = layout_of(job.allocation, spaces.gpus_of, snapshot.fabric)
            found.append(Running(job=job, profile=profile, request=profile.request, layout=layout))
    return sorted(found, key=lambda each: each.job.job)


def _largest_first(running: Iterable[Running]) -> list[Running]:
    """Return the order of re-placement: those on one node first, each by GPUs, the most first."""
    return sorted(
        running,
        key=lambda each: (len(each.layout.counts) > 1, -each.layout.gpus, each.job.job),
    )


class _Placer:
    """Places training jobs one after the other on what is free; lives only inside one plan."""

    def __init__(self, snapshot: Snapshot, spaces: Spaces, paces: Paces, *, by_kind: bool) -> None:
        self.spaces = spaces
        self._snapshot = snapshot
        self._paces = paces
        self._by_kind = by_kind
        self._nodes: dict[Request, FreeNodes] = {}

    def place(self, running: Running) -> Mapping[str, int] | None:
        """Take as many GPUs as it has, on one node if it is on one; return them by node."""
        form = form_of(running.request)
        nodes = self._nodes.get(form)
        if nodes is None:
            fabric = self._snapshot.fabric
            nodes = FreeNodes(form, self.spaces, fabric, by_kind=self._by_kind)
            self._nodes[form] = nodes
        across = len(running.layout.counts) > 1
        gpus = running.layout.gpus
        options = [each for each in nodes.options((gpus,)) if each.across == across]
        if across and not options:  # a single node is left that has any
            options = list(nodes.options((gpus,)))
        if not options:
            return None
        speed = running.profile.speed
        best = min(options, key=lambda each: self._paces.of(speed, each.layout, gpus))
        allocation = nodes.allocate(best)
        self.spaces.take(allocation)
        for each in self._nodes.values():
            each.refresh(share.node for share in allocation)
        return gpus_by_node(allocation)


def repack(snapshot: Snapshot, paces: Paces) -> list[Moved]:
    """Return the migrations that place all movable training jobs again, as in the paper.

    Those whose place does not change are not moved. Where they do not all fit again, which best fit
    does not guarantee, none is.
    """
    running = movables(snapshot)
    spaces = Spaces(snapshot.nodes)
    for each in running:
        spaces.give(each.job.allocation)
    placer = _Placer(snapshot, spaces.copy(), paces, by_kind=False)
    places: dict[int, Mapping[str, int]] = {}
    for each in _largest_first(running):
        counts = placer.place(each)
        if counts is None:
            return []
        places[each.job.job] = counts
    return _moves(snapshot, spaces, running, places) or []


def _moves(
    snapshot: Snapshot,
    spaces: Spaces,
    running: Sequence[Running],
    places: Mapping[int, Mapping[str, int]],
) -> list[Moved] | None:
    """Return the moves to so many GPUs on each node; None if they do not fit.

    Args:
        snapshot: what there is.
        spaces: what is free once all of them have left.
        running: those that are looked at.
        places: GPUs by node, by job.
    """
    spaces = spaces.copy()
    moving: list[Running] = []
    for each in running:
        if places[each.job.job] == each.counts:
            spaces.take(each.job.allocation)
        else:
            moving.append(each)
    moved: list[Moved] = []
    for each in _largest_first(moving):
        counts = places[each.job.job]
        allocation = allocate_on(form_of(each.request), spaces, counts)
        if allocation is None:
            return None
        spaces.take(allocation)
        layout = layout_of(allocation, spaces.gpus_of, snapshot.fabric)
        why = f"from {_named(each.counts)}, moved together with others"
        move = Move(job=each.job.job, allocation=allocation, why=why)
        moved.append(Moved(running=each, move=move, layout=layout))
    return moved


def told(moved: Iterable[Moved], gained: Iterable[int]) -> list[Moved]:
    """Return moves with the words for whom they make room."""
    jobs = ", ".join(map(str, sorted(gained)))
    if not jobs:
        return list(moved)
    return [
        structs.replace(each, move=structs.replace(each.move, why=_for_whom(each, jobs)))
        for each in moved
    ]


def _for_whom(moved: Moved, jobs: str) -> str:
    return f"from {_named(moved.running.counts)}, to make room for job {jobs}"


def _named(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(counts))


def after(snapshot: Snapshot, moved: Sequence[Moved]) -> Spaces:
    """Return what is free once training jobs have moved."""
    spaces = Spaces(snapshot.nodes)
    for each in moved:
        spaces.give(each.running.job.allocation)
    for each in moved:
        spaces.take(each.move.allocation)
    return spaces


def stays_in_time(moved: Moved, now_s: float) -> bool:
    """Return whether a move makes nobody late who is in time where it is."""
    profile = moved.running.profile
    if profile.deadline_s is None:
        return True
    limit_s = profile.deadline_s - now_s + ROUNDING_S
    in_time = profile.run_time_s(moved.running.layout) <= limit_s
    return not in_time or profile.move_s + profile.work_time_s(moved.layout) <= limit_s


def vacated(snapshot: Snapshot, paces: Paces, *, moves_max: int) -> Iterable[list[Moved]]:
    """Yield ever longer lists of moves, each of which empties one more node.

    The node with the fewest GPUs in use comes first. What runs on it goes to other nodes that are
    in use, the fullest first. A node is left alone if something on it cannot be moved, if not all
    of it finds a place, if somebody would be late by it, or if there are too many moves.
    """
    spaces = Spaces(snapshot.nodes)
    by_node: dict[str, list[Running]] = {}
    for each in movables(snapshot):
        for name in each.counts:
            by_node.setdefault(name, []).append(each)
    used = sorted(
        (space.total_gpus - len(space.gpus), space.name)
        for space in snapshot.nodes.values()
        if space.open and space.owners and len(by_node.get(space.name, ())) == space.owners
    )
    shut = {space.name for space in snapshot.nodes.values() if not space.owners}
    done: dict[int, Moved] = {}
    for _, name in used:
        leaving = by_node[name]
        if len(done) + len(leaving) > moves_max or any(each.job.job in done for each in leaving):
            continue
        if any(name in gpus_by_node(each.move.allocation) for each in done.values()):
            continue  # others have moved in
        moved = _empty(snapshot, spaces, leaving, shut | {name}, paces)
        if moved is None or not all(stays_in_time(each, snapshot.now_s) for each in moved):
            continue
        shut.add(name)
        for going in moved:
            done[going.move.job] = going
            spaces.give(going.running.job.allocation)
            spaces.take(going.move.allocation)
        yield list(done.values())


def _empty(
    snapshot: Snapshot, spaces: Spaces, leaving: list[Running], shut: set[str], paces: Paces
) -> list[Moved] | None:
    """Return moves of all that leave a node to nodes that are not shut, or None."""
    given = spaces.copy()
    for each in leaving:
        given.give(each.job.allocation)
    nodes = {
        space.name: structs.replace(space, open=space.open and space.name not in shut)
        for space in given
    }
    placer = _Placer(snapshot, Spaces(nodes), paces, by_kind=True)
    places: dict[int, Mapping[str, int]] = {}
    for each in _largest_first(leaving):
        counts = placer.place(each)
        if counts is None:
            return None
        places[each.job.job] = counts
    return _moves(snapshot, given, leaving, places)
