"""Adaptive training jobs on 1, 2 and 4 ranks, held against direct computations.

    torchrun --nproc-per-node 4 adaptive_ranks.py DIRECTORY

Attempts are made within one process, each in a process group of its own. Each rank adds a line to
``DIRECTORY/told-RANK`` for each check: ``NAME: ok``, or what is wrong.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from gsched import elastic
from tests.support.cluster import wait_until
from tests.support.elastic_listener import Listener

RANK = int(os.environ["RANK"])
COUNT, WIDTH, CLASSES, TUNED = 1000, 12, 4, 20
SMOOTHING = 0.999  # of the averages, per step with the tuned batch

Used = list[tuple[int, int]]


def made_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return points around the corners of a square, and which; some are mislabelled."""
    generator = torch.Generator().manual_seed(11)
    classes = torch.randint(0, CLASSES, (COUNT,), generator=generator)
    corners = 1.6 * torch.randn(CLASSES, WIDTH, generator=generator)
    points = corners[classes] + 2.2 * torch.randn(COUNT, WIDTH, generator=generator)
    return points, classes


POINTS, CLASSES_OF = made_data()


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def loss_of(model: nn.Module, indices: Sequence[int]) -> torch.Tensor:
    at = torch.tensor(indices)
    return nn.functional.cross_entropy(model(POINTS[at]), CLASSES_OF[at])


