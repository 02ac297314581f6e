"""How long steps take, and how much of it the ranks spend on talking to each other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_SMOOTHING = 0.2  # of a step's weight in the mean that paces the agreement


class StepTimer:
    """The time from one step's end to the next one's, without what checkpoints take.

    Attributes:
        step_s: smoothed, seconds; 0 before the first step.
    """

    def __init__(self) -> None:
        self.step_s = 0.0
        self._resumed_s: float | None = None
        self._since_report_s = 0.0
        self._steps = 0

    def begin(self) -> None:
        """Note that the next step begins now."""
        self._resumed_s = time.perf_counter()

    def end(self) -> float:
        """Note that a step has ended, and the next one begins; return the current time."""
        now_s = time.perf_counter()
        if self._resumed_s is not None:
            step_s = now_s - self._resumed_s
            self._since_report_s += step_s
            self._steps += 1
            self.step_s = (
                self.step_s + _SMOOTHING * (step_s - self.step_s) if self.step_s else step_s
            )
        self._resumed_s = now_s
        return now_s

    def mean_since_report(self) -> float:
        """Return the mean time of a step since this was called last, seconds; 0: no step."""
        mean_s = self._since_report_s / self._steps if self._steps else 0.0
        self._since_report_s, self._steps = 0.0, 0
        return mean_s


def communication_s(model: nn.Module) -> float:
    """Return how long the gradients of a step travel, seconds; 0 where nobody measures it.

    It is DistributedDataParallel's own figure: from the start of the first bucket's all-reduce to
    the end of the last one's, what runs beside the backward pass included, mean over the steps that
    it samples (the first ten, then every hundredth).
    """
    logged = getattr(model, "_get_ddp_logging_data", None)
    if logged is None:
        return 0.0
    return float(logged().get("avg_backward_comm_time", 0)) / 1e9
