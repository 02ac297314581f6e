"""Weights and optimiser state of models whose parameters are simply tensors of this rank.

Bare models, and those wrapped by DistributedDataParallel, whole or in parts. Nothing is changed by
looking: torch's own functions let an optimiser that has done no step do one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gsched.elastic.errors import BadCheckpointError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

_COMPILED = "_orig_mod."  # what torch.compile puts into names

State = dict[str, Any]


def is_plain(model: nn.Module) -> bool:
    """Return whether all parameters are simply tensors of this rank."""
    from torch import distributed, nn

    if distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(part, FullyShardedDataParallel) for part in model.modules()):
            return False
    return all(type(parameter) is nn.Parameter for parameter in model.parameters())


def distributed_parts(model: nn.Module) -> list[DistributedDataParallel]:
    """Return the model and its parts that are wrapped by DistributedDataParallel, in order."""
    from torch.nn.parallel import DistributedDataParallel

    return [part for part in model.modules() if isinstance(part, DistributedDataParallel)]


class PlainNames:
    """Names of parameters and buffers that are the same with and without wrappers."""

    def __init__(self, model: nn.Module) -> None:
        wrapped = set(distributed_parts(model))
        found = [
            f"{name}." if name else "" for name, part in model.named_modules() if part in wrapped
        ]
        self._wrappers = sorted(found, key=len, reverse=True)  # the inner ones first

    def of(self, name: str) -> str:
        """Return the name of a tensor as it is without wrappers."""
        for wrapper in self._wrappers:
            if name.startswith(f"{wrapper}module."):
                name = wrapper + name[len(wrapper) + len("module.") :]
        return name.replace(_COMPILED, "")

    def parameters(self, model: nn.Module) -> dict[Tensor, str]:
        """Return the name of each parameter; the first one where it has several."""
        return {parameter: self.of(name) for name, parameter in model.named_parameters()}


def weights(model: nn.Module, names: PlainNames) -> State:
    """Return what the model's ``state_dict`` holds beside buffers, which alias the parameters."""
    buffers = {names.of(name) for name, _ in model.named_buffers(remove_duplicate=False)}
    state = {names.of(key): value for key, value in model.state_dict().items()}
    return {name: value for name, value in state.items() if name not in buffers}


def optimizer_state(optimizer: Optimizer, known: Mapping[Tensor, str]) -> tuple[State, State]:
    """Return an optimiser's state.

    Args:
        optimizer: whose.
        known: the names of the parameters.

    Returns:
        Tensors and numbers by name of the parameter and part, for torch.distributed.checkpoint, and
        what is left for a pickle. An optimiser that keeps anything else (LBFGS keeps lists) goes
        into the pickle as a whole.
    """
    saved = optimizer.state_dict()
    name_of = dict(_named(optimizer, saved, known))
    names = tuple(name_of.values())
    state: Mapping[Any, Mapping[str, object]] = saved.get("state", {})
    if set(saved) != {"state", "param_groups"} or not all(
        number in name_of and _is_simple(parts) for number, parts in state.items()
    ):
        return {}, {"names": names, "whole": saved}
    groups = [
        {name: value for name, value in group.items() if name != "params"}
        for group in saved["param_groups"]
    ]
    tensors = {name_of[number]: dict(parts) for number, parts in state.items()}
    # torch.distributed.checkpoint loads them in an order of its own. A tuple, as the state of two
    # ranks is compared without the order of dictionaries.
    order = tuple((name, tuple(parts)) for name, parts in tensors.items())
    return tensors, {"names": names, "groups": groups, "order": order}


