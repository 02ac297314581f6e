"""How long steps take, and how much of it the ranks spend on talking to each other."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gsched.elastic.plain import distributed_parts

if TYPE_CHECKING:
    from torch import nn

_SMOOTHING = 0.2  # of a step's weight in the mean that paces the agreement


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """What steps have taken since this was told last.

    Attributes:
        step_s: mean of a step, seconds; 0: there was none.
        communication_s: see `communication_s`.
        gradient_bytes: see `gradient_bytes`.
    """

    step_s: float
    communication_s: float
    gradient_bytes: int


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
    it samples (the first ten, then every hundredth). Of several models it is the sum.
    """
    nanoseconds = 0.0
    for part in distributed_parts(model):
        logged = part._get_ddp_logging_data()  # noqa: SLF001 - told nowhere else
        nanoseconds += float(logged.get("avg_backward_comm_time", 0))
    return nanoseconds / 1e9


def gradient_bytes(model: nn.Module) -> int:
    """Return how many bytes of gradients a rank has to share with the others in each step.

    0 for models whose parameters are not simply tensors of this rank (FSDP): they share otherwise.
    """
    from torch import nn

    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not all(type(parameter) is nn.Parameter for parameter in wanted):
        return 0
    return sum(parameter.numel() * parameter.element_size() for parameter in wanted)
