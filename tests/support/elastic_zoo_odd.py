"""The second half of `elastic_zoo.py`: odd buffers, weights, optimisers and objects; FSDP."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.ao.quantization import FakeQuantize
from torch.ao.quantization.observer import (
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler

from tests.support.elastic_made import WIDTH, Branches, Made, ddp, loss_of, plain_network, update


class Observed(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Observers as quantisation-aware training has them; some get their shape when used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        self.channels = MovingAveragePerChannelMinMaxObserver(ch_axis=1)
        self.observer = MovingAverageMinMaxObserver()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.channels(self.fake(self.inner(self.observer(x))))
        return self.out(hidden)


def observed() -> Made:
    model = ddp(Observed())
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)

    def step(x: Tensor, number: int) -> None:
        update(model, optimizer, x)
        if number == 8:
            model.module.fake.disable_observer()

    return Made(model=model, optimizers=[optimizer], step=step)


def weight_norms() -> Made:
    """Parametrisations: one of them with vectors that power iteration improves in each step."""
    network = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        nn.Tanh(),
        parametrizations.weight_norm(nn.Linear(WIDTH, 1)),
    )
    model = ddp(network)
    optimizer = torch.optim.RAdam(model.parameters(), 0.01)
    return Made(model=model, optimizers=[optimizer], step=lambda x, _: update(model, optimizer, x))


class Odd(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Buffers that come late, are made anew, grow, are not in the ``state_dict``, or extra."""

    first: Tensor | None
    anew: Tensor
    grown: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 1)
        self.steps = 0
        self.register_buffer("first", None)
        self.register_buffer("anew", torch.zeros(WIDTH))
        self.register_buffer("grown", torch.zeros(0))
        self.register_buffer("hidden", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("coarse", torch.zeros(3, dtype=torch.bfloat16))

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "list": [self.steps] * 2}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]

    def forward(self, x: Tensor) -> Tensor:
        seen = x.detach().mean(dim=0)
        if self.training:
            self.steps += 1
            self.first = seen if self.first is None else 0.9 * self.first + 0.1 * seen
            self.anew = 0.9 * self.anew + 0.1 * seen
            self.grown = torch.cat([self.grown, seen[:1]])[-5:]
            self.hidden.mul_(0.9).add_(seen)
            self.coarse += 0.3
            if not hasattr(self, "later"):
                self.register_buffer("later", torch.zeros(1), persistent=False)
            self.later += seen[0]
        return self.out(x + 0.01 * (self.first + self.anew + self.hidden + self.later))


def odd_buffers() -> Made:
    """Buffers of different shapes on different ranks at times, so they are not broadcast."""
    model = ddp(Odd(), broadcast_buffers=False)
    optimizer = torch.optim.Adadelta(model.parameters(), 0.5)
    return Made(model=model, optimizers=[optimizer], step=lambda x, _: update(model, optimizer, x))


