"""When the training jobs that have to wait will run, and how soon each could end at best.

An estimate, and no guarantee: GPUs are counted, wherever they are, and come back when what runs on
them is planned to end; the waiting take them one after the other, each on the fewest that meet its
deadline, or on those that end it first.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gsched.model.resources import Request
from gschedd.allocation.configurations import (
    FreeNodes,
    Paces,
    Waiting,
)
from gschedd.allocation.performance import ROUNDING_S
from gschedd.plan.elastic import free_gpus
from gschedd.plan.layouts import layout_of
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.space import FreeNode, NodeIndex, Spaces, emptied, index_of
from gschedd.plan.training import Fabric, Speed, TrainingProfile, gpu_count

Level = tuple[int, float]  # GPUs, and the seconds that a unit of work takes on them at best


class Expected(Struct, frozen=True, kw_only=True):
    """What will become of a waiting training, as far as can be said.

    Attributes:
        start_s, end_s: seconds since the epoch; None: it will not start while things are as they
            are.
        gpus: on how many.
    """

    start_s: float | None = None
    end_s: float | None = None
    gpus: int = 0


#: Speeds of which the levels are kept; with more of them all are worked out anew.
LEVELS_MAX: Final = 20_000


class IdleNodes(NodeIndex):
    """The nodes as if nothing ran on them, and what was worked out of them, until one changes."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: dict[str, FreeNode] = {}
        self._fabric: Fabric | None = None
        self._free: dict[Request, FreeNodes] = {}
        self._levels: dict[tuple[Request, Speed, tuple[int, ...]], tuple[Level, ...]] = {}

    def refresh(self, nodes: Mapping[str, FreeNode], fabric: Fabric) -> None:
        """Forget what no longer holds."""
        changed = fabric != self._fabric or len(self._levels) > LEVELS_MAX
        for name in self.stale:
            space = nodes.get(name)
            idle = emptied(space) if space is not None and space.open else None
            if idle != self._nodes.get(name):
                changed = True
        self.stale.clear()
        if changed or any(name not in nodes for name in self._nodes):
            self._fabric = fabric
            self._nodes = {name: emptied(space) for name, space in nodes.items() if space.open}
            self._free.clear()
            self._levels.clear()

    def levels(
        self, form: Request, speed: Speed, gpus: tuple[int, ...], paces: Paces
    ) -> tuple[Level, ...]:
        """Return the numbers of GPUs worth having, ascending, each faster than the one before."""
        key = (form, speed, gpus)
        levels = self._levels.get(key)
        if levels is None:
            best: dict[int, float] = {}
            for option in self._free_for(form).options(gpus):
                pace = paces.of(speed, option.layout, gpus[0])
                best[option.gpus] = min(best.get(option.gpus, pace), pace)
            levels = self._levels[key] = tuple(_worth(best))
        return levels

    def _free_for(self, form: Request) -> FreeNodes:
        found = self._free.get(form)
        if found is None:
            assert self._fabric is not None, "it was refreshed"
            spaces = Spaces(self._nodes)
            found = self._free[form] = FreeNodes(form, spaces, self._fabric, by_kind=True)
        return found


class Idle:
    """The best speeds of training jobs, in one plan: on the cluster as if nothing ran on it."""

    def __init__(self, snapshot: Snapshot, paces: Paces) -> None:
        self._index = index_of(snapshot.nodes, "idle nodes", IdleNodes)
        self._index.refresh(snapshot.nodes, snapshot.fabric)
        self._paces = paces
        self._of_kind: dict[int, tuple[Level, ...]] = {}

    def levels_of(self, waiting: Waiting) -> tuple[Level, ...]:
        """Return the numbers of GPUs worth having, ascending, each faster than the one before.

        There are none where it can only be placed as it is, or nowhere.
        """
        levels = self._of_kind.get(waiting.kind)
        if levels is None:
            profile, form = waiting.profile, waiting.form
            levels = (
                ()
                if form is None
                else self._index.levels(form, profile.speed, profile.gpus, self._paces)
            )
            self._of_kind[waiting.kind] = levels
        return levels


