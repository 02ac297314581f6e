"""Gives DistributedDataParallel its final buckets before the first step, in every attempt alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel


def settle_buckets(model: DistributedDataParallel, world_size: int) -> None:
    """Let a model lay its gradients out for good.

    It puts gradients into buckets in the order of the parameters for one step, and from the second
    on in the order in which gradients became ready in the first. A sum over more than two ranks is
    rounded differently in another place of a bucket, so a training that is restored, whose first
    step is not the first of all, would differ in the last bits from one that was never stopped.

    Called by all ranks.
    """
    # Of two numbers, the order in which they are added does not matter.
    if world_size <= 2:
        return
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    pretend_step(model)
    for parameter, gradient in gradients:
        parameter.grad = gradient
    # It would do so in the first step that ranks share, with what gradients there are by then.
    rebuild = getattr(getattr(model, "reducer", None), "_rebuild_buckets", None)
    if rebuild is not None:
        rebuild()


def pretend_step(model: DistributedDataParallel) -> None:
    """Do a backward pass whose gradients are zero and become ready from the last to the first.

    No parameter is changed; gradients are zero afterwards, in the buckets if the model keeps them
    there. Called by all ranks.
    """
    if model.static_graph or _has_sparse_gradients(model):
        return  # the first step is taken for what all will be, or has gradients of another kind
    if not hasattr(model, "_run_ddp_forward"):  # another torch: all the same but the last bits
        return
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]

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


def _has_sparse_gradients(model: nn.Module) -> bool:
    from torch import nn

    embeddings = (nn.Embedding, nn.EmbeddingBag)
    return any(isinstance(part, embeddings) and part.sparse for part in model.modules())
