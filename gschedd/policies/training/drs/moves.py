"""Migrations that make room: a node at a time is emptied, and its jobs go to others in use."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from gsched.model.resources import Allocation
from gschedd.allocation.placement import PlacementRequest, settle
from gschedd.plan.layouts import layout_of
from gschedd.plan.snapshot import RunningJob, Snapshot
from gschedd.plan.space import Spaces
from gschedd.plan.training import Layout, TrainingProfile, gpu_count, gpus_by_node
from gschedd.policies.training.drs.choice import ROUNDING_S


class Migration(Struct, frozen=True, kw_only=True):
    """A running training job and where it is to resume."""

    running: RunningJob
    profile: TrainingProfile
    allocation: Allocation
    layout: Layout


def after(snapshot: Snapshot, moved: Collection[Migration]) -> Spaces:
    """Return what is free once training jobs have migrated."""
    spaces = Spaces(snapshot.nodes)
    for each in moved:
        spaces.give(each.running.allocation)
    for each in moved:
        spaces.take(each.allocation)
    return spaces


def vacated(
    snapshot: Snapshot, movable: Mapping[int, RunningJob], *, moves_max: int
) -> Iterator[list[Migration]]:
    """Yield ever longer lists of migrations, each of which empties one more node.

    The node with the fewest GPUs in use comes first. What runs on it goes to other nodes that are
    in use, the fullest first. A node is left alone if something on it cannot migrate, if not all
    of it finds a place, if a job would be late or slower by it, or if that is too much at once.
    """
    by_node: dict[str, list[RunningJob]] = {}
    for running in movable.values():
        for name in gpus_by_node(running.allocation):
            by_node.setdefault(name, []).append(running)
    used = sorted(
        (space.total_gpus - len(space.gpus), space.name)
        for space in snapshot.nodes.values()
        if space.open and space.owners and len(by_node.get(space.name, ())) == space.owners
    )
    closed = {space.name for space in snapshot.nodes.values() if not space.owners}
    moved: dict[int, Migration] = {}
    for _, name in used:
        leaving = by_node[name]
        if len(moved) + len(leaving) > moves_max or any(each.job in moved for each in leaving):
            continue
        if any(name in gpus_by_node(each.allocation) for each in moved.values()):
            continue  # others have moved in
        spaces = after(snapshot, moved.values())
        found = _emptied(snapshot, spaces, leaving, closed | {name})
        if len(found) < len(leaving) or not all(_is_harmless(each, snapshot) for each in found):
            continue
        closed.add(name)
        moved.update((each.running.job, each) for each in found)
        yield list(moved.values())


def _emptied(
    snapshot: Snapshot, spaces: Spaces, leaving: Sequence[RunningJob], closed: Collection[str]
) -> list[Migration]:
    """Return the migrations of jobs that leave a node; one that is missing finds no place."""
    for running in leaving:
        spaces.give(running.allocation)
    nodes = {
        space.name: structs.replace(space, open=space.open and space.name not in closed)
        for space in spaces
    }
    requests: list[PlacementRequest] = []
    for running in leaving:
        request = snapshot.profiles[running.job].request
        assert request is not None, "what cannot migrate is fixed"
        gpus = gpu_count(running.allocation)
        requests.append(PlacementRequest(job=running.job, gpus=gpus, request=request))
    places = settle(Spaces(nodes), requests)
    return [
        Migration(
            running=running,
            profile=snapshot.profiles[running.job],
            allocation=places[running.job],
            layout=layout_of(places[running.job], spaces.gpus_of, snapshot.fabric),
        )
        for running in leaving
        if running.job in places
    ]


def _is_harmless(each: Migration, snapshot: Snapshot) -> bool:
    """Return whether a job that meets its deadline where it is also does so after a migration.

    One without a deadline must not become slower.
    """
    spaces, profile = Spaces(snapshot.nodes), each.profile
    before = layout_of(each.running.allocation, spaces.gpus_of, snapshot.fabric)
    if profile.deadline_s is None:
        return profile.work_time_s(each.layout) <= profile.work_time_s(before)
    limit_s = profile.deadline_s - snapshot.now_s + ROUNDING_S
    return (
        profile.run_time_s(before) > limit_s
        or profile.move_s + profile.work_time_s(each.layout) <= limit_s
    )
