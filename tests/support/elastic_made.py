"""What the kinds of `elastic_zoo.py` are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 8
#: A step of a kind: the batch, and its number from 0.
Step = Callable[[Tensor, int], None]


@dataclass(kw_only=True)
class Made:
    """What a script has made when it calls `elastic.start`.

    Attributes:
        before: done before the loop over the epochs.
        before_epoch, after_epoch: done before and after the loop over an epoch's batches.
        after_step: done with each batch after `Training.step`.
    """

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    step: Step
    also: Mapping[str, Any] = field(default_factory=dict)
    per_rank: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    before_epoch: Callable[[], None] = lambda: None
    after_epoch: Callable[[], None] = lambda: None
    after_step: Callable[[], None] = lambda: None


def ddp(network: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(network, **options)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    loss_of(model, x).backward()
    optimizer.step()


def plain_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def normed_network(momentum: float = 0.1) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH, momentum=momentum),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(WIDTH, 1),
    )


def noise() -> float:
    """Draw from each of the three generators."""
    return random.random() + float(np.random.random()) + float(torch.rand(()))


class Branches(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Uses one of two branches in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)])
        self.way = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[self.way](x)
