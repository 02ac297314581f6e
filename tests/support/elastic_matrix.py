"""Trains kinds of networks with and without moves, and compares all tensors of all ranks.

    torchrun --nproc-per-node 3 elastic_matrix.py DIRECTORY KIND[,KIND...] RANKS[,RANKS...]

RANKS are the numbers of ranks of a training's attempts, as ``2-2-2``. A move is made within one
process: everything is made anew, with all random number generators elsewhere, in a process group of
its own. Each rank adds a line to ``DIRECTORY/told-RANK`` for each kind: ``KIND RANKS: ok``, or what
differs from a training on the first number of ranks that nobody disturbed. The samples that it has
used, with their epochs, are in ``DIRECTORY/KIND/used-RANKS-RANK``.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import random
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.utils.data import TensorDataset

from gsched import elastic
from tests.support.elastic_made import WIDTH, Made
from tests.support.elastic_zoo import KINDS

RANK = int(os.environ["RANK"])
COUNT, BATCH, EPOCHS = 48, 12, 3  # 4 steps in each epoch
#: Steps after which a training is moved: within an epoch, at its end, in an accumulation of three.
STOPS = (2, 4, 7, 10)
#: Of any number, absolute, where only the order of additions differs; they are up to 10.
TOLERANCE = 2e-4
DATA = TensorDataset(
    torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(1)), torch.arange(COUNT)
)

State = dict[str, Any]


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def attempt(kind: str, directory: pathlib.Path, used: list[tuple[int, int]], stop: int) -> State:
    """Train until a checkpoint was saved after the step ``stop`` or later, or to the end.

    Args:
        kind: of the zoo.
        directory: of the checkpoints.
        used: gets epoch and number of each sample that this rank uses.
        stop: 0: to the end.

    Returns:
        All that this rank has then.
    """
    seed(5)  # all ranks begin with the same weights
    made = KINDS[kind][0]()
    training = elastic.start(
        made.model,
        made.optimizers,
        elastic.Samples(COUNT, global_batch=BATCH, epochs=EPOCHS),
        also=made.also,
        per_rank=made.per_rank,
        settings=elastic.Settings(directory=str(directory), interval_s=0),
    )
    # A training that goes on must find its generators as they were, whatever they are now.
    seed(1000 + RANK if training.restored_step is None else 2000 + RANK + stop)
    made.before()
    for epoch in training.epochs():
        made.before_epoch()
        for x, ids in training.loader(DATA):
            step = training.step_count
            if step >= stop > 0 and any(directory.glob(f"*.step-{step:09d}.*")):
                break
            used += [(epoch, int(number)) for number in ids]
            made.step(x, training.step_count)
            if training.step_count + 1 == stop:
                training.checkpoint()
            training.step()
            made.after_step()
        else:
            made.after_epoch()
            continue
        break
    state = state_of(made)
    training.finish()
    return state


def state_of(made: Made) -> State:
    """Return copies of all that a training has, on this rank."""
    state: State = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "parameters": [local(each) for each in made.model.parameters()],
        "gradients": [local(each.grad) for each in made.model.parameters()],
        "buffers": {name: local(each) for name, each in made.model.named_buffers()},
        "groups": [
            {name: value for name, value in group.items() if name != "params"}
            for each in made.optimizers
            for group in each.param_groups
        ],
        "optimizers": [
            [moments(each, parameter) for parameter in group["params"]]
            for each in made.optimizers
            for group in each.param_groups
        ],
    }
    for name, thing in (*made.also.items(), *made.per_rank.items()):
        if hasattr(thing, "state_dict"):
            state[name] = thing.state_dict()
        else:
            state[name] = getattr(thing, "getstate", getattr(thing, "get_state", str))()
    return dict(flat(state, ""))


def moments(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> State:
    """Return what this rank has of an optimiser's state of a parameter."""
    state: State = optimizer.state.get(parameter, {})
    return {
        name: local(part) if isinstance(part, torch.Tensor) else part
        for name, part in state.items()
    }


