"""What a site may choose about the policy."""

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """What a site may choose.

    Attributes:
        reserve: part of the GPUs that is kept for trainings still to come, once not everything that
            is there can be in time; 0 to below 1. Without, GPU time goes into large trainings that
            are given up when smaller ones arrive.
        reserve_after_s: from when on they are kept; nearer than that nobody gains by it.
        promise: a training is promised its deadline once what it still needs is at most this part
            of what a training needs, in the middle. Then giving it up would gain little; so a
            promise is never broken for others. Infinite: all are promised what is expected of them
            at once, at the cost of deadlines of those that come later. 0: nothing is promised.
        grow_gain: a running training is given more GPUs than it needs if it then ends within at
            most this part of the time, with the cost of the change; 0 to 1.
        hold_s: so long a training that was started or moved is left alone; seconds. It also keeps a
            plan from being undone by the next one at the same moment.
        steps, steps_least: of the plan ahead, for few trainings and for many; a round costs in
            proportion.
    """

    reserve: float = 0.3
    reserve_after_s: float = 3600.0
    promise: float = 0.25
    grow_gain: float = 0.95
    hold_s: float = 30.0
    steps: int = 64
    steps_least: int = 24

    def __post_init__(self) -> None:
        """Raise ValueError where a number makes no sense."""
        if not 0 <= self.reserve < 1:
            raise ValueError(f"reserve is {self.reserve}: it must be from 0 to below 1")
        if min(self.reserve_after_s, self.promise, self.hold_s) < 0:
            raise ValueError(f"reserve_after_s, promise and hold_s must not be below 0: {self}")
        if not 0 <= self.grow_gain <= 1:
            raise ValueError(f"grow_gain is {self.grow_gain}: it must be from 0 to 1")
        if not 2 <= self.steps_least <= self.steps:
            raise ValueError(
                f"there must be 2 steps or more, and at most as many as for few: {self}"
            )
