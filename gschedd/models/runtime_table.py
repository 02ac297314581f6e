"""Speed of a training from what was measured: iterations a second by number of GPUs."""

from bisect import bisect_left

from msgspec import Struct

from gsched.model.training import Training
from gschedd.plan.training import Layout


class TableSpeed(Struct, frozen=True, kw_only=True, cache_hash=True, tag="table"):
    """Iterations a second on some numbers of GPUs, the global batch being the same on all of them.

    Between two numbers that were measured the rate is on the straight line between theirs; below
    the smallest one it is in proportion to the number. Beyond the largest one, and next to one on
    which the training could not run, nothing is known, and the rate is 0. Where the GPUs are makes
    no difference, how fast they are does.

    Attributes:
        rates: pairs (GPUs, iterations a second), by GPUs, each number once; a rate of 0 says that
            the training cannot run on that number.
    """

    rates: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """Raise ValueError where the table cannot be one."""
        counts = [count for count, _ in self.rates]
        if not counts or counts != sorted(set(counts)) or counts[0] < 1:
            raise ValueError(f"numbers of GPUs must be 1 or more and ascend: {counts}")
        if not all(0 <= rate < float("inf") for _, rate in self.rates):
            raise ValueError(f"rates must be 0 or more and finite: {self.rates}")

    @classmethod
    def of(cls, training: Training) -> "TableSpeed":
        """Return the speed that was measured of a training.

        Raises:
            ValueError: it says nothing of its rates, or contradicts itself.
        """
        return cls(rates=tuple(sorted(training.rates)))

    def rate(self, layout: Layout) -> float:
        """Return iterations a second; 0 where the training cannot run or nothing is known."""
        return self.at(layout.gpus) * layout.device

    def at(self, gpus: int) -> float:
        """Return iterations a second on so many of the GPUs that were measured."""
        index = bisect_left(self.rates, (gpus, 0.0))
        if index == len(self.rates):
            return 0.0
        count, rate = self.rates[index]
        if count == gpus:
            return rate
        if index == 0:
            return rate * gpus / count
        before, slower = self.rates[index - 1]
        if not (rate and slower):
            return 0.0
        return slower + (rate - slower) * (gpus - before) / (count - before)
