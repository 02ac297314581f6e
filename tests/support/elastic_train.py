"""A training that the tests stop, move and resize: digits, or a small transformer on made-up text.

With ``--model=batchnorm`` each rank has its own running averages, and draws noise from all three
generators.

Runs in the Python that has torch, under torchrun. Each rank appends a line to ``log-RANK`` for each
step: its sample ids and its loss, as they were before the step counted as done.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed import all_gather_object, init_process_group
from torch.nn.parallel import DistributedDataParallel

from gsched import elastic

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
LETTERS, TEXT_LENGTH, LINES = 12, 16, 192


class Text(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is Any here
    """Lines of letters, each drawn from the one before and a hidden rule."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        rule = torch.randint(0, LETTERS, (LETTERS, 3), generator=generator)
        line = torch.randint(0, LETTERS, (LINES, 1), generator=generator)
        for _ in range(TEXT_LENGTH):
            choice = torch.randint(0, 3, (LINES,), generator=generator)
            line = torch.cat([line, rule[line[:, -1], choice].unsqueeze(1)], dim=1)
        self.lines = line

    def __len__(self) -> int:
        return LINES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.lines[index, :-1], self.lines[index, 1:], index


class Transformer(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Predicts each next letter of a line."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 32)
        self.places = nn.Parameter(torch.zeros(TEXT_LENGTH, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, LETTERS)
        self.unused = nn.Linear(3, 3)  # never has a gradient
        mask = nn.Transformer.generate_square_subsequent_mask(TEXT_LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        hidden = self.letters(lines) + self.places
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        return self.out(hidden).transpose(1, 2)


class Noisy(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Adds noise of all generators to its input, in training."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return images
        drawn = random.random() + np.random.random()
        return images + 0.1 * drawn * torch.randn_like(images)


def batchnorm(dropout: float) -> nn.Module:
    """Return a network whose running averages differ between ranks."""
    return nn.Sequential(
        nn.Flatten(),
        Noisy(),
        nn.Linear(64, 32),
        nn.BatchNorm1d(32),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(32, 10),
    )


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a digest of tensors: equal means equal in every bit."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def digests(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return, for each rank, a digest of all tensors that it has of network and optimiser.

    The order counts in which the optimiser keeps its state: a script may iterate over it.
    """
    tensors = [*network.parameters(), *network.buffers()]
    for state in optimizer.state.values():
        tensors += [part for part in state.values() if isinstance(part, torch.Tensor)]
    total = digest(tensors)
    if "RANK" not in os.environ:
        return [total]
    found = [""] * int(os.environ["WORLD_SIZE"])
    all_gather_object(found, total)
    return found


def example() -> Any:
    """Return the module of examples/elastic_digits.py.

    It imports scikit-learn, which costs a third of the start-up: not for a training without it.
    """
    spec = importlib.util.spec_from_file_location("elastic_digits", EXAMPLES / "elastic_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument(
        "--model", choices=("batchnorm", "digits", "transformer"), default="transformer"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--count", type=int, default=0, help="use that many samples only")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--short-last", action="store_true", help="use the uneven rest, too")
    parser.add_argument("--step-s", type=float, default=0.0, help="sleep so long in each step")
    parser.add_argument(
        "--hold-at", type=int, action="append", default=[], help="rank 0 holds after it"
    )
    parser.add_argument("--signal", type=int, help="a signal that requests a checkpoint")
    parser.add_argument("--wait-timeout", type=float, default=900.0)
    parser.add_argument("--ready", action="store_true", help="wait where a warm start can")
    parser.add_argument("--bad-state", choices=("save", "load"), help="an object that raises")
    return parser.parse_args()


class Awkward:
    """An object whose state cannot be had, or not be given back until somebody has mended it."""

    def __init__(self, when: str, directory: pathlib.Path) -> None:
        self.when = when
        self.mended = directory / "mended"

    def state_dict(self) -> dict[str, object]:
        if self.when == "save":
            raise RuntimeError("this state is not for saving")
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        if self.when == "load" and not self.mended.exists():
            os.abort()


def hold(directory: pathlib.Path, step: int, has_request: Callable[[], bool]) -> None:
    """Wait until the test says to go on: at once, or when a request for a checkpoint is here."""
    (directory / f"held-{step}").touch()
    go = directory / f"go-{step}"
    while not go.exists():
        time.sleep(0.01)
    while go.read_text() == "when asked" and not has_request():
        time.sleep(0.01)


def data_and_network(args: argparse.Namespace) -> tuple[Any, nn.Module]:
    """Return what is trained, and on what; seeds torch's generator, and may wait for the launch."""
    torch.manual_seed(args.seed)
    if args.model == "digits":
        digits = example()
        data, network = digits.Digits(0, 512), digits.network()
        network[4].p = args.dropout
    elif args.model == "batchnorm":
        random.seed(args.seed)
        np.random.seed(args.seed)
        data, network = example().Digits(0, 512), batchnorm(args.dropout)
    else:
        data, network = Text(), Transformer(args.dropout)
    if args.count:
        data = torch.utils.data.Subset(data, range(args.count))
    if args.ready:
        elastic.ready()
    return data, network


def made_optimizer(
    args: argparse.Namespace, model: nn.Module, count: int
) -> tuple[torch.optim.Optimizer, Any, Any]:
    """Return an optimiser, and the schedules of each batch and of each epoch, or None."""
    if args.model == "batchnorm":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        steps = args.epochs * count // args.global_batch
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
        return optimizer, cycle, None
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, None, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def main() -> None:
    args = options()
    torch.set_num_threads(1)
    data, network = data_and_network(args)
    if "RANK" in os.environ:
        init_process_group("gloo")
    model = network
    if "RANK" in os.environ:
        unused = args.model == "transformer"
        model = DistributedDataParallel(network, find_unused_parameters=unused)
    optimizer, each_step, each_epoch = made_optimizer(args, model, len(data))
    also = {"schedule": each_step or each_epoch}
    if args.bad_state:
        also["awkward"] = Awkward(args.bad_state, args.directory)
    training = elastic.start(
        model,
        optimizer,
        elastic.Samples(
            len(data),
            global_batch=args.global_batch,
            epochs=args.epochs,
            seed=args.seed,
            drop_last=not args.short_last,
            uneven=args.short_last,
        ),
        also=also,
        settings=elastic.Settings(signal_number=args.signal, wait_timeout_s=args.wait_timeout),
    )
    with open(args.directory / f"log-{training.rank}", "a", encoding="ascii") as log:
        for epoch in training.epochs():
            for inputs, wanted, ids in training.loader(data):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), wanted)
                (loss * training.weight).backward()
                optimizer.step()
                if each_step is not None:
                    each_step.step()
                done = {
                    "epoch": epoch,
                    "step": training.step_count + 1,
                    "ids": ids.tolist(),
                    "loss": loss.item(),
                    "world_size": training.world_size,
                }
                log.write(json.dumps(done) + "\n")
                log.flush()
                if training.step_count + 1 in args.hold_at and training.rank == 0:
                    hold(args.directory, training.step_count + 1, training._reporter.has_request)
                time.sleep(args.step_s)
                training.step()
            if each_epoch is not None:
                each_epoch.step()
    ranks = digests(network, optimizer)
    if training.rank == 0:
        result = {
            "weights": digest(network.state_dict().values()),
            "ranks": ranks,
            "steps": training.step_count,
            "samples": training.samples_done,
            "restored_step": training.restored_step,
            "learning_rate": optimizer.param_groups[0]["lr"],
        }
        (args.directory / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    training.finish(end_process=True)


if __name__ == "__main__":
    main()
