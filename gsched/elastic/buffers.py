"""Buffers of a model, which each rank changes by its own batches: running averages, observers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from gsched.elastic.errors import BadCheckpointError
from gsched.elastic.plain import PlainNames

if TYPE_CHECKING:
    from torch import Tensor, nn

Buffers = Mapping[str, "Tensor | None"]


def buffers_of(
    model: nn.Module, names: PlainNames
) -> tuple[dict[str, Tensor | None], tuple[str, ...]]:
    """Return all buffers by name, and the names of those that a ``state_dict`` leaves out."""
    found: dict[str, Tensor | None] = {}
    transient = []
    for module_name, module in model.named_modules(remove_duplicate=False):
        for leaf, buffer in module._buffers.items():  # noqa: SLF001 - those that are None, too
            name = names.of(f"{module_name}.{leaf}" if module_name else leaf)
            found[name] = None if buffer is None else buffer.detach()
            if leaf in module._non_persistent_buffers_set:  # noqa: SLF001 - told nowhere else
                transient.append(name)
    return found, tuple(transient)


def give_back(
    model: nn.Module, names: PlainNames, saved: Buffers, transient: Collection[str], *, strict: bool
) -> None:
    """Set the model's buffers to what was saved; those that were not saved stay.

    A buffer of the same shape is written in place. One that the model makes when it is used, or
    gives another shape then, is made.

    Args:
        model: whose.
        names: of its tensors.
        saved: by name.
        transient: names of those that a ``state_dict`` leaves out.
        strict: refuse a buffer of a module that the model does not have.

    Raises:
        BadCheckpointError: there is one.
    """
    import torch

    # A wrapper has the name of what it wraps, which comes after it.
    modules = {
        names.of(f"{name}.x" if name else "x")[:-1]: module
        for name, module in model.named_modules(remove_duplicate=False)
    }
    for name, tensor in saved.items():
        parent, _, leaf = name.rpartition(".")
        module = modules.get(f"{parent}." if parent else "")
        if module is None:
            if strict:
                raise BadCheckpointError(
                    f"it has a buffer {name!r}, and the model has no {parent!r}"
                )
            continue
        present = module._buffers.get(leaf)  # noqa: SLF001 - see above
        if tensor is None:
            if leaf in module._buffers:  # noqa: SLF001 - see above
                module._buffers[leaf] = None  # noqa: SLF001 - see above
        elif present is not None and _alike(present, tensor):
            with torch.no_grad():
                present.copy_(tensor)
        else:
            made = tensor.to(_device(present, module, model), copy=True)
            if leaf in module._buffers:  # noqa: SLF001 - see above
                module._buffers[leaf] = made  # noqa: SLF001 - see above
            else:
                module.register_buffer(leaf, made, persistent=name not in transient)


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)


def _device(present: Tensor | None, module: nn.Module, model: nn.Module) -> object:
    """Return where a buffer belongs: where it was, else where its neighbours are."""
    if present is not None:
        return present.device
    for owner in (module, model):
        for tensor in (*owner.parameters(), *owner.buffers()):
            return tensor.device
    return "cpu"
