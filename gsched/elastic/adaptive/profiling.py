"""How long forward and backward passes take with other batch sizes, and which fit into memory.

What the model was called with in a real micro-batch is cut or repeated along its batch dimension;
the gradients are thrown away. Model, optimiser, gradients, random numbers and the position in the
data are afterwards as they were, in every bit.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gsched.elastic import buffers, plain
from gsched.elastic.generators import generators_state, restore_generators
from gsched.elastic.stateful import Stateful

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Of a profile, on all GPUs together (GPU-seconds; Sia's take less than 20); a batch size begins
#: only if it is expected to end before.
BUDGET_S = 15.0
SIZES = 10
#: Batch sizes begin at this part of the tuned global batch: as on so many GPUs.
SHARE_MIN = 16
_REPEATS_MAX = 5
_REPEAT_FOR_S = 0.25
_NARROWINGS = 3  # sizes tried between the largest that fitted and the smallest that did not


@dataclass(frozen=True, slots=True)
class Timed:
    """Forward and backward pass of a micro-batch of ``size`` samples."""

    size: int
    gradient_s: float


@dataclass(slots=True)
class BatchProfile:
    """What was measured.

    Attributes:
        times: by size, ascending.
        limit: the largest size that fitted into memory; 0: all did.
        fault: why nothing more was measured; None: there is no reason.
    """

    times: list[Timed] = field(default_factory=list)
    limit: int = 0
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class _PartCall:
    """A call of a part of the model, in a context of mixed precision."""

    module: nn.Module
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    precision: Any  # None: there was none


class Calls:
    """Remembers what a model is called with in a micro-batch.

    Args:
        model: or its parts that DistributedDataParallel has wrapped are called by the script.
        infers: passes are forward only.
    """

    def __init__(self, model: nn.Module, *, infers: bool = False) -> None:
        self.infers = infers
        self._device = next(model.parameters()).device
        self._calls: list[_PartCall] = []
        self.size = 0
        parts = plain.distributed_parts(model)
        self._hooks = [
            outer.register_forward_pre_hook(self._called(inner), with_kwargs=True)
            for outer, inner in ([(part, part.module) for part in parts] or [(model, model)])
        ]

    def begin(self, size: int) -> None:
        """Forget what there is; the next calls are with so many samples."""
        self._calls, self.size = [], size

    def take(self) -> Sequence[_PartCall]:
        """Return the calls, and watch no more."""
        for hook in self._hooks:
            hook.remove()
        return self._calls

    def _called(self, inner: nn.Module) -> Callable[..., None]:
        def called(_module: nn.Module, arguments: Any, options: Any) -> None:
            import torch

            if not torch.is_grad_enabled() and not self.infers:
                return
            kind, precision = self._device.type, None
            if torch.is_autocast_enabled(kind):
                precision = torch.get_autocast_dtype(kind)
            self._calls.append(
                _PartCall(inner, _detached(arguments), _detached(options), precision)
            )

        return called


def sizes_between(tuned: int, batch_max: int) -> list[int]:
    """Return about ten batch sizes for one GPU, ascending, with equal ratios.

    Args:
        tuned: the tuned global batch.
        batch_max: the largest global batch; 0: sixteen times the tuned one.
    """
    most = batch_max or SHARE_MIN * tuned
    least = min(max(2, tuned // SHARE_MIN), most)
    ratio = (most / least) ** (1 / (SIZES - 1))
    return sorted({round(least * ratio**number) for number in range(SIZES)})


def profile(
    model: nn.Module,
    calls: Calls,
    sizes: Sequence[int],
    generators: Sequence[Stateful] = (),
    budget_s: float = BUDGET_S,
) -> BatchProfile:
    """Measure passes of these sizes until they would take too long or do not fit.

    Args:
        model: as it is trained.
        calls: of one of its micro-batches.
        sizes: ascending.
        generators: random number generators that it may use beside those of the process.
        budget_s: for all, seconds.
    """
    watched = calls.take()
    if not watched:
        return BatchProfile(fault="the model was not called: elastic.start() got another one")
    with _unchanged(model, generators):
        parameters = [each for each in model.parameters() if each.requires_grad or calls.infers]
        passes = _Passes(watched, calls.size, parameters, infers=calls.infers)
        found = _measured(passes, sizes, time.perf_counter() + budget_s)
    _release_memory()
    return found


def _measured(passes: _Passes, sizes: Sequence[int], until_s: float) -> BatchProfile:
    found = BatchProfile()
    try:
        for size in sizes:
            if time.perf_counter() + _expected_s(found.times, size) > until_s:
                break
            timed = passes.timed(size, is_first=not found.times)
            if timed is None:
                found.limit = _limit(passes, found.times, size)
                break
            found.times.append(timed)
    except Exception as error:  # noqa: BLE001 - a model may raise anything; the training goes on
        found.fault = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return found


def _limit(passes: _Passes, times: list[Timed], too_large: int) -> int:
    """Return the largest size that is known to fit, after a few more; they are added to times."""
    fits = times[-1].size if times else 0
    for _ in range(_NARROWINGS if fits else too_large.bit_length()):
        size = round(math.sqrt(fits * too_large)) if fits else too_large // 2
        if not fits < size < too_large:
            break
        timed = passes.timed(size, is_first=not times)
        if timed is None:
            too_large = size
        else:
            times.append(timed)
            fits = size
    return fits


def _expected_s(times: Sequence[Timed], size: int) -> float:
    """Return what measuring a size will take, from what the sizes before it took, seconds."""
    if not times:
        return 0.0
    last = times[-1]
    one_s = last.gradient_s * size / last.size  # or less: it has a constant part
    return one_s + max(one_s, min(_REPEAT_FOR_S, _REPEATS_MAX * one_s))


class _Passes:
    """Does forward and backward passes whose gradients nobody gets."""

    def __init__(
        self,
        calls: Sequence[_PartCall],
        size: int,
        parameters: Sequence[nn.Parameter],
        *,
        infers: bool,
    ) -> None:
        self._infers = infers
        self._calls = calls
        self._size = size
        self._parameters = parameters

    def timed(self, size: int, *, is_first: bool) -> Timed | None:
        """Return the time of a pass after one to warm up; None: it does not fit into memory."""
        inputs = None
        try:
            inputs = [
                _resized((call.arguments, call.options), self._size, size) for call in self._calls
            ]
            if is_first:
                self._pass_s(inputs)
            warm_s = self._pass_s(inputs)
            repeats = max(1, min(_REPEATS_MAX, int(_REPEAT_FOR_S / max(warm_s, 1e-6))))
            times_s = [self._pass_s(inputs) for _ in range(repeats)]
            return Timed(size, statistics.median(times_s))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # its frames hold what did not fit
        inputs = None
        _release_memory()
        return None

    def _pass_s(self, inputs: Sequence[tuple[Any, Any]]) -> float:
        """Return the time of a pass, seconds."""
        import torch

        wait_for_device()
        began_s = time.perf_counter()
        losses = []
        for call, (arguments, options) in zip(self._calls, inputs, strict=True):
            device, is_mixed = self._parameters[0].device.type, call.precision is not None
            with (
                torch.autocast(device, dtype=call.precision, enabled=is_mixed),
                torch.set_grad_enabled(not self._infers),
            ):
                output = call.module(*arguments, **options)
                if not self._infers:
                    losses.append(loss_of(output))
        if not self._infers:
            loss = torch.stack([each.reshape(()).float() for each in losses]).sum()
            torch.autograd.grad(loss, self._parameters, allow_unused=True)
        wait_for_device()
        return time.perf_counter() - began_s


def loss_of(output: Any) -> Tensor:
    """Return a number that depends on all that a model has returned, or its own loss.

    Raises:
        ValueError: there is nothing to differentiate.
    """
    from torch import Tensor
    from torch.utils import _pytree as trees

    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad:
        return own.mean()
    tensors = [
        each
        for each in trees.tree_leaves(output)
        if isinstance(each, Tensor) and each.requires_grad
    ]
    if not tensors:
        raise ValueError(f"the model returns no tensor with a gradient: {type(output).__name__}")
    return sum((each.float().mean() for each in tensors[1:]), tensors[0].float().mean())


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory did not suffice, on a GPU or elsewhere."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(
        each in words for each in ("out of memory", "alloc_failed", "can't allocate memory")
    )


@contextmanager
def _unchanged(model: nn.Module, generators: Sequence[Stateful]) -> Iterator[None]:
    """Leave buffers and random number generators as they were."""
    names = plain.PlainNames(model)
    held, transient = buffers.buffers_of(model, names)
    saved = {name: None if each is None else each.clone() for name, each in held.items()}
    process, others = generators_state(), [each.state_dict() for each in generators]
    try:
        yield
    finally:
        buffers.give_back(model, names, saved, transient, strict=False)
        restore_generators(process)
        for generator, state in zip(generators, others, strict=True):
            generator.load_state_dict(state)


def _detached(value: Any) -> Any:
    from torch import Tensor
    from torch.utils import _pytree as trees

    return trees.tree_map(lambda each: each.detach() if isinstance(each, Tensor) else each, value)


def _resized(value: Any, size: int, wanted: int) -> Any:
    """Return arguments with another number of samples.

    The batch dimension is the first one of that size, and the same for all tensors; those without
    it stay.
    """
    import torch
    from torch.utils import _pytree as trees

    shapes = [each.shape for each in trees.tree_leaves(value) if isinstance(each, torch.Tensor)]
    places = [tuple(shape).index(size) for shape in shapes if size in shape]
    place = min(places, default=0)

    def resized(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or each.shape[place : place + 1] != (size,):
            return each
        chosen = torch.arange(wanted, device=each.device) % size
        return each.index_select(place, chosen)

    return trees.tree_map(resized, value)


def wait_for_device() -> None:
    """Return when the current GPU, if one is in use, has done all its work."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