def _worth(best: Mapping[int, float]) -> Iterable[Level]:
    fastest = float("inf")
    for gpus in sorted(best):
        if best[gpus] < fastest:
            fastest = best[gpus]
            yield gpus, fastest


def cheapest(levels: Sequence[Level], work: float, time_s: float) -> Level | None:
    """Return the level with the fewest GPUs that does the work in time; None: none does.

    Args:
        levels: numbers of GPUs, ascending, with their paces.
        work: what is left, in the unit of the paces.
        time_s: from its first step to its deadline, seconds.
    """
    return next((each for each in levels if work * each[1] <= time_s + ROUNDING_S), None)


def running_ends(snapshot: Snapshot) -> list[tuple[float, int]]:
    """Return when GPUs come back, and how many, in order; of what never ends nothing is said."""
    spaces = Spaces(snapshot.nodes)
    ends: list[tuple[float, int]] = []
    for job in snapshot.running:
        profile = snapshot.profiles.get(job.job)
        end_s = job.end_s
        if profile is not None and all(share.node in spaces for share in job.allocation):
            layout = layout_of(job.allocation, spaces.gpus_of, snapshot.fabric)
            end_s = snapshot.now_s + profile.run_time_s(layout)
        gpus = gpu_count(job.allocation)
        if gpus and end_s is not None and end_s < float("inf"):
            ends.append((max(end_s, snapshot.now_s), gpus))
    return sorted(ends)


def outlook(
    snapshot: Snapshot, waiting: Iterable[Waiting], free: Spaces, idle: Idle
) -> dict[int, Expected]:
    """Return what will become of those that wait, by job.

    Args:
        snapshot: what there is.
        waiting: training jobs that are not started now.
        free: what is left of the nodes.
        idle: of the same snapshot.
    """
    ends = running_ends(snapshot)
    heapq.heapify(ends)
    now_s = snapshot.now_s
    count = _free_count(waiting := list(waiting), free)
    found: dict[int, Expected] = {}
    for each in sorted(waiting, key=lambda one: _order(one, idle, now_s)):
        profile, levels = each.profile, idle.levels_of(each)
        while ends and count < (levels[0][0] if levels else 0):
            end_s, gpus = heapq.heappop(ends)
            now_s, count = max(now_s, end_s), count + gpus
        fitting = [level for level in levels if level[0] <= count]
        if not fitting:
            found[profile.job] = Expected()
            continue
        slack_s = _deadline_s(profile) - now_s - profile.startup_s
        gpus, pace = cheapest(fitting, profile.work, slack_s) or fitting[-1]
        end_s = now_s + (profile.startup_s + profile.work * pace)
        found[profile.job] = Expected(start_s=now_s, end_s=end_s, gpus=gpus)
        heapq.heappush(ends, (end_s, gpus))
        count -= gpus
    return found


def _free_count(waiting: Sequence[Waiting], free: Spaces) -> int:
    """Return how many GPUs are free for the waiting that can use the most of them."""
    forms = {each.form for each in waiting if each.form is not None}
    return max((sum(free_gpus(form, free).values()) for form in forms), default=0)


def _deadline_s(profile: TrainingProfile) -> float:
    return float("-inf") if profile.deadline_s is None else profile.deadline_s


def _order(each: Waiting, idle: Idle, now_s: float) -> tuple[bool, float, int]:
    """Return who goes first: those that can still be in time, by their deadlines."""
    profile = each.profile
    deadline_s = _deadline_s(profile)
    time_s = deadline_s - now_s - profile.startup_s
    in_time = cheapest(idle.levels_of(each), profile.work, time_s) is not None
    return (
        not in_time,
        profile.arrived_s if deadline_s == float("-inf") else deadline_s,
        profile.job,
    )