def local(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return what this rank has of a tensor."""
    if tensor is not None and hasattr(tensor, "to_local"):
        return tensor.to_local()
    return tensor


def flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield all leaves."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from flat(part, f"{path}/{index}")
    elif isinstance(value, torch.Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, np.ndarray):
        yield path, value.tobytes()
    elif callable(value):
        return
    else:
        yield path, value


def differ(one: object, other: object, tolerance: float) -> bool:
    """Return whether two leaves are not the same, bit for bit where no tolerance is given."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        if tolerance and one.is_floating_point():
            return not torch.allclose(one, other, rtol=tolerance, atol=tolerance)
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        return not torch.equal(one, other)
    if tolerance and isinstance(one, float) and isinstance(other, float):
        return abs(one - other) > tolerance * max(1.0, abs(one))
    return type(one) is not type(other) or one != other


def run(kind: str, directory: pathlib.Path, sizes: list[int], name: str) -> tuple[State, Any]:
    """Run attempts on these numbers of ranks; return the last one's state and samples used."""
    used: list[tuple[int, int]] = []
    state: State = {}
    for number, size in enumerate(sizes):
        stop = STOPS[number] if number + 1 < len(sizes) else 0
        if size > RANK:
            store = directory / f"store-{name}-{number}"
            distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=RANK, world_size=size
            )
            try:
                state = attempt(kind, directory / name, used, stop)
            finally:
                gc.collect()
                distributed.destroy_process_group()
    return state, used


def compared(expected: State, found: State, tolerance: float, names: tuple[str, ...]) -> list[str]:
    """Return what differs, of those leaves whose path begins with one of ``names``."""
    wrong = []
    for path in sorted({*expected, *found}):
        if not path.startswith(names):
            continue
        if path not in expected or path not in found:
            wrong.append(f"{path}: only {'before' if path in expected else 'after'}")
        elif differ(expected[path], found[path], tolerance):
            wrong.append(f"{path}: {expected[path]} and {found[path]}"[:300].replace("\n", " "))
    return wrong


def check(kind: str, directory: pathlib.Path, sizes: list[int]) -> list[str]:
    """Return what differs on this rank between a training that is moved and one that is not."""
    name = "-".join(map(str, sizes))
    is_same_size = len(set(sizes)) == 1
    undisturbed, all_used = run(kind, directory, sizes[:1], f"undisturbed-{name}")
    found, used = run(kind, directory, sizes, name)
    (directory / f"used-{name}-{RANK}").write_text(json.dumps(used))
    if is_same_size:
        wrong = compared(undisturbed, found, 0.0, ("/",))
        if used != all_used:
            wrong.append("other samples")
        return wrong
    if not KINDS[kind][1]:  # what comes out depends on the ranks; but always in the same way
        undisturbed, _ = run(kind, directory, sizes, f"again-{name}")
        return compared(undisturbed, found, 0.0, ("/",))
    if min(sizes[0], sizes[-1]) <= RANK:
        return []
    return compared(undisturbed, found, TOLERANCE, ("/parameters", "/optimizers", "/groups"))


def main() -> None:
    torch.set_num_threads(1)
    directory = pathlib.Path(sys.argv[1])
    with open(directory / f"told-{RANK}", "w", encoding="utf-8", buffering=1) as told:
        for kind in sys.argv[2].split(","):
            for plan in sys.argv[3].split(","):
                below = directory / kind
                below.mkdir(exist_ok=True)
                sizes = [int(size) for size in plan.split("-")]
                try:
                    wrong = check(kind, below, sizes)
                except BaseException:  # noqa: BLE001 - told to the test
                    told.write(f"{kind} {plan}: {traceback.format_exc()}\n")
                    os._exit(1)
                told.write(f"{kind} {plan}: {'; '.join(wrong[:5]) or 'ok'}\n")
    os._exit(0)


if __name__ == "__main__":
    main()
