"""Kinds of models that a script may have, each saved and restored on several ranks.

Rank 0 says ``NAME: ok`` for each, or what went wrong.
"""

import os
import pathlib
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed import init_process_group
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from gsched import elastic

STEPS = 3
DATA = TensorDataset(torch.randn(48, 8, generator=torch.Generator().manual_seed(1)))
SAMPLES = elastic.Samples(48, global_batch=12)


class Unused(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Has parameters that no step uses, and others that each step uses twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.out, self.unused = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.again, x.requires_grad_(), use_reentrant=True)
        return self.out(checkpoint(self.again, x, use_reentrant=True))


class Sparse(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Has gradients with few entries."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.table(x[:, 0].abs().long() % 10))


def plain() -> nn.Module:
    """Return a network whose last tensors have one row, less than there are ranks."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def sharded(network: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(network, device_id=torch.device("cpu"), use_orig_params=True)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "fsdp": lambda: sharded(plain()),
    "static": lambda: DistributedDataParallel(Unused(), static_graph=True),
    "sparse": lambda: DistributedDataParallel(Sparse()),
}


def made(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = KINDS[kind]()
    return model, torch.optim.Adagrad(model.parameters(), 0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def check(kind: str, directory: pathlib.Path) -> None:
    """Train with and without gsched.elastic, save on the way, restore what was saved."""
    settings = elastic.Settings(directory=str(directory / kind), interval_s=1e-6)
    model, optimizer = made(kind)
    alone, its_optimizer = made(kind)
    at: dict[int, list[Tensor]] = {}
    training = elastic.start(model, optimizer, SAMPLES, settings=settings)
    for _ in training.epochs():
        for (x,) in training.loader(DATA):
            step(model, optimizer, x.clone())
            step(alone, its_optimizer, x.clone())
            at[training.step_count + 1] = weights(model)
            torch.testing.assert_close(weights(model), weights(alone))
            training.step()
            if training.step_count == STEPS:
                break
        break
    training.finish()
    model, optimizer = made(kind)
    restored = elastic.start(model, optimizer, SAMPLES, settings=settings)
    restored.finish()
    assert restored.restored_step in at, restored.restored_step
    for now, then in zip(weights(model), at[restored.restored_step], strict=True):
        assert torch.equal(now, then)


def main() -> None:
    torch.set_num_threads(1)
    init_process_group("gloo")
    for kind in KINDS:
        check(kind, pathlib.Path(sys.argv[1]))
        if os.environ["RANK"] == "0":
            print(f"{kind}: ok", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
