"""Why `deadline` broke guarantees: each plan is compared with the one before it."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from gsched.config.policies import DeadlineConfig
from gschedd.allocation.fluid import Grid
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import gpu_count
from gschedd.policies.training.deadline.needs import Candidate, grid_for
from gschedd.policies.training.deadline.round import Round

#: Steps of the plan that tells whether rounding to steps broke a guarantee.
FINE_STEPS: Final = 400
#: Orders of guaranteed jobs that are tried.
ORDERS: Final = 30

CAUSES: Final[Mapping[str, str]] = {
    "migration": "it was migrated with less time to spare than that takes",
    "nodes": "it got fewer GPUs than planned: those free were on several nodes",
    "guarantee": "the deadline of another job was guaranteed meanwhile",
    "steps": "with shorter steps the plan holds it",
    "order": "in another order the plan holds all guaranteed jobs",
    "charge": "were migrations free, the plan would hold it",
    "run": "no plan without it: its last steps took longer than planned",
    "other": "none of these",
}


class Seen(Struct, frozen=True, kw_only=True):
    """A guaranteed job in one plan.

    Attributes:
        spare_s: between its planned end and its deadline; None: the plan does not hold it.
        planned, placed: GPUs that it was to have, and that it got.
        migrates: it is migrated by this plan, to as many GPUs as it has.
    """

    spare_s: float | None
    planned: int
    placed: int
    migrates: bool
    move_s: float


class Watch:
    """The policy `deadline`, which remembers the first plan without each guaranteed job.

    Attributes:
        causes: by job, of those that a plan did not hold any more.
    """

    def __init__(self, settings: DeadlineConfig) -> None:
        self.settings = settings
        self.causes: dict[int, str] = {}
        self._before: dict[int, Seen] = {}

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan of the policy."""
        here = Round(snapshot, self.settings)
        plan = here.plan()
        guaranteed = [each for each in here.needs.candidates if each.guaranteed]
        seen = {each.need.job: self._seen(each, here, plan) for each in guaranteed}
        for job in here.hopeless:
            if snapshot.profiles[job].guaranteed:
                self.causes.setdefault(job, self._before_it(job) or "other")
        for each in guaranteed:
            if each.need.job not in here.kept.shares and each.need.job not in self.causes:
                cause = self._before_it(each.need.job)
                self.causes[each.need.job] = cause or self._cause(guaranteed, snapshot, here)
        self._before = seen
        return plan

    def cause(self, job: int) -> str:
        """Return why a guaranteed job missed its deadline."""
        return self.causes.get(job) or self._before_it(job) or "run"

    @staticmethod
    def _seen(each: Candidate, here: Round, plan: Plan) -> Seen:
        need, share = each.need, here.kept.shares.get(each.need.job)
        place = next((move.allocation for move in plan.moves if move.job == need.job), None)
        planned = here.idle.numbers.get(need.job, 0)
        placed = planned if place is None else gpu_count(place)
        return Seen(
            spare_s=None if share is None else need.deadline_s - share.end_s,
            planned=planned,
            placed=placed,
            migrates=place is not None and placed == need.has > 0,
            move_s=need.move_s,
        )

    def _before_it(self, job: int) -> str:
        """Return what the plan before did to a job, empty if nothing."""
        seen = self._before.get(job)
        if seen is None or seen.spare_s is None:
            return ""
        if seen.migrates and seen.spare_s < seen.move_s:
            return "migration"
        return "nodes" if seen.placed < seen.planned else ""

    def _cause(self, guaranteed: Sequence[Candidate], snapshot: Snapshot, here: Round) -> str:
        """Return what would have to be otherwise for the plan to hold all guaranteed jobs."""
        grid = grid_for(snapshot, here.training_jobs, here.speeds, here.needs, self.settings)
        fine = grid_for(
            snapshot,
            here.training_jobs,
            here.speeds,
            here.needs,
            structs.replace(self.settings, steps_max=FINE_STEPS, steps_min=FINE_STEPS),
        )
        known = [each for each in guaranteed if each.need.job in self._before]
        free = [
            structs.replace(each, need=structs.replace(each.need, move_s=0.0))
            for each in guaranteed
        ]
        tests = {
            "guarantee": len(known) < len(guaranteed) and _holds(known, grid),
            "steps": _holds(guaranteed, fine),
            "order": _holds_in_some_order(guaranteed, fine),
            "charge": _holds(free, grid),
        }
        return next((cause for cause, holds in tests.items() if holds), "other")


def _holds(ordered: Sequence[Candidate], grid: Grid) -> bool:
    return _first_that_fails(sorted(ordered, key=_due), grid) is None


def _first_that_fails(ordered: Sequence[Candidate], grid: Grid) -> int | None:
    left = grid.copy()
    for index, each in enumerate(ordered):
        if left.take_share(each.need) is None:
            return index
    return None


def _holds_in_some_order(guaranteed: Sequence[Candidate], grid: Grid) -> bool:
    """Return whether an order is found, a job that fails being planned earlier each time."""
    order = sorted(guaranteed, key=_due)
    for _ in range(ORDERS):
        failed = _first_that_fails(order, grid)
        if not failed:
            return failed is None
        order.insert(failed // 2, order.pop(failed))
    return False


def _due(each: Candidate) -> tuple[float, int]:
    return each.need.deadline_s, each.need.job
