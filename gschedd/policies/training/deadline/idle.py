"""What is done with GPUs that nobody needs for a deadline."""

import heapq
from collections.abc import Callable, Iterable

from gschedd.plan.training import TrainingProfile
from gschedd.policies.training.deadline.needs import Needs


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