class Tied(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Layers with one weight, a frozen one, an unused one, a table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.weight = self.one.weight
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.unused = nn.Linear(3, 3)
        self.table = nn.Embedding(10, 1, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.two(torch.tanh(self.frozen(self.one(x))))
        return hidden.sum(dim=1, keepdim=True) + self.table(x[:, 0].abs().long() % 10)


def tied() -> Made:
    model = ddp(Tied(), find_unused_parameters=True)
    dense = [parameter for name, parameter in model.named_parameters() if "table" not in name]
    optimizers = [
        torch.optim.AdamW([{"params": dense[:2]}, {"params": dense[2:], "lr": 0.02}], 0.01),
        torch.optim.SparseAdam(model.module.table.parameters(), 0.01),
    ]

    def step(x: Tensor, _number: int) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, x).backward()
        for optimizer in optimizers:
            optimizer.step()

    return Made(model=model, optimizers=optimizers, step=step)


class Precise(torch.optim.Optimizer):  # type: ignore[misc]  # torch is Any here
    """Keeps a 32-bit copy of 16-bit weights."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is Any here
    def step(self, closure: object = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["exact"] = parameter.float()
            state["exact"] -= 0.01 * parameter.grad.float()
            parameter.copy_(state["exact"])


def half() -> Made:
    model = ddp(plain_network().to(torch.bfloat16))
    optimizer = Precise(model.parameters())
    return Made(
        model=model,
        optimizers=[optimizer],
        step=lambda x, _: update(model, optimizer, x.to(torch.bfloat16)),
    )


def optimisers() -> Made:
    """One of each that torch has, and schedules on top of each other."""
    kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda p: torch.optim.ASGD(p, 0.01),
        lambda p: torch.optim.Rprop(p, 0.01),
        lambda p: torch.optim.Adafactor(p, 0.01),
        lambda p: torch.optim.Adam(p, torch.tensor(0.01), amsgrad=True, capturable=False),
        lambda p: torch.optim.SGD(p, 0.01),
        lambda p: torch.optim.Adam(p, 0.01, foreach=True, maximize=True),
        lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    ]
    model = nn.ModuleList([plain_network() for _ in kinds])
    made = [kind(part.parameters()) for kind, part in zip(kinds, model, strict=True)]
    warm = lr_scheduler.LinearLR(made[4], 0.1, total_iters=3)
    then = lr_scheduler.CosineAnnealingWarmRestarts(made[4], 3, T_mult=2)
    schedules = {
        "plateau": lr_scheduler.ReduceLROnPlateau(made[0], patience=1),
        "sequence": lr_scheduler.SequentialLR(made[4], [warm, then], [3]),
        "cyclic": lr_scheduler.CyclicLR(made[5], 0.001, 0.02, 3, cycle_momentum=False),
    }

    def step(x: Tensor, _number: int) -> None:
        for optimizer in made:
            optimizer.zero_grad()
        losses = [loss_of(part, x) for part in model]
        sum(losses).backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()
        for optimizer in made:
            optimizer.step()
        mean = losses[0].detach().clone()
        distributed.all_reduce(mean)
        schedules["plateau"].step(mean / distributed.get_world_size())
        schedules["sequence"].step()
        schedules["cyclic"].step()

    return Made(model=model, optimizers=made, step=step, also=schedules)


class Count:
    """Counts what a rank has seen."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"seen": [], "sum": 0.0, "deep": {"last": torch.zeros(2)}}

    def see(self, value: float) -> None:
        self.state["seen"].append(round(value, 3))
        self.state["sum"] += value
        self.state["deep"]["last"] = torch.tensor([value, -value])

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def objects() -> Made:
    """Objects of the script, the same on all ranks or not, and generators of its own."""
    rank = distributed.get_rank()
    model = ddp(plain_network())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    own = {
        "torch": torch.Generator().manual_seed(rank),
        "numpy": np.random.default_rng(rank),
        "python": random.Random(rank),
        "count": Count(),
    }
    also = {"differs": Count(), "alike": Count(), "shared": torch.Generator().manual_seed(7)}

    def step(x: Tensor, number: int) -> None:
        drawn = float(torch.rand((), generator=own["torch"]))
        drawn += own["numpy"].random() + own["python"].random()
        own["count"].see(drawn)
        also["differs"].see(drawn)
        also["alike"].see(number)
        shared = torch.rand((), generator=also["shared"])
        update(model, optimizer, x + 0.01 * drawn + 0.01 * shared)

    return Made(model=model, optimizers=[optimizer], step=step, also=also, per_rank=own)


def afterwards() -> Made:
    """What changes something in the loop's body after `Training.step`."""
    model = ddp(plain_network())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return Made(
        model=model,
        optimizers=[optimizer],
        step=lambda x, _: update(model, optimizer, x),
        also={"schedule": schedule},
        after_step=schedule.step,
    )


def simple() -> Made:
    model = ddp(plain_network())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return Made(model=model, optimizers=[optimizer], step=lambda x, _: update(model, optimizer, x))


def cut() -> Made:
    """FSDP that adds up gradients, which cannot be saved then: checkpoints wait."""
    model = FullyShardedDataParallel(
        plain_network(), device_id=torch.device("cpu"), use_orig_params=True
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def step(x: Tensor, number: int) -> None:
        (loss_of(model, x) / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return Made(model=model, optimizers=[optimizer], step=step)


def newly_cut() -> Made:
    """The second FSDP, with an optimiser that has done no step at first."""
    network = Branches()
    for branch in network.branches:
        fully_shard(branch)
    model = fully_shard(network)
    optimizers = [torch.optim.Adam(branch.parameters(), 0.01) for branch in network.branches]

    def step(x: Tensor, number: int) -> None:
        network.way = int(number >= 6)
        network.zero_grad()
        update(model, optimizers[network.way], x)

    return Made(model=model, optimizers=optimizers, step=step)
