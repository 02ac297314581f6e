"""One decision: from what training jobs need to starts, moves and what is said to users."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Final

from msgspec import structs

from gsched.config.policies import DeadlineConfig
from gschedd.allocation.changes import Changes, Speeds, carry_out, stays
from gschedd.allocation.fluid import Grid
from gschedd.allocation.running import TrainingJobs
from gschedd.plan.forecast import Forecast
from gschedd.plan.snapshot import Plan, Snapshot
from gschedd.plan.training import TrainingProfile
from gschedd.plan.words import IN_TIME, Reason
from gschedd.policies.training.deadline.keeping import PlanAhead, keep
from gschedd.policies.training.deadline.needs import Needs, grid_for, needs_of


class Idle:
    """GPUs that are given away; lives only inside one plan.

    Attributes:
        numbers: GPUs of each training, by job.
        left: GPUs that nobody has.
    """

    def __init__(
        self,
        needs: Needs,
        numbers: dict[int, int],
        left: int,
        profile_of: Callable[[int], TrainingProfile],
    ) -> None:
        self.numbers = numbers
        self.left = left
        self._needs = needs
        self._profile_of = profile_of

    def keep(self, jobs: Iterable[int]) -> None:
        """Let training jobs keep what they have, as far as it is left."""
        for job in jobs:
            more = self._needs.has[job] - self.numbers.get(job, 0)
            if 0 < more <= self.left:
                self.numbers[job] = self.numbers.get(job, 0) + more
                self.left -= more

    def begin(self, jobs: Iterable[int]) -> None:
        """Give each training without GPUs the fewest it may have."""
        for job in jobs:
            levels = self._needs.levels[job]
            if self.numbers.get(job) or not levels.gpus:
                continue
            if levels.gpus[0] <= self.left:
                self.numbers[job] = levels.gpus[0]
                self.left -= levels.gpus[0]

    def grow(self, jobs: Iterable[int], gain: float) -> None:
        """Give what is left to where each GPU does most, compared with the fewest that do.

        Args:
            jobs: that may have more.
            gain: one that runs is changed if it then ends within at most this part of the time.
        """
        heap: list[tuple[float, int, int]] = []
        for job in jobs:
            self._offer(heap, job, gain)
        while heap and self.left:
            _, job, gpus = heapq.heappop(heap)
            more = gpus - self.numbers.get(job, 0)
            if more <= self.left:
                self.numbers[job] = gpus
                self.left -= more
                self._offer(heap, job, gain)

    def _offer(self, heap: list[tuple[float, int, int]], job: int, gain: float) -> None:
        levels, now = self._needs.levels[job], self.numbers.get(job, 0)
        at = levels.floor(now)
        if at == len(levels.gpus) or not self._worth_it(job, at, gain):
            return
        rate = levels.rates[at - 1] if at else 0.0
        more = levels.gpus[at] - now
        value = (levels.rates[at] - rate) / levels.rates[0] * levels.gpus[0] / more
        if value > 0:
            heapq.heappush(heap, (-value, job, levels.gpus[at]))

    def _worth_it(self, job: int, at: int, gain: float) -> bool:
        """Return whether a level is worth the change; it is where a change is due anyway."""
        levels, has = self._needs.levels[job], self._needs.has[job]
        if not has or self.numbers.get(job, 0) != has:
            return True
        index = levels.floor(has) - 1
        if index < 0 or levels.gpus[at] <= has:
            return True
        profile = self._profile_of(job)
        now_s = profile.startup_s + profile.work / levels.rates[index]
        then_s = profile.work / levels.rates[at]
        return profile.move_s + then_s <= gain * now_s


#: A guarantee leaves room for so many changes of the number of GPUs that nobody has planned yet.
CHANGES_TO_SPARE: Final = 2
#: A training that would take the whole cluster for longer than this is no typical one; seconds.
TYPICAL_S: Final = 4 * 3600.0
#: Where a guarantee would be broken, the plan ahead is made again with so many times more steps.
FINER: Final = 4

HOPELESS: Final = "the deadline can no longer be met, even on all GPUs"
GIVEN_UP: Final = "deadline given up: other jobs need less GPU time to meet theirs"
NO_DEADLINE: Final = "training jobs with deadlines come first"


class Round:
    """Decides; lives only inside `plan`."""

    def __init__(self, snapshot: Snapshot, settings: DeadlineConfig) -> None:
        self.snapshot = snapshot
        self.settings = settings
        self.training_jobs = _left_alone(
            TrainingJobs.of(snapshot), snapshot.now_s - settings.hold_s
        )
        self.speeds = Speeds(snapshot)
        self.needs = needs_of(snapshot, self.training_jobs, self.speeds)
        self.could_be = {each.need.job for each in self.needs.candidates}
        self.hopeless = frozenset(self.needs.late) | (self.needs.held - self.could_be)
        grid = self._grid(settings)
        usable = int(grid.free[0])
        self.kept = keep(self.needs.candidates, grid, settings)
        if self.kept.broken:
            self.kept = self._finer()
        numbers = {
            job: share.gpus
            for job, share in self.kept.shares.items()
            if share.gpus and job not in self.needs.held
        }
        self.idle = Idle(
            self.needs, numbers, usable - sum(numbers.values()), self.snapshot.profiles.__getitem__
        )

    def _grid(self, settings: DeadlineConfig) -> Grid:
        return grid_for(self.snapshot, self.training_jobs, self.speeds, self.needs, settings)

    def _finer(self) -> PlanAhead:
        """Return the plan ahead in shorter steps if fewer guarantees are broken in them."""
        settings = structs.replace(
            self.settings,
            steps_max=self.settings.steps_max * FINER,
            steps_min=self.settings.steps_min * FINER,
        )
        found = keep(self.needs.candidates, self._grid(settings), settings)
        return found if len(found.broken) < len(self.kept.broken) else self.kept

    def plan(self) -> Plan:
        """Return what to do."""
        self._share_idle()
        numbers = self.idle.numbers
        changes = carry_out(
            self.snapshot, self.training_jobs, numbers, self._reasons(), self._pinned()
        )
        return Plan(
            starts=changes.starts,
            waits=changes.waits,
            moves=changes.moves,
            verdicts=tuple(self._verdicts(changes)),
            again_s=self._again_s(),
        )

    def _again_s(self) -> float | None:
        """Return when the first of those that are left alone need not be any more."""
        now_s, hold_s = self.snapshot.now_s, self.settings.hold_s
        times_s = [
            each.started_s + hold_s
            for job, each in self.training_jobs.fixed.items()
            if self.snapshot.profiles[job].movable and not each.leaving
        ]
        return min((each_s for each_s in times_s if each_s > now_s), default=None)

    def _share_idle(self) -> None:
        idle, gain = self.idle, self.settings.grow_below
        kept = [each.need.job for each in self.needs.candidates]
        kept = [job for job in kept if job in self.kept.shares and job not in self.needs.held]
        idle.keep(kept)
        idle.grow([job for job in kept if self._may_change(job)], gain)
        rest = [*(each.need.job for each in self.kept.given_up), *self.needs.late]
        rest = [job for job in rest if job not in self.needs.held]
        idle.keep(rest)
        idle.begin(rest)
        idle.grow([job for job in rest if idle.numbers.get(job)], gain)

    def _may_change(self, job: int) -> bool:
        """Return whether a training may have more: one that cannot be moved starts as planned."""
        return self.snapshot.profiles[job].movable or job in self.idle.numbers

    def _pinned(self) -> frozenset[int]:
        """Return the running jobs that would miss their deadlines if they migrated once more."""
        return frozenset(
            each.need.job
            for each in self.needs.candidates
            if (share := self.kept.shares.get(each.need.job)) is not None
            and each.need.has > 0
            and share.end_s + each.need.move_s > each.need.deadline_s
        )

    def _reasons(self) -> Mapping[int, str]:
        reasons: dict[int, str] = {}
        for job in self.training_jobs.waiting:
            if job in self.kept.shares:
                reasons[job] = IN_TIME
            else:
                words = f"{self._why_late(job)}; it runs when GPUs are left over"
                reasons[job] = Reason(words, "only leftover GPUs")
        return reasons

    def _why_late(self, job: int) -> str:
        if self.snapshot.profiles[job].deadline_s is None:
            return NO_DEADLINE
        return HOPELESS if job in self.hopeless else GIVEN_UP

    def _verdicts(self, changes: Changes) -> Iterable[Forecast]:
        """Say when those that are kept are done at the latest, and who cannot be in time."""
        limit_gpu_s = self._safe_gpu_s()
        for each in self.needs.candidates:
            share = self.kept.shares.get(each.need.job)
            if share is None:
                continue
            job = each.need.job
            gpus = self.needs.has[job] if job in self.needs.held else changes.gpus.get(job, 0)
            spare_s = CHANGES_TO_SPARE * each.need.move_s
            can_guarantee = share.end_s + spare_s <= each.need.deadline_s
            yield Forecast(
                job=job,
                meets=True,
                end_s=min(share.end_s, each.need.deadline_s),
                gpus=gpus or share.level,
                firm=each.guaranteed or (each.gpu_s <= limit_gpu_s and can_guarantee),
                can_guarantee=can_guarantee,
            )
        for job in [*(each.need.job for each in self.kept.given_up), *self.needs.late]:
            yield self._late(job, changes.gpus.get(job, 0))
        for job, running in self.training_jobs.fixed.items():
            if job in self.could_be:
                continue
            if job in self.needs.held and self.snapshot.profiles[job].deadline_s is not None:
                yield self._late(job, self.needs.has[job])
            else:
                yield stays(self.snapshot, self.speeds, running)

    def _safe_gpu_s(self) -> float:
        """Return how much a training may still need at most to be guaranteed its deadline.

        Where few are there, the one in the middle may be as large as the largest: kept in time, it
        would keep out all that come while it takes the whole cluster.
        """
        if not self.needs.candidates:
            return 0.0
        middle_gpu_s = median(each.whole_gpu_s for each in self.needs.candidates)
        return self.settings.guarantee_below * min(middle_gpu_s, self.speeds.total * TYPICAL_S)

    def _late(self, job: int, gpus: int) -> Forecast:
        profile = self.snapshot.profiles[job]
        end_s = self.speeds.end_s(profile, gpus, self.snapshot.now_s)
        if profile.deadline_s is None:
            return Forecast(job=job, meets=True, end_s=end_s, gpus=gpus)
        why = self._why_late(job)
        return Forecast(job=job, meets=False, end_s=end_s, gpus=gpus, why=why, firm=False)


def _left_alone(training_jobs: TrainingJobs, since_s: float) -> TrainingJobs:
    """Return the training jobs; those started or moved after a time keep what they have."""
    movable = dict(training_jobs.movable)
    fixed = dict(training_jobs.fixed)
    for job, running in training_jobs.movable.items():
        if running.starting or running.started_s > since_s:
            fixed[job] = movable.pop(job)
    return structs.replace(training_jobs, movable=movable, fixed=dict(sorted(fixed.items())))
