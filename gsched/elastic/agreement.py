"""How all ranks stop at the same step without slowing down the steps between.

Now and then, at a step that all ranks know, each begins to exchange whether it wants a checkpoint,
and looks at the outcome when it is time for the next exchange; by then it has long arrived, beside
the training's own messages. The exchange also carries how long a step takes on the slowest rank, so
that all ranks know the step of the next one.
"""

from collections.abc import Callable

from gsched.elastic.ranks import Pending, Ranks

#: Between two exchanges. A wish is heard after one and a half of it on average, while the training
#: goes on; an exchange takes each rank about 0.1 ms, five times that on a machine that is busy with
#: other things, so a thousandth of the time at most.
PERIOD_S = 0.5
STEPS_MAX = 1000  # were steps suddenly slower by far, a wish would still be heard some day


class Agreement:
    """Turns the wish of any rank into a decision of all, at a step boundary."""

    def __init__(self, ranks: Ranks, first_step: int) -> None:
        self._ranks = ranks
        self._next = first_step
        self._pending: Pending | None = None

    def at(self, step: int, wants: Callable[[], bool], step_s: float) -> bool:
        """Return whether all ranks do now, after ``step``, what one of them wished.

        Args:
            step: the step just done; the same sequence of steps on all ranks.
            wants: asked only when an exchange begins.
            step_s: what a step takes on this rank, seconds.
        """
        if step < self._next:
            return False
        if self._ranks.is_alone:
            self._next = step + _stride(step_s)
            return wants()
        stride = 1
        if self._pending is not None:
            wish, step_us = self._pending.result()
            self._pending = None
            stride = _stride(step_us / 1e6)
            if wish:
                self._next = step + 1
                return True
        self._next = step + stride
        self._pending = self._ranks.greatest((int(wants()), round(step_s * 1e6)))
        return False

    def close(self) -> None:
        """Wait for an exchange under way: its messages must not be lost with a process group."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None


def _stride(step_s: float) -> int:
    return max(1, min(STEPS_MAX, int(PERIOD_S / max(step_s, 1e-6))))
