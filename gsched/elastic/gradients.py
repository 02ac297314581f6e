"""Which gradients a checkpoint has to hold: those that no optimiser has used yet.

Most scripts come to `Training.step` with gradients that were used and will be thrown away. One that
accumulates them over several batches comes there with gradients that belong to the next step of the
optimiser, on each rank its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

_MARKS_MAX = 8  # parameters looked at after each step: a microsecond each

Gradients = dict[str, "Tensor | None"]  # by parameter; None: all zero


@dataclass(frozen=True, slots=True)
class _Mark:
    """A gradient as it was just after the optimiser's step."""

    parameter: Tensor
    gradient: weakref.ref[Tensor]
    version: int

    def stands(self) -> bool:
        """Return whether nothing was added to it since, and it was not set to zero."""
        gradient = self.gradient()
        if gradient is None or self.parameter.grad is not gradient:
            return False
        return bool(gradient._version == self.version)  # noqa: SLF001 - torch's count of changes


class GradientWatch:
    """Notes when optimisers do their steps."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self._marks: dict[int, list[_Mark]] = {}
        for optimizer in self._optimizers:
            optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        found: list[_Mark] = []
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                found.append(_Mark(parameter, weakref.ref(gradient), gradient._version))  # noqa: SLF001 - see above
                if len(found) == _MARKS_MAX:
                    break
        self._marks[id(optimizer)] = found

    def _has_used(self, optimizer: Optimizer) -> bool:
        marks = self._marks.get(id(optimizer))
        return bool(marks) and all(mark.stands() for mark in marks or ())

    def any_unused(self) -> bool:
        """Return whether there are gradients that belong to a step of an optimiser to come."""
        return any(
            parameter.grad is not None
            for optimizer in self._optimizers
            if not self._has_used(optimizer)
            for parameter in _parameters(optimizer)
        )

    def in_buckets(self) -> bool:
        """Return whether a gradient lies in a storage with others: in a model's bucket."""
        return any(
            not gradient.is_sparse and gradient.untyped_storage().nbytes() > gradient.nbytes
            for optimizer in self._optimizers
            for parameter in _parameters(optimizer)
            if (gradient := parameter.grad) is not None
        )

    def collect(self, known: Mapping[Tensor, str]) -> Gradients:
        """Return the gradients that there are.

        Those that were used count as zero: where they are not thrown away but set to zero, their
        being there matters.

        Args:
            known: the names of the parameters.
        """
        found: Gradients = {}
        for optimizer in self._optimizers:
            used = self._has_used(optimizer)
            for parameter in _parameters(optimizer):
                gradient = parameter.grad
                if gradient is None or (used and gradient.is_sparse):
                    continue
                zero = used or (not gradient.is_sparse and not bool(gradient.any()))
                found[known[parameter]] = None if zero else gradient.detach()
        return found


def give_back(gradients: Gradients, known: Mapping[Tensor, str]) -> None:
    """Give parameters the gradients that `GradientWatch.collect` has returned.

    Where there is one already, it is written in place: it may lie in a bucket.
    """
    import torch

    for parameter, name in known.items():
        if name not in gradients:
            parameter.grad = None
            continue
        gradient = gradients[name]
        present = parameter.grad
        if present is not None and (gradient is None or not gradient.is_sparse):
            present.copy_(0.0 if gradient is None else gradient)
        elif gradient is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad = gradient.to(parameter.device, copy=True)


def mean(all_ranks: Sequence[Gradients]) -> Gradients:
    """Return for each parameter the mean of the gradients that ranks have saved.

    With it on any number of ranks, the mean over ranks that DistributedDataParallel takes is what
    it would have been.
    """
    import torch

    found: Gradients = {}
    for name in dict.fromkeys(name for gradients in all_ranks for name in gradients):
        parts = [gradients.get(name) for gradients in all_ranks]
        there = [part for part in parts if part is not None]
        if not there:
            found[name] = None
        elif len(there) == len(parts) and all(torch.equal(there[0], part) for part in there):
            found[name] = there[0]
        else:
            total = there[0].clone()
            for part in there[1:]:
                total += part
            found[name] = total / len(parts)
    return found


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
