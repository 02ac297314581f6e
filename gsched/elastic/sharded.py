"""Weights and optimiser state of models that FSDP or DTensor has cut, as torch knows how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

State = dict[str, Any]


def collect(model: nn.Module, optimizers: Sequence[Optimizer]) -> State:
    """Return weights, buffers and optimiser state by name."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    fresh = [optimizer for optimizer in optimizers if not optimizer.state]
    weights, optimizer_state = get_state_dict(model, optimizers)
    # torch has let those do a step that had not done any, to find out what states they have.
    state: State = optimizer_state.get("state", {})
    groups = iter(optimizer_state.get("param_groups", ()))
    for optimizer in optimizers:
        for _, group in zip(optimizer.param_groups, groups, strict=False):
            if optimizer in fresh:
                for name in group["params"]:
                    state.pop(name, None)
        if optimizer in fresh:
            optimizer.state.clear()
    return {"model": weights, "optimizer": optimizer_state}


def template(model: nn.Module, optimizers: Sequence[Optimizer], saved: Mapping[str, Any]) -> State:
    """Return what is to be loaded, with room for it.

    A parameter that never had a gradient has no optimiser state in the checkpoint, but would have
    in a freshly made optimiser's: what was not saved is not asked for.

    Args:
        model: whose.
        optimizers: of this model.
        saved: by name in the checkpoint, what torch has written down of each tensor.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, optimizer_state = get_state_dict(model, optimizers)
    moments: State = optimizer_state.get("state", {})
    for name in list(moments):
        if not any(key.startswith(f"optimizer.state.{name}.") for key in saved):
            del moments[name]
    return {"model": weights, "optimizer": optimizer_state}


def give_back(model: nn.Module, optimizers: Sequence[Optimizer], state: State) -> None:
    """Let model and optimisers take over what was loaded into a `template`."""
    from torch.distributed.checkpoint import state_dict

    state_dict.set_model_state_dict(model, state["model"])
    state_dict.set_optimizer_state_dict(
        model,
        optimizers,
        state["optimizer"],
        options=state_dict.StateDictOptions(strict=False),  # see `template`
    )
