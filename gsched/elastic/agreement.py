"""When checkpoints are made, and how all ranks stop at the same step without slowing down.

Now and then, at a step that all ranks know, each begins to exchange whether it wants a checkpoint,
and looks at the outcome when it is time for the next exchange; by then it has long arrived, beside
the training's own messages. The exchange also carries how long a step takes on the slowest rank, so
that all ranks know the step of the next one.
"""

import math
from collections.abc import Callable
from enum import IntEnum

from gsched.elastic.ranks import Pending, Ranks

#: GPU-hours between two failures that end a training. 419 unexpected interruptions in 54 days on
#: 16,384 GPUs are one in 50,678 (Llama Team, "The Llama 3 Herd of Models", arXiv:2407.21783,
#: section 3.3.4, 2024).
GPU_HOURS_BETWEEN_FAILURES = 50_678.0
#: However seldom machines fail, people interrupt more often than that: an hour is what a training
#: loses at most when somebody pulls a plug.
INTERVAL_MAX_S = 3600.0
INTERVAL_MIN_S = 30.0
#: Before a checkpoint has been measured. A training that ends sooner saves nothing unasked.
FIRST_INTERVAL_S = 300.0
#: Between two exchanges. A wish is heard after one and a half of it on average, while the training
#: goes on; an exchange takes each rank about 0.1 ms, five times that on a machine that is busy with
#: other things, so a thousandth of the time at most.
PERIOD_S = 0.5
STEPS_MAX = 1000  # were steps suddenly slower by far, a wish would still be heard some day


class CheckpointWish(IntEnum):
    """What a rank wants; the greatest wish counts for all.

    MOVE is a checkpoint that processes wait for, with an early copy before it; COPYING says that a
    rank still writes its part of that copy.
    """

    NOTHING = 0
    MOVE = 1
    COPYING = 2
    CHECKPOINT = 3


class Agreement:
    """Turns the wishes of ranks into a decision of all, at a step boundary."""

    def __init__(self, ranks: Ranks, first_step: int) -> None:
        self._ranks = ranks
        self._next = first_step
        self._pending: Pending | None = None

    def at(
        self, step: int, wants: Callable[[], CheckpointWish], step_s: float
    ) -> CheckpointWish | None:
        """Return the greatest wish of all ranks; None: it is not known after this ``step``.

        Args:
            step: the step just done; the same sequence of steps on all ranks.
            wants: asked only when an exchange begins.
            step_s: what a step takes on this rank, seconds.
        """
        if step < self._next:
            return None
        if self._ranks.is_alone:
            wish = wants()
            self._next = step + (1 if wish else _stride(step_s))
            return wish
        stride = 1
        found = None
        if self._pending is not None:
            number, step_us = self._pending.result()
            self._pending = None
            stride = _stride(step_us / 1e6)
            found = CheckpointWish(number)
            if found:
                self._next = step + 1
                return found
        self._next = step + stride
        self._pending = self._ranks.greatest((int(wants()), round(step_s * 1e6)))
        return found

    def close(self) -> None:
        """Wait for an exchange under way: its messages must not be lost with a process group."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None


def _stride(step_s: float) -> int:
    return max(1, min(STEPS_MAX, int(PERIOD_S / max(step_s, 1e-6))))


def checkpoint_interval_s(cost_s: float | None, world_size: int) -> float:
    """Return the seconds of work between two checkpoints that loses the least time.

    Args:
        cost_s: time that a checkpoint takes from the training, seconds; None: not known yet.
        world_size: ranks, one GPU each.

    Returns:
        ``sqrt(2 * cost_s * M)``, where M is the mean time between failures of all the GPUs
        together, between 30 s and an hour; 300 s where the cost is not known.

    Source:
        J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
        17(9):530-531, 1974; its condition, that the cost is small beside M, and the higher orders:
        J. T. Daly, FGCS 22(3):303-312, 2006. We leave the higher orders out: at a cost of a
        hundredth of M they change the interval by 5 %, and the time lost by less than 0.1 %.
    """
    if cost_s is None:
        return FIRST_INTERVAL_S
    between_failures_s = GPU_HOURS_BETWEEN_FAILURES * 3600.0 / max(world_size, 1)
    best_s = math.sqrt(2.0 * max(cost_s, 0.0) * between_failures_s)
    return min(max(best_s, INTERVAL_MIN_S), INTERVAL_MAX_S)
