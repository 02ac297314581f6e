"""What a rank does in each step: its micro-batches, and whether their gradients are compared."""

from __future__ import annotations

from dataclasses import dataclass

from gsched.elastic.adaptive.batches import BatchPart, is_regular, split
from gsched.elastic.adaptive.options import Alone

#: What is rare in a training is done in each of so many first steps, too.
FIRST_STEPS = 10
#: Gradients are measured so often: it takes about 8 % of a step of 15 ms, see
#: scripts/bench/adaptive_overhead.
MEASURED_EVERY = 5
#: A step on one rank without accumulation is done in two halves so often.
HALVES_EVERY = 20


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step of this rank.

    Attributes:
        offset: samples of the epoch before it.
        parts: its micro-batches.
        stands_for: steps for which its gradient norms stand; 0: they say nothing.
    """

    offset: int
    parts: list[BatchPart]
    stands_for: int


@dataclass(frozen=True, slots=True)
class StepPlanner:
    """Plans steps.

    Attributes:
        rank, world_size: of this process, and how many there are.
        alone: how gradients are compared where there is one in a step; None: they are not measured.
    """

    rank: int
    world_size: int
    alone: Alone | None

    def plan(self, step: int, offset: int, size: int, per_gpu: int) -> StepPlan:
        """Return a step.

        Args:
            step: its number, from 1.
            offset: samples of the epoch before it.
            size: its samples over all ranks.
            per_gpu: the most samples of a micro-batch.
        """
        stands_for = 0
        if self.alone is not None and is_regular(size, self.world_size, per_gpu):
            if self.world_size > 1 or size > per_gpu:
                stands_for = _stands_for(step, MEASURED_EVERY)
            elif self.alone is Alone.DIFFERENCES:
                stands_for = 1  # the next step's gradient is needed, too
            elif size > 1:
                stands_for = _stands_for(step, HALVES_EVERY)
                per_gpu = -(-size // 2) if stands_for else per_gpu
        parts = split(size, offset, self.rank, self.world_size, per_gpu)
        return StepPlan(offset=offset, parts=parts, stands_for=stands_for)


def _stands_for(step: int, every: int) -> int:
    """Return the steps for which what is done in a step stands; 0: it is not done there."""
    if not is_due(step, every):
        return 0
    return 1 if step <= FIRST_STEPS else every


def is_due(step: int, every: int) -> bool:
    """Return whether what is done every so many steps, and in the first ones, is done in a step."""
    return step <= FIRST_STEPS or step % every == 0