def optimizer_template(
    optimizer: Optimizer, known: Mapping[Tensor, str], saved: Mapping[str, Mapping[str, Any]]
) -> State:
    """Return tensors of any content that an optimiser's state is read into.

    Args:
        optimizer: whose.
        known: the names of the parameters.
        saved: by name of the parameter and part, what torch has written down of each tensor.
    """
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    parameters = {known[each]: each for group in optimizer.param_groups for each in group["params"]}
    template: State = {}
    for name, parts in saved.items():
        if name not in parameters:
            raise BadCheckpointError(
                f"it has the state of a parameter {name!r}, which none here is"
            )
        parameter = parameters[name]
        template[name] = {}
        for part, found in parts.items():
            if isinstance(found, TensorStorageMetadata):
                # What has the form of a parameter lies where that is; counters on the CPU.
                device = parameter.device if found.size == parameter.shape else "cpu"
                template[name][part] = torch.empty(
                    found.size, dtype=found.properties.dtype, device=device
                )
            else:
                template[name][part] = None
    return template


def load_optimizer(
    optimizer: Optimizer, known: Mapping[Tensor, str], tensors: State, rest: State
) -> None:
    """Give an optimiser back what `optimizer_state` has returned.

    Raises:
        BadCheckpointError: it has other parameters now.
    """
    from torch import Tensor

    fresh = optimizer.state_dict()
    number_of = {name: number for number, name in _named(optimizer, fresh, known)}
    if tuple(number_of) != rest["names"]:
        raise BadCheckpointError(
            f"an optimiser ({type(optimizer).__name__}) has other parameters, or another order "
            "of them"
        )
    if "whole" in rest:
        optimizer.load_state_dict(rest["whole"])
        return
    if len(rest["groups"]) != len(fresh["param_groups"]):
        raise BadCheckpointError(
            f"an optimiser ({type(optimizer).__name__}) has {len(fresh['param_groups'])} groups of "
            f"parameters, and had {len(rest['groups'])}"
        )
    groups = [
        {
            **{name: _where(value, now.get(name)) for name, value in then.items()},
            "params": now["params"],
        }
        for then, now in zip(rest["groups"], fresh["param_groups"], strict=True)
    ]
    order: dict[str, Sequence[str]] = dict(rest.get("order", ()))  # an older checkpoint has none
    state = {
        number_of[name]: _in_order(parts, order.get(name, ()))
        for name, parts in _in_order(tensors, order or number_of).items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # It has converted tensors to the type of their parameter. One that keeps more digits than that
    # (a 32-bit copy of 16-bit weights) would lose them.
    for parameter, name in known.items():
        for part, tensor in tensors.get(name, {}).items():
            loaded = optimizer.state[parameter].get(part)
            if isinstance(loaded, Tensor) and loaded.dtype != tensor.dtype:
                optimizer.state[parameter][part] = tensor


def _in_order(found: Mapping[str, Any], order: Iterable[str]) -> State:
    """Return what was found in this order; names that the order leaves out come last."""
    return {name: found[name] for name in (*order, *found) if name in found}


def give_back_groups(optimizer: Optimizer, rest: State) -> None:
    """Set learning rates and the like to what they were; tensors in place."""
    from torch import Tensor

    for group, then in zip(optimizer.param_groups, rest.get("groups", ()), strict=False):
        for name, value in then.items():
            if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
                group[name].copy_(value)
            else:
                group[name] = value


def _named(
    optimizer: Optimizer, state: State, known: Mapping[Tensor, str]
) -> Iterator[tuple[int, str]]:
    for packed, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        for number, parameter in zip(packed["params"], group["params"], strict=True):
            yield number, known[parameter]


def _is_simple(parts: object) -> bool:
    from torch import Tensor

    return isinstance(parts, dict) and all(
        type(part) is Tensor or part is None or isinstance(part, int | float | str)
        for part in parts.values()
    )


def _where(value: object, present: object) -> object:
    """Return ``value``; if both are tensors (a learning rate may be one), where ``present`` is."""
    from torch import Tensor

    if isinstance(value, Tensor) and isinstance(present, Tensor):
        return value.to(present.device)
    return value


def saved_parts(keys: Mapping[str, Any], paths: Mapping[str, Sequence[object]]) -> dict[str, Any]:
    """Return what a checkpoint holds as a tree, from flat keys and the path of each."""
    tree: dict[str, Any] = {}
    for key, found in keys.items():
        *parents, last = (str(part) for part in paths.get(key, (key,)))
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = found
    return tree