def gradient_of(model: nn.Module, indices: Sequence[int]) -> torch.Tensor:
    """Return the gradient of the mean loss of some samples as one vector of 64 bits."""
    found = torch.autograd.grad(loss_of(model, indices), list(model.parameters()))
    return torch.cat([each.reshape(-1) for each in found]).double()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a part of a training runs; a stop of 0 is its end."""

    ranks: int
    per_gpu: int = 0
    accumulation: int = 0
    stop: int = 0


@dataclass(kw_only=True)
class Found:
    """What a rank has at the end of an attempt."""

    weights: list[torch.Tensor]
    noise: elastic.Noise | None
    progress: float
    steps: int
    samples: int
    batch: int
    rule: elastic.Rule
    profiled: int
    accuracy: float


Loop = Callable[[elastic.AdaptiveTraining, nn.Module, torch.optim.Optimizer, list[int]], None]


def train(
    directory: pathlib.Path,
    attempts: Sequence[Attempt],
    *,
    rate: float = 0.1,
    epochs: int = 2,
    optimizer_of: Callable[..., Any] = torch.optim.SGD,
    adaptive: elastic.Adaptive | None = None,
    used: Used | None = None,
    watch: Callable[..., None] | None = None,
    profile_at: int = 0,
) -> Found | None:
    """Train in attempts; return what this rank has at the end of the last, None if it has none."""
    found: Found | None = None
    directory.mkdir(exist_ok=True)
    for number, attempt in enumerate(attempts):
        found = None
        if attempt.ranks <= RANK:
            continue
        os.environ["GSCHED_BATCH_PER_GPU"] = str(attempt.per_gpu)
        os.environ["GSCHED_ACCUMULATION"] = str(attempt.accumulation)
        store = f"file://{directory}/store-{number}"
        distributed.init_process_group(
            "gloo", init_method=store, rank=RANK, world_size=attempt.ranks
        )
        try:
            net = network()
            model = DistributedDataParallel(net)
            optimizer = optimizer_of(model.parameters(), lr=rate)
            training = elastic.start(
                model,
                optimizer,
                elastic.Samples(COUNT, global_batch=TUNED, epochs=epochs, seed=3),
                settings=elastic.Settings(directory=str(directory / "checkpoints"), interval_s=0),
                adaptive=adaptive or elastic.Adaptive(),
            )
            loop(training, net, model, optimizer, attempt.stop, used, watch, profile_at)
            with torch.no_grad():
                right = net(POINTS).argmax(dim=1) == CLASSES_OF
            found = Found(
                weights=[each.detach().clone() for each in net.parameters()],
                noise=training.noise,
                progress=training.scale_invariant_steps,
                steps=training.step_count,
                samples=training.samples_done,
                batch=training.global_batch,
                rule=training.rule,
                profiled=str(training._profiler.body()).count("step_s"),
                accuracy=right.float().mean().item(),
            )
            training.finish()
        finally:
            gc.collect()
            distributed.destroy_process_group()
    return found


def loop(
    training: elastic.AdaptiveTraining,
    net: nn.Module,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stop: int,
    used: Used | None,
    watch: Callable[..., None] | None,
    profile_at: int,
) -> None:
    """Do the steps up to the checkpoint after step ``stop``."""
    for epoch in training.epochs():
        for parts in training.steps():
            if stop and training.step_count >= stop:
                return
            optimizer.zero_grad()
            seen = []
            for indices in parts:
                if training.weight > 0 and used is not None:
                    used += [(epoch, index) for index in indices]
                seen.append(indices)
                (training.weight * loss_of(model, indices)).backward()
            if watch is not None:
                watch(training, net, optimizer, seen)
            optimizer.step()
            if training.step_count + 1 == stop:
                training.checkpoint()
            training.step()
            if training.step_count == profile_at:
                training.profile()


class Direct:
    """Averages of the gradient statistics from their definition, all gradients being at hand."""

    def __init__(self) -> None:
        self.sqr = self.var = self.weight = 0.0
        self.noise = elastic.Noise(0.0, 0.0)

    def __call__(
        self,
        training: elastic.AdaptiveTraining,
        net: nn.Module,
        _optimizer: torch.optim.Optimizer,
        seen: list[list[int]],
    ) -> None:
        everybodys: list[Any] = [None] * training.world_size
        distributed.all_gather_object(everybodys, seen)
        parts = list(itertools.chain(*everybodys))
        if len(parts) < 2:
            return  # one rank, and not a step that is done in halves
        same = network()  # another pass over the network itself would be taken for the training's
        same.load_state_dict(net.state_dict())
        gradients = torch.stack([gradient_of(same, part) for part in parts])
        mean = gradients.mean(dim=0)
        spread = (gradients - mean).square().sum().item() / (len(parts) - 1)
        batch = sum(map(len, parts))
        is_halved = training.world_size == 1 and training.accumulation == 0
        every = 20 if is_halved else 5
        if training.step_count >= 10 and (training.step_count + 1) % every:
            return
        steps = 1 if training.step_count < 10 else every
        kept = SMOOTHING ** (batch / TUNED * steps)
        self.sqr = kept * self.sqr + (1 - kept) * (mean.square().sum().item() - spread / len(parts))
        self.var = kept * self.var + (1 - kept) * spread * batch / len(parts) / TUNED
        self.weight = kept * self.weight + 1 - kept
        if training.step_count < 10 or (training.step_count + 1) % 10 == 0:  # ranks exchange theirs
            self.noise = elastic.Noise(self.sqr / self.weight, self.var / self.weight)


def close(name: str, found: float, wanted: float, tolerance: float) -> list[str]:
    if math.isclose(found, wanted, rel_tol=tolerance):
        return []
    return [f"{name} is {found:.6g}, and should be {wanted:.6g}"]


def noise_of_the_steps(directory: pathlib.Path) -> list[str]:
    """While weights change, on any number of ranks and micro-batches: equal up to 32 bits."""
    wrong = []
    for attempt in (
        Attempt(ranks=1),
        Attempt(ranks=1, per_gpu=10, accumulation=2),
        Attempt(ranks=2),
        Attempt(ranks=2, per_gpu=10, accumulation=1),
        Attempt(ranks=4),
        Attempt(ranks=4, per_gpu=25),
    ):
        direct = Direct()
        found = train(directory / str(attempt), [attempt], watch=direct, epochs=1)
        if found is None:
            continue
        if found.noise is None:
            wrong.append(f"{attempt}: nothing was measured")
            continue
        wanted = direct.noise
        wrong += close(f"{attempt}: sqr", found.noise.sqr, wanted.sqr, 1e-3)
        wrong += close(f"{attempt}: var", found.noise.var, wanted.var, 1e-3)
    return wrong


def noise_of_the_data(directory: pathlib.Path) -> list[str]:
    """With weights that stay, against the gradients of all samples: up to the sampling."""
    net = network()
    gradients = torch.stack([gradient_of(net, [index]) for index in range(COUNT)])
    mean = gradients.mean(dim=0)
    sqr = mean.square().sum().item()
    trace = (gradients - mean).square().sum().item() / COUNT
    wrong = []
    for attempt in (Attempt(ranks=1), Attempt(ranks=2), Attempt(ranks=4, per_gpu=25)):
        found = train(directory / str(attempt), [attempt], rate=0.0, epochs=6)
        if found is None:
            continue
        assert found.noise is not None
        wrong += close(f"{attempt}: noise scale", found.noise.scale(TUNED), trace / sqr, 0.15)
        for batch in (40, 200, 1000):
            direct = (sqr + trace / batch) / (sqr + trace / TUNED)  # E|g|² of both, per step
            wanted = TUNED / batch / direct  # tuned steps a step is worth, and a sample
            efficiency = found.noise.efficiency(batch, TUNED)
            wrong += close(f"{attempt}: efficiency of {batch}", efficiency, wanted, 0.1)
    return wrong


def learning_rate(directory: pathlib.Path) -> list[str]:
    """The change of the weights is the rule's multiple of the gradient, at each step."""
    wrong: list[str] = []
    factors: list[tuple[float, float]] = []

    def watch(
        training: elastic.AdaptiveTraining,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        _seen: list[list[int]],
    ) -> None:
        weight = next(net.parameters())
        before, gradient = weight.detach().clone(), weight.grad.clone()
        noise = training.noise

        def after(*_: object) -> None:
            change = (before - weight.detach()).double() / gradient.double()
            wanted = 1.0
            if noise is not None and training.rule is elastic.Rule.ADASCALE:
                ratio = 4.0
                wanted = (noise.var + noise.sqr) / (noise.var / ratio + noise.sqr)
            elif training.rule is elastic.Rule.SQUARE_ROOT:
                wanted = 2.0
            factors.append((change.median().item() / 0.1, wanted))

        handle = optimizer.register_step_post_hook(after)
        optimizer.register_step_post_hook(lambda *_: handle.remove())

    for rule in (None, "square-root"):
        factors.clear()
        attempt = Attempt(ranks=2, per_gpu=10, accumulation=3)
        adaptive = elastic.Adaptive(rule=None if rule is None else elastic.Rule(rule))
        found = train(directory / f"{rule}", [attempt], watch=watch, epochs=1, adaptive=adaptive)
        if found is None:
            return wrong
        if found.batch != 80 or not all(abs(got / want - 1) < 1e-3 for got, want in factors[:12]):
            wrong.append(f"{rule}: batch {found.batch}, factors {factors}")
        if rule is None and not 1.2 < factors[10][1] < 4.0:
            wrong.append(f"the gain {factors[10][1]} says nothing")
    return wrong


