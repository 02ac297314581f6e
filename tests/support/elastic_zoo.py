"""Networks, optimisers and what else has a state, as scripts have them, for `elastic_matrix.py`.

Each kind is made anew in every attempt. ``alike`` kinds compute the same on any number of ranks but
for the order of additions; the others draw numbers on each rank, or normalise by a rank's batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.support.elastic_made import (
    WIDTH,
    Branches,
    Made,
    ddp,
    loss_of,
    noise,
    normed_network,
    plain_network,
    update,
)
from tests.support.elastic_zoo_odd import (
    afterwards,
    cut,
    half,
    newly_cut,
    objects,
    observed,
    odd_buffers,
    optimisers,
    simple,
    tied,
    weight_norms,
)


def batchnorm() -> Made:
    """The network with which it was found that ranks' running averages were mixed up."""
    model = ddp(normed_network())
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)

    def step(x: Tensor, _number: int) -> None:
        update(model, optimizer, x + 0.01 * noise())
        schedule.step()

    return Made(model=model, optimizers=[optimizer], step=step, also={"schedule": schedule})


def own_averages() -> Made:
    """Ranks that never share their running averages."""
    model = ddp(normed_network(), broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return Made(model=model, optimizers=[optimizer], step=lambda x, _: update(model, optimizer, x))


def by_hand() -> Made:
    """No wrapper: the script takes the mean of the gradients itself."""
    model = normed_network()
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01, momentum=0.5, centered=True)

    def step(x: Tensor, _number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()
        optimizer.step()

    return Made(model=model, optimizers=[optimizer], step=step)


def evaluating() -> Made:
    """Evaluates in between, after which DistributedDataParallel leaves buffers alone once.

    It draws numbers and evaluates before it trains, and before each epoch.
    """
    model = ddp(normed_network())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    shift = torch.zeros(1)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            model(torch.ones(4, WIDTH))
        model.train()

    def step(x: Tensor, number: int) -> None:
        update(model, optimizer, x + shift)
        if number % 3 == 1:
            evaluate()

    def before() -> None:
        noise()
        evaluate()

    def before_epoch() -> None:
        shift.fill_(noise() / 100)
        evaluate()

    return Made(
        model=model,
        optimizers=[optimizer],
        step=step,
        also={"shift": Holder(shift)},
        before=before,
        before_epoch=before_epoch,
        after_epoch=evaluate,
    )


class Holder:
    """A tensor with a state."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensor.copy_(state["tensor"])


def gan() -> Made:
    """Two networks, each wrapped, with an optimiser and a schedule; one trained every third step.

    The generator's loss leaves gradients in the discriminator, which are thrown away.
    """
    maker = ddp(nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)))
    judge = ddp(
        nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.ReLU(), nn.Linear(WIDTH, 1)
        )
    )
    model = nn.ModuleDict({"maker": maker, "judge": judge})
    makers = torch.optim.Adam(maker.parameters(), 0.01, betas=(0.5, 0.9))
    judges = torch.optim.AdamW(judge.parameters(), 0.02)
    schedules = {
        "makers": lr_scheduler.StepLR(makers, 3, 0.5),
        "judges": lr_scheduler.CosineAnnealingLR(judges, 20),
    }

    def step(x: Tensor, number: int) -> None:
        made = maker(torch.randn(len(x), 4))
        judges.zero_grad()
        (judge(made.detach()).mean() - judge(x).mean()).backward()
        judges.step()
        if number % 3 == 2:
            makers.zero_grad()
            (-judge(made).mean()).backward()
            makers.step()
            schedules["makers"].step()
        schedules["judges"].step()

    return Made(model=model, optimizers=[makers, judges], step=step, also=schedules)


def careless_gan() -> Made:
    """Gradients that one network's loss leaves in the other are used with the next step's."""
    made = gan()
    maker, judge = made.model["maker"], made.model["judge"]
    makers, judges = made.optimizers

    def step(x: Tensor, _number: int) -> None:
        fake = maker(torch.randn(len(x), 4))
        (judge(fake.detach()).mean() - judge(x).mean()).backward()
        judges.step()
        judges.zero_grad()
        makers.zero_grad()
        (-judge(fake).mean()).backward()
        makers.step()

    return Made(model=made.model, optimizers=made.optimizers, step=step, also=made.also)


def late() -> Made:
    """An optimiser that has done no step when a checkpoint is saved, and another of weights."""
    body, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    model = ddp(nn.Sequential(body, head), find_unused_parameters=True)
    first = torch.optim.Adam(head.parameters(), 0.01)
    second = torch.optim.SGD(body.parameters(), 0.01, momentum=0.9, dampening=0.5)
    third = torch.optim.Adam(body.parameters(), 0.01)

    def step(x: Tensor, number: int) -> None:
        model.zero_grad()
        loss_of(model, x).backward()
        first.step()
        if number >= 8:
            second.step()
        if number >= 10:
            third.step()

    return Made(model=model, optimizers=[first, second, third], step=step)


def averaged(*, use_buffers: bool) -> Made:
    """An exponential moving average of the weights, and of the buffers or not."""
    model = ddp(normed_network())
    optimizer = torch.optim.Adamax(model.parameters(), 0.01)
    average = AveragedModel(
        model.module, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=use_buffers
    )

    def step(x: Tensor, _number: int) -> None:
        update(model, optimizer, x)
        average.update_parameters(model.module)

    return Made(model=model, optimizers=[optimizer], step=step, also={"average": average})


def scaled() -> Made:
    """A gradient scaler that leaves out steps with infinite gradients, the first among them."""
    model = ddp(plain_network())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)

    def step(x: Tensor, number: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        if number in {0, 1, 2, 3, 6}:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Made(model=model, optimizers=[optimizer], step=step, also={"scaler": scaler})


def accumulating(network: nn.Module, **options: Any) -> Made:
    """Adds up the gradients of three batches before the optimiser's step, each rank its own."""
    model = ddp(network, **options)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step(x: Tensor, number: int) -> None:
        last = number % 3 == 2
        with nullcontext() if last else model.no_sync():
            (loss_of(model, x) / 3).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    return Made(model=model, optimizers=[optimizer], step=step)


def accumulating_from_the_epoch(**options: Any) -> Made:
    """Sets gradients to zero when an epoch begins."""
    model = ddp(plain_network(), **options)
    optimizer = torch.optim.NAdam(model.parameters(), 0.01)

    def step(x: Tensor, number: int) -> None:
        with model.no_sync() if number % 4 < 3 else nullcontext():
            loss_of(model, x).backward()
        if number % 4 == 3:
            optimizer.step()

    return Made(
        model=model,
        optimizers=[optimizer],
        step=step,
        before_epoch=lambda: optimizer.zero_grad(set_to_none=False),
    )


def zeros_that_matter(**options: Any) -> Made:
    """Gradients are set to zero, not thrown away: weights that were not used move on, too."""
    model = ddp(Branches(), find_unused_parameters=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step(x: Tensor, number: int) -> None:
        model.module.way = number // 3 % 2
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, x).backward()
        optimizer.step()

    return Made(model=model, optimizers=[optimizer], step=step)


def lbfgs() -> Made:
    """An optimiser that keeps lists of tensors, after one that does not, over the same weights."""
    model = ddp(plain_network())
    adam = torch.optim.Adam(model.parameters(), 0.01)
    second = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=2, history_size=3)

    def step(x: Tensor, number: int) -> None:
        if number < 3:
            update(model, adam, x)
            return

        def closure() -> Tensor:
            second.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            mean = loss.detach().clone()
            distributed.all_reduce(mean)
            return mean / distributed.get_world_size()

        second.step(closure)

    return Made(model=model, optimizers=[adam, second], step=step)


