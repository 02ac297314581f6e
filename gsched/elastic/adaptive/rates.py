"""The learning rate follows the batch while an optimiser does its step, and at no other time.

Schedules, checkpoints and the script see the rate as it is for the tuned batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gsched.elastic.adaptive.noise import Noise
from gsched.elastic.adaptive.options import Rule

if TYPE_CHECKING:
    from torch.optim import Optimizer


def rule_for(optimizers: Sequence[Optimizer]) -> Rule:
    """Return the rule that the optimisers' kind asks for."""
    from torch.optim import SGD

    is_sgd = all(isinstance(optimizer, SGD) for optimizer in optimizers)
    return Rule.ADASCALE if is_sgd else Rule.SQUARE_ROOT


def factor(rule: Rule, ratio: float, noise: Noise | None) -> float:
    """Return what the tuned learning rate is multiplied with.

    Args:
        rule: which.
        ratio: of the batch to the tuned one; up to 1 the rate stays.
        noise: gradient statistics; None: not known yet.
    """
    if ratio <= 1.0:
        return 1.0
    match rule:
        case Rule.ADASCALE:
            return noise.gain(ratio) if noise is not None else 1.0
        case Rule.SQUARE_ROOT:
            return math.sqrt(ratio)
        case Rule.LINEAR:
            return ratio
        case Rule.NONE:
            return 1.0


class Rates:
    """Multiplies the learning rates of optimisers.

    Args:
        optimizers: whose.
        factor: returns with what, whenever one of them does a step.
    """

    def __init__(self, optimizers: Sequence[Optimizer], factor: Callable[[], float]) -> None:
        self._factor = factor
        self._tuned: dict[int, list[Any]] = {}
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    def _before(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        self._give_back(optimizer)  # where its last step has raised
        factor = self._factor()
        if factor == 1.0:
            return
        self._tuned[id(optimizer)] = [_copied(group["lr"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            _set(group, group["lr"] * factor)

    def _after(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        self._give_back(optimizer)

    def _give_back(self, optimizer: Optimizer) -> None:
        tuned = self._tuned.pop(id(optimizer), None)
        for group, rate in zip(optimizer.param_groups, tuned or (), strict=False):
            _set(group, rate)


def _copied(rate: Any) -> Any:
    return rate.clone() if hasattr(rate, "clone") else rate


def _set(group: dict[str, Any], rate: Any) -> None:
    """Set a learning rate; one that is a tensor stays the same tensor."""
    if hasattr(group["lr"], "copy_"):
        group["lr"].copy_(rate)
    else:
        group["lr"] = rate