def same_bits(directory: pathlib.Path) -> list[str]:
    """Stopped and resumed with a larger batch, whose learning rate follows the noise."""
    plan = Attempt(ranks=2, per_gpu=10, accumulation=3)
    alone = train(directory / "alone", [plan])
    stops = [Attempt(ranks=2, per_gpu=10, accumulation=3, stop=stop) for stop in (3, 16)]
    moved = train(directory / "moved", [*stops, plan])
    if alone is None or moved is None:
        return []
    return different(alone, moved)


def profiled(directory: pathlib.Path) -> list[str]:
    """Batch sizes are profiled in the middle: the same bits, with noise and all.

    Each rank times half of the sizes, and both know all of them.
    """
    plan = Attempt(ranks=2, per_gpu=20)
    alone = train(directory / "alone", [plan], epochs=1)
    timed: set[int] = set()

    def called(module: nn.Module, arguments: Any) -> None:
        if isinstance(module, nn.Sequential):
            timed.add(len(arguments[0]))

    handle = register_module_forward_pre_hook(called)
    found = train(directory / "profiled", [plan], epochs=1, profile_at=5)
    handle.remove()
    if alone is None or found is None:
        return []
    wrong = [] if found.profiled >= 10 > alone.profiled else ["it was not profiled"]
    own = timed - {10, 20, COUNT}  # of steps, and of the accuracy
    if not 4 <= len(own) <= 6:
        wrong.append(f"this rank has timed {sorted(own)}")
    return wrong + different(alone, found)