#: How each kind is made, and whether it computes the same on any number of ranks.
KINDS: dict[str, tuple[Callable[[], Made], bool]] = {
    "simple": (simple, True),
    "batchnorm": (batchnorm, False),
    "own-averages": (own_averages, False),
    "by-hand": (by_hand, False),
    "evaluating": (evaluating, False),
    "gan": (gan, False),
    "careless-gan": (careless_gan, False),
    "late": (late, True),
    "averaged": (lambda: averaged(use_buffers=False), False),
    "averaged-buffers": (lambda: averaged(use_buffers=True), False),
    "scaled": (scaled, True),
    "accumulating": (lambda: accumulating(plain_network()), True),
    "accumulating-norms": (lambda: accumulating(normed_network()), False),
    "accumulating-views": (
        lambda: accumulating(plain_network(), gradient_as_bucket_view=True),
        True,
    ),
    "accumulating-epoch": (accumulating_from_the_epoch, True),
    "accumulating-epoch-views": (
        lambda: accumulating_from_the_epoch(gradient_as_bucket_view=True),
        True,
    ),
    "zeros": (zeros_that_matter, True),
    "zeros-views": (lambda: zeros_that_matter(gradient_as_bucket_view=True), True),
    "lbfgs": (lbfgs, True),
    "observed": (observed, False),
    "weight-norms": (weight_norms, True),
    "odd-buffers": (odd_buffers, False),
    "tied": (tied, False),
    "half": (half, False),
    "optimisers": (optimisers, True),
    "objects": (objects, False),
    "afterwards": (afterwards, True),
    "fsdp": (cut, True),
    "fsdp2": (newly_cut, True),
}
