"""Gives an optimiser that has done no step the tensors that a checkpoint is read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_PREFIX = "optimizer.state."


def make_room(model: nn.Module, optimizers: Sequence[Optimizer], saved: Mapping[str, Any]) -> None:
    """Let the optimisers' states have the tensors that ``saved`` names, with any content.

    Left alone, torch lets an empty optimiser do a step with gradients of zero for that. For a
    gigabyte of state it takes longer than reading it.

    Nothing is done for models whose parameters are not simply tensors of this rank (FSDP), or
    have other names than in the checkpoint (compiled ones): torch knows how these are read.

    Args:
        model: bare, or wrapped by DistributedDataParallel.
        optimizers: of this model.
        saved: by name in the checkpoint, what torch has written down of each tensor.
    """
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.nn.parallel import DistributedDataParallel

    bare = model.module if isinstance(model, DistributedDataParallel) else model
    names = {parameter: name for name, parameter in bare.named_parameters()}
    if not all(type(parameter) is torch.nn.Parameter for parameter in names):
        return
    parts: dict[str, list[str]] = {}
    known = set(names.values())
    for key in saved:
        name, _, part = key.removeprefix(_PREFIX).rpartition(".")
        if key.startswith(_PREFIX):
            if name not in known:
                return
            parts.setdefault(name, []).append(part)
    for optimizer in optimizers:
        optimizer.state.clear()
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            name = names.get(parameter, "")
            for part in parts.get(name, ()):
                found = saved[f"{_PREFIX}{name}.{part}"]
                if isinstance(found, TensorStorageMetadata):
                    # What has the form of a parameter lies where that is; counters on the CPU.
                    device = parameter.device if found.size == parameter.shape else "cpu"
                    optimizer.state[parameter][part] = torch.empty(
                        found.size, dtype=found.properties.dtype, device=device
                    )
                else:
                    optimizer.state[parameter][part] = None
