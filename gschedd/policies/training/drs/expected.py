"""When the training jobs that wait will run, and how soon each could end at best.

An estimate, and no guarantee: GPUs are counted, wherever they are, and come back when what runs on
them is planned to end; the waiting take them one after the other, each on the fewest that meet its
deadline, or on those that end it first.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

from gsched.model.resources import Request
from gschedd.allocation.shares import Levels, levels_of
from gschedd.plan.elastic import free_gpus
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Snapshot
from gschedd.plan.space import Spaces, emptied
from gschedd.plan.training import Speed, TrainingProfile
from gschedd.policies.training.drs.choice import ROUNDING_S
from gschedd.policies.training.drs.options import FreeNodes, Paces, WaitingJob


class IdleCluster:
    """How fast training jobs are at best: on all open nodes, as if nothing ran there."""

    def __init__(self, snapshot: Snapshot, paces: Paces) -> None:
        self._snapshot = snapshot
        self._paces = paces
        self._nodes: dict[Request, FreeNodes] = {}
        self._levels: dict[tuple[Request, Speed, tuple[int, ...]], Levels] = {}
        self._of_job: dict[int, Levels] = {}

    def levels_of(self, waiting: WaitingJob) -> Levels:
        """Return the numbers of GPUs worth having; there are none where it can never run."""
        form, profile = waiting.form, waiting.profile
        found = self._of_job.get(profile.job)
        if found is None:
            key = (form, profile.speed, profile.gpus)
            if key not in self._levels:
                self._levels[key] = self._computed(waiting)
            found = self._of_job[profile.job] = self._levels[key]
        return found

    def _computed(self, waiting: WaitingJob) -> Levels:
        profile = waiting.profile
        paces = self._paces[profile.speed, profile.gpus[0]]
        rates: dict[int, float] = {}
        for option in self._free(waiting.form).options(profile.gpus):
            rate = 1 / paces[option.layout]
            rates[option.gpus] = max(rates.get(option.gpus, 0.0), rate)
        return levels_of(rates, rates.__getitem__)

    def soonest_s(self, waiting: WaitingJob) -> float:
        """Return how long a job takes at best, seconds; infinite where it can never run."""
        levels = self.levels_of(waiting)
        return run_s(waiting.profile, levels, len(levels.gpus) - 1)

    def _free(self, form: Request) -> FreeNodes:
        found = self._nodes.get(form)
        if found is None:
            nodes = self._snapshot.nodes
            idle = Spaces({name: emptied(space) for name, space in nodes.items() if space.open})
            found = self._nodes[form] = FreeNodes(form, idle, self._snapshot.fabric)
        return found


def run_s(profile: TrainingProfile, levels: Levels, index: int) -> float:
    """Return how long a job takes from its start on a level, seconds; infinite for index -1."""
    return profile.startup_s + profile.work / levels.rates[index] if index >= 0 else float("inf")


def cheapest(profile: TrainingProfile, levels: Levels, now_s: float) -> int | None:
    """Return the index of the lowest level on which a job meets its deadline; None: on none."""
    if profile.deadline_s is None:
        return None
    limit_s = profile.deadline_s - now_s + ROUNDING_S
    fitting = (at for at in range(len(levels.gpus)) if run_s(profile, levels, at) <= limit_s)
    return next(fitting, None)


def expected_of(
    snapshot: Snapshot,
    waiting: Sequence[WaitingJob],
    free: Spaces,
    ends: Iterable[tuple[float, int]],
    idle: IdleCluster,
) -> dict[int, Forecast]:
    """Return what is expected of those that wait, by job; without an end if they never start.

    Args:
        snapshot: what there is.
        waiting: training jobs that are not started now.
        free: what is left of the nodes.
        ends: when GPUs come back, and how many.
        idle: of the same snapshot.
    """
    now_s = snapshot.now_s
    coming = [each for each in ends if each[0] < float("inf")]
    heapq.heapify(coming)
    # as many as are free for those that can use the most of them
    forms = {each.form for each in waiting}
    count = max((sum(free_gpus(form, free).values()) for form in forms), default=0)
    found: dict[int, Forecast] = {}
    for each in sorted(waiting, key=_order(idle, now_s)):
        profile, levels = each.profile, idle.levels_of(each)
        while coming and levels.gpus and count < levels.gpus[0]:
            end_s, gpus = heapq.heappop(coming)
            now_s, count = max(now_s, end_s), count + gpus
        fits = levels.floor(count)
        if not fits:
            found[profile.job] = Forecast()
            continue
        fitting = Levels(gpus=levels.gpus[:fits], rates=levels.rates[:fits])
        enough = cheapest(profile, fitting, now_s)
        index = fits - 1 if enough is None else enough
        end_s = now_s + run_s(profile, levels, index)
        found[profile.job] = Forecast(start_s=now_s, end_s=end_s, gpus=levels.gpus[index])
        heapq.heappush(coming, (end_s, levels.gpus[index]))
        count -= levels.gpus[index]
    return found


def _order(idle: IdleCluster, now_s: float) -> Callable[[WaitingJob], tuple[bool, float, int]]:
    """Return who goes first: those that can still meet their deadlines, by these."""

    def key(each: WaitingJob) -> tuple[bool, float, int]:
        profile = each.profile
        late = cheapest(profile, idle.levels_of(each), now_s) is None
        due_s = profile.arrived_s if profile.deadline_s is None else profile.deadline_s
        return (late, due_s, profile.job)

    return key
