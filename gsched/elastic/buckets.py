"""Gives DistributedDataParallel its final buckets before the first step, in every attempt alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def settle_buckets(model: nn.Module, world_size: int) -> None:
    """Let the model, if it is a DistributedDataParallel, lay its gradients out for good.

    It puts gradients into buckets in the order of the parameters for one step, and from the second
    on in the order in which gradients became ready in the first. A sum over more than two ranks is
    rounded differently in another place of a bucket, so a training that is restored, whose first
    step is not the first of all, would differ in the last bits from one that was never stopped.

    Here a step is pretended whose gradients are zero and become ready from the last parameter to
    the first. No parameter is changed. Called by all ranks.
    """
    from torch.nn.parallel import DistributedDataParallel

    # Of two numbers, the order in which they are added does not matter.
    if not isinstance(model, DistributedDataParallel) or world_size <= 2:
        return
    if model.static_graph or _has_sparse_gradients(model):
        return  # the first step is taken for what all will be, or has gradients of another kind
    if not hasattr(model, "_run_ddp_forward"):  # another torch: all the same but the last bits
        return
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [parameter.grad for parameter in wanted]

    def zero() -> Tensor:
        # What was computed last is differentiated first.
        terms = [(parameter.reshape(-1)[:1] * 0).sum() for parameter in wanted]
        total = terms[-1]
        for term in reversed(terms[:-1]):
            total = total + term.to(total.device)
        return total

    # In place of the module's own forward, so that neither it nor its hooks see a pretended input.
    model._run_ddp_forward = zero  # noqa: SLF001 - DistributedDataParallel has no other place for it
    try:
        model().backward()
    finally:
        del model._run_ddp_forward  # noqa: SLF001 - the class's own is seen again
        for parameter, gradient in zip(wanted, gradients, strict=True):
            parameter.grad = gradient


def _has_sparse_gradients(model: nn.Module) -> bool:
    from torch import nn

    embeddings = (nn.Embedding, nn.EmbeddingBag)
    return any(isinstance(part, embeddings) and part.sparse for part in model.modules())
