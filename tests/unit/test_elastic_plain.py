"""An optimiser gets its state back in the order in which it kept it."""

from typing import Any

from gsched.elastic import plain
from tests.support.late_torch import IN_ONE_WORKER, torch

pytestmark = IN_ONE_WORKER


def network_and_optimizer() -> tuple[Any, Any, dict[Any, str]]:
    network = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(network.parameters())
    return network, optimizer, {tensor: name for name, tensor in network.named_parameters()}


def order_of(optimizer: Any, known: dict[Any, str]) -> list[tuple[str, list[str]]]:
    return [(known[tensor], list(parts)) for tensor, parts in optimizer.state.items()]


def late_start() -> tuple[Any, dict[Any, str]]:
    """Return an optimiser that changed the second layer before the first one."""
    network, optimizer, known = network_and_optimizer()
    inputs = torch.ones(1, 2)
    for layers in (("b",), ("b", "a")):
        optimizer.zero_grad()
        for layer in layers:
            network[layer](inputs).sum().backward()
        optimizer.step()
    return optimizer, known


def shuffled(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors as a checkpoint may: in another order of parameters and of parts."""
    return {name: dict(reversed(tensors[name].items())) for name in sorted(tensors)}


def test_optimizer_state_comes_back_in_its_order() -> None:
    optimizer, known = late_start()
    tensors, rest = plain.optimizer_state(optimizer, known)
    expected = order_of(optimizer, known)
    assert [name for name, _ in expected] == ["b.weight", "b.bias", "a.weight", "a.bias"]

    _, restored, names = network_and_optimizer()
    plain.load_optimizer(restored, names, shuffled(tensors), rest)

    assert order_of(restored, names) == expected
    again, _ = plain.optimizer_state(restored, names)
    for name, parts in tensors.items():
        for part, tensor in parts.items():
            assert torch.equal(again[name][part], tensor)


def test_checkpoint_without_the_order_is_loaded() -> None:
    """An older one: parameters in the order of the groups, parts in the checkpoint's."""
    optimizer, known = late_start()
    tensors, rest = plain.optimizer_state(optimizer, known)
    del rest["order"]

    _, restored, names = network_and_optimizer()
    plain.load_optimizer(restored, names, shuffled(tensors), rest)

    assert order_of(restored, names) == [
        (name, ["exp_avg_sq", "exp_avg", "step"])
        for name in ("a.weight", "a.bias", "b.weight", "b.bias")
    ]