def told_batch(directory: pathlib.Path) -> list[str]:
    """Rank 0 is told another batch while it trains, and all ranks take it at the same step."""
    listener = Listener()
    os.environ["GSCHED_ELASTIC_SOCKET"] = listener.name
    used: Used = []
    sizes: list[int] = []

    def watch(training: elastic.AdaptiveTraining, *others: Any) -> None:
        sizes.extend(map(len, others[-1]))
        if training.step_count == 12 and training.rank == 0:
            listener.wait_for("progress")
            listener.say(tune={"per_gpu": 15, "accumulation": 1})
            talk: Any = training._reporter._conversation
            wait_until(lambda: talk._tuning is not None, 60.0, what="the batch size")

    try:
        found = train(directory / "told", [Attempt(ranks=2)], used=used, watch=watch, epochs=1)
    finally:
        listener.close()
        del os.environ["GSCHED_ELASTIC_SOCKET"]
    (directory / f"used-{RANK}").write_text(json.dumps(used))
    if found is None:
        return []
    wanted = [10] * 20 + [15] * 20  # 20 steps of 20 samples, and ten of 60
    return [] if (sizes, found.batch) == (wanted, 60) else [f"{found.batch}: {sizes}"]


def different(one: Found, other: Found) -> list[str]:
    wrong = [] if all(map(torch.equal, one.weights, other.weights)) else ["other weights"]
    return wrong + [
        f"{name}: {getattr(one, name)} and {getattr(other, name)}"
        for name in ("noise", "progress", "steps", "samples")
        if getattr(one, name) != getattr(other, name)
    ]


def changing_batches(directory: pathlib.Path) -> list[str]:
    """From 1 to 4 ranks and back, with batches of 20 to 150 samples: each sample is used once."""
    used: Used = []
    attempts = [
        Attempt(ranks=1, stop=7),
        Attempt(ranks=2, per_gpu=20, accumulation=1, stop=17),  # 80
        Attempt(ranks=4, per_gpu=9, accumulation=0, stop=30),  # 36
        Attempt(ranks=3, per_gpu=50, accumulation=0, stop=38),  # 150
        Attempt(ranks=2),
    ]
    found = train(directory / "changed", attempts, used=used, epochs=6)
    (directory / f"used-{RANK}").write_text(json.dumps(used))
    fixed = train(directory / "fixed", [Attempt(ranks=2)], epochs=6)
    if found is None or fixed is None:
        return []
    wrong = close("accuracy", found.accuracy, fixed.accuracy, 0.02)
    if (found.samples, fixed.samples) != (6 * COUNT, 6 * COUNT):
        wrong.append(f"samples: {found.samples} and {fixed.samples}")
    if found.steps >= fixed.steps or not found.steps < found.progress <= fixed.progress:
        wrong.append(f"steps: {found} and {fixed}")
    return wrong


def until_progress(directory: pathlib.Path) -> list[str]:
    """A larger batch uses more samples for the same progress, and reaches the same accuracy."""
    adaptive = elastic.Adaptive(until=elastic.Until.PROGRESS)
    attempts = [
        Attempt(ranks=2, per_gpu=50, accumulation=0, stop=20),
        Attempt(ranks=4, per_gpu=50, accumulation=0),
    ]
    found = train(directory / "large", attempts, epochs=4, adaptive=adaptive)
    fixed = train(directory / "fixed", [Attempt(ranks=2)], epochs=4, adaptive=adaptive)
    if found is None or fixed is None:
        return []
    wrong = close("accuracy", found.accuracy, fixed.accuracy, 0.02)
    tuned = 4 * COUNT / TUNED
    if fixed.progress != fixed.steps or fixed.steps != tuned:
        wrong.append(f"fixed: {fixed}")
    if not tuned <= found.progress < tuned + 10 or not fixed.samples * 1.2 < found.samples:
        wrong.append(f"large: {found}")
    return wrong


