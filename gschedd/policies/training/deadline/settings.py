"""What a site may choose about the policy."""

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """What a site may choose.

    Attributes:
        reserve_share: part of the GPUs that is kept for trainings still to come, once not
            everything that is there can be in time; 0 to below 1. Without, GPU time goes into large
            trainings that are given up when smaller ones arrive.
        reserve_after_s: from when on they are kept; nearer than that nobody gains by it.
        guarantee_below: a training is promised its deadline once what it still needs is at most
            this part of what a training needs, in the middle, or of what the cluster does in four
            hours if that is less. Then giving it up would gain little; so a promise is never broken
            for others. Infinite: all are promised what is expected of them at once, at the cost of
            deadlines of those that come later. 0: nothing is promised.
        grow_below: a running training is given more GPUs than it needs if it then ends within at
            most this part of the time, with the cost of the change; 0 to 1.
        hold_s: so long a training that was started or moved is left alone; seconds. It also keeps a
            plan from being undone by the next one at the same moment.
        steps_max, steps_min: of the plan ahead, for few trainings and for many; a round costs in
            proportion.
    """

    reserve_share: float = 0.3
    reserve_after_s: float = 3600.0
    guarantee_below: float = 0.25
    grow_below: float = 0.95
    hold_s: float = 30.0
    steps_max: int = 64
    steps_min: int = 24

    def __post_init__(self) -> None:
        """Raise ValueError where a number makes no sense."""
        if not 0 <= self.reserve_share < 1:
            raise ValueError(f"reserve_share is {self.reserve_share}: it must be from 0 to below 1")
        if min(self.reserve_after_s, self.guarantee_below, self.hold_s) < 0:
            raise ValueError(
                f"reserve_after_s, guarantee_below and hold_s must not be below 0: {self}"
            )
        if not 0 <= self.grow_below <= 1:
            raise ValueError(f"grow_below is {self.grow_below}: it must be from 0 to 1")
        if not 2 <= self.steps_min <= self.steps_max:
            raise ValueError(f"steps_min must be from 2 to steps_max: {self}")
