"""Takes squared norms of gradients while they are computed, before and after ranks share them.

In steps that are watched, a hook on each parameter sees the gradient of one backward pass, before
it is added to what is there and before DistributedDataParallel shares it. When the pass has ended,
and DistributedDataParallel has taken the mean over the ranks, the sums are in ``grad``. Nothing
waits for the device: norms stay there until `StepRecord.norms` reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gsched.elastic.adaptive.noise import Norms

if TYPE_CHECKING:
    from torch import Tensor, nn


class Marks:
    """Points in time on the device of a model: when what was begun before them has ended."""

    def __init__(self, device: Any) -> None:
        self._is_cuda = device.type == "cuda"

    def now(self) -> Any:
        """Return a mark of now; of a GPU, of when it comes to what is asked of it next."""
        if not self._is_cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks; waits for the second."""
        if not self._is_cuda:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


@dataclass(slots=True)
class StepRecord:
    """What was seen of a step; tensors are on their device.

    Attributes:
        locals: squared norm of the gradient of each micro-batch of this rank, without its weight.
        mean: squared norm of the mean of all gradients; None: it was not seen.
        pair: of this and the last step, with one gradient each: mean squared norm, and that of
            their mean; None: there is none.
        computed, synchronised: marks of the last micro-batch; None: it was not seen.
        steps: for which the norms stand.
        is_whole: each micro-batch had one backward pass.
    """

    locals: list[Tensor] = field(default_factory=list)
    mean: Tensor | None = None
    pair: tuple[Tensor, Tensor] | None = None
    computed: Any = None
    synchronised: Any = None
    steps: int = 1
    is_whole: bool = True

    def norms(self, replicas: int) -> Norms | None:
        """Return the norms, with this rank's as the local ones; None: not of this step.

        Of a model that is split, they are those of this rank's part.

        Args:
            replicas: of the model, each with gradients of its own.
        """
        import torch

        if not self.is_whole:
            return None
        if self.pair is not None:
            local, mean = torch.stack(self.pair).tolist()
            return Norms(local=local, mean=mean, count=2, batches=2, steps=2)
        count = len(self.locals) * replicas
        if self.mean is None or count < 2:
            return None
        *found, mean = torch.stack([*self.locals, self.mean]).tolist()
        return Norms(local=sum(found) / len(found), mean=mean, count=count, steps=self.steps)


class GradientNorms:
    """Watches the backward passes of a model.

    Args:
        model: parameters are simply tensors of this rank.
        scale: returns what losses are multiplied with now.
        marks: of the model's device.
    """

    def __init__(self, model: nn.Module, scale: Callable[[], float], marks: Marks) -> None:
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._scale = scale
        self._marks = marks
        self._record: StepRecord | None = None
        self._weight = 1.0
        self._is_last = False
        self._with_locals = False
        self._found: list[Tensor] = []  # norms of the pass that is running
        self._hooks: list[Any] = []
        self._is_running = False  # a backward pass
        self._passes = 0
        self._previous: list[Tensor | None] | None = None

    def begin(self, steps: int = 1) -> None:
        """Watch the step that begins now; its norms stand for so many ``steps``."""
        self._record, self._passes = StepRecord(steps=steps), 0
        if not self._hooks:  # else the step before was not ended
            self._hooks = [each.register_hook(self._saw) for each in self._parameters]

    def next_part(self, weight: float, *, is_last: bool, is_only: bool) -> None:
        """Note that the next backward pass is that of a micro-batch.

        Args:
            weight: that its loss is multiplied with.
            is_last: of the step; ranks then share the gradients.
            is_only: there is one gradient in this step, and it is compared with the next step's.
        """
        self._check_passes()
        self._passes = 0
        self._weight, self._is_last, self._with_locals = weight, is_last, not is_only

    def end(self) -> StepRecord | None:
        """Return what was seen since `begin`, and watch no more; None: it was not called."""
        self._check_passes()
        record, self._record = self._record, None
        hooks, self._hooks = self._hooks, []
        for hook in hooks:  # each costs something in every backward pass
            hook.remove()
        return record

    def _check_passes(self) -> None:
        if self._record is not None and self._passes > 1:
            self._record.is_whole = False

    def _saw(self, gradient: Tensor) -> None:
        """See a gradient of the pass that is running."""
        if self._record is None:
            return
        if not self._is_running:
            self._is_running = True
            self._passes += 1
            _when_passed(self._computed)
        if self._with_locals:
            self._found.append(norm(gradient))

    def _computed(self) -> None:
        """See the end of a pass, before the ranks have shared its gradients."""
        self._is_running = False
        found, self._found = self._found, []
        if self._record is None:
            return
        if found and self._weight > 0:
            factor = (self._weight * self._scale()) ** 2
            self._record.locals.append(squared(found) / factor)
        if self._is_last:
            self._record.computed = self._marks.now()
            _when_passed(self._synchronised)  # later than what DistributedDataParallel has asked

    def _synchronised(self) -> None:
        """See the gradients that the optimiser is going to use."""
        record = self._record
        if record is None:
            return
        record.synchronised = self._marks.now()
        scale = self._scale()
        gradients = [parameter.grad for parameter in self._parameters]
        if self._with_locals:
            record.mean = total_of(gradients) / scale**2
        else:
            record.pair = self._paired(gradients, scale)

    def _paired(
        self, gradients: Sequence[Tensor | None], scale: float
    ) -> tuple[Tensor, Tensor] | None:
        """Compare with the gradients of the last step, every second time; else keep them."""
        import torch

        previous, self._previous = self._previous, None
        if previous is None:
            self._previous = [
                None
                if each is None
                else each.detach().to_dense() / scale
                if each.is_sparse
                else each.detach() / scale
                for each in gradients
            ]
            return None
        old, new, product = [], [], []
        for before, now in zip(previous, gradients, strict=True):
            if before is None or now is None:
                old += [] if before is None else [norm(before)]
                new += [] if now is None else [norm(now)]
                continue
            after = now.detach().to_dense() if now.is_sparse else now.detach()
            old.append(norm(before))
            new.append(norm(after))
            product.append(torch.dot(before.float().reshape(-1), after.float().reshape(-1)))
        squares = (squared(old) + squared(new) / scale**2) / 2
        return squares, squares / 2 + total(product) / scale / 2


def norm(gradient: Tensor) -> Tensor:
    """Return the norm of a gradient, a scalar of 32 bits on its device."""
    import torch

    found = gradient.detach()
    if found.is_sparse:
        found = found.coalesce().values()
    return torch.linalg.vector_norm(found, dtype=torch.float32)


def squared(norms: Sequence[Tensor]) -> Tensor:
    """Return the sum of the squares of norms, on the device of the first."""
    return together(norms).square().sum()


def total(scalars: Sequence[Tensor]) -> Tensor:
    """Return the sum of scalars, on the device of the first."""
    return together(scalars).sum()


def together(scalars: Sequence[Tensor]) -> Tensor:
    """Return scalars as one tensor, on the device of the first."""
    import torch

    if not scalars:
        return torch.zeros(1)
    return torch.stack([each.to(scalars[0].device) for each in scalars])


def total_of(gradients: Iterable[Tensor | None]) -> Tensor:
    """Return the squared norm of all gradients together."""
    return squared([norm(each) for each in gradients if each is not None])


def _when_passed(act: Callable[[], None]) -> None:
    """Let something be done when the running backward pass has ended, after what was asked before.

    It is what FullyShardedDataParallel does for the same end.
    """
    from torch.autograd import Variable

    Variable._execution_engine.queue_callback(act)  # noqa: SLF001 - torch has no other way