def inference(directory: pathlib.Path) -> list[str]:
    """On 2, 4 and 3 ranks, without an optimiser: each sample is used once."""
    used: Used = []
    attempts = [
        Attempt(ranks=2, per_gpu=15, stop=4),
        Attempt(ranks=4, per_gpu=40, stop=7),
        Attempt(ranks=3, per_gpu=50),
    ]
    largest = 0
    for number, attempt in enumerate(attempts):
        if attempt.ranks <= RANK:
            continue
        os.environ["GSCHED_BATCH_PER_GPU"] = str(attempt.per_gpu)
        os.environ["GSCHED_ACCUMULATION"] = "0"
        store = f"file://{directory}/store-{number}"
        distributed.init_process_group(
            "gloo", init_method=store, rank=RANK, world_size=attempt.ranks
        )
        try:
            net = network()
            training = elastic.start(
                net,
                [],
                elastic.Samples(COUNT, global_batch=TUNED, drop_last=False, seed=3),
                settings=elastic.Settings(directory=str(directory / "checkpoints"), interval_s=0),
                adaptive=elastic.Adaptive(inference=True),
            )
            largest = max(largest, infer(training, net, attempt.stop, used))
            training.finish()
        finally:
            gc.collect()
            distributed.destroy_process_group()
    (directory / f"used-{RANK}").write_text(json.dumps(used))
    wanted = max(attempt.per_gpu for attempt in attempts if attempt.ranks > RANK)
    return [] if largest == wanted else [f"the largest batch was {largest}, and not {wanted}"]


def replicas(directory: pathlib.Path) -> list[str]:
    """Two replicas of two ranks each do what two ranks do: the same samples, bits and noise."""
    used: Used = []
    os.environ["GSCHED_BATCH_PER_GPU"], os.environ["GSCHED_ACCUMULATION"] = "10", "3"
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=RANK, world_size=4
    )
    try:
        groups = [distributed.new_group([part, 2 + part]) for part in range(2)]
        net = network()
        model = DistributedDataParallel(net, process_group=groups[RANK % 2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        training = elastic.start(
            model,
            optimizer,
            elastic.Samples(COUNT, global_batch=TUNED, epochs=2, seed=3),
            settings=elastic.Settings(directory=str(directory / "checkpoints"), interval_s=0),
            adaptive=elastic.Adaptive(replica_ranks=2),
        )
        loop(training, net, model, optimizer, 0, used, None, 0)
        split = (training.global_batch, training.batch_per_gpu, training.accumulation)
        sizes = training._plan.accepted(8)
        weights = [each.detach().clone() for each in net.parameters()]
        noise = training.noise
        training.finish()
    finally:
        gc.collect()
        distributed.destroy_process_group()
    own: Used = []
    alone = train(directory / "alone", [Attempt(ranks=2, per_gpu=10, accumulation=3)], used=own)
    if alone is None:
        return []
    wrong = [] if split == (80, 10, 3) else [f"split as {split}"]
    wrong += [] if sizes == (2, 4, 6, 8) else [f"accepts {sizes} ranks"]
    wrong += [] if all(map(torch.equal, weights, alone.weights)) else ["other weights"]
    wrong += [] if RANK or used == own else ["other samples"]
    assert noise is not None
    assert alone.noise is not None
    return wrong + close("noise scale", noise.scale(TUNED), alone.noise.scale(TUNED), 1e-3)


def infer(training: elastic.AdaptiveTraining, net: nn.Module, stop: int, used: Used) -> int:
    """Do the steps up to the checkpoint after step ``stop``; return the largest batch."""
    largest = 0
    for epoch in training.epochs():
        for parts in training.steps():
            if stop and training.step_count >= stop:
                return largest
            for indices in parts:
                used += [(epoch, index) for index in indices]
                largest = max(largest, len(indices))
                with torch.no_grad():
                    net(POINTS[torch.tensor(indices)])
            if training.step_count + 1 == stop:
                training.checkpoint()
            training.step()
    return largest


CHECKS = (
    noise_of_the_steps,
    noise_of_the_data,
    learning_rate,
    same_bits,
    profiled,
    told_batch,
    changing_batches,
    until_progress,
    inference,
    replicas,
)


def main() -> None:
    torch.set_num_threads(1)
    directory = pathlib.Path(sys.argv[1])
    wanted = sys.argv[2:]
    with open(directory / f"told-{RANK}", "w", encoding="utf-8", buffering=1) as told:
        for check in CHECKS:
            if wanted and check.__name__ not in wanted:
                continue
            below = directory / check.__name__
            below.mkdir(exist_ok=True)
            try:
                wrong = check(below)
            except BaseException:  # noqa: BLE001 - told to the test
                told.write(f"{check.__name__}: {traceback.format_exc()}\n")
                os._exit(1)
            told.write(f"{check.__name__}: {'; '.join(wrong[:5]) or 'ok'}\n")
    os._exit(0)


if __name__ == "__main__":
    main()
