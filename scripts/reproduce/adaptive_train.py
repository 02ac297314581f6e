"""An adaptive training on declared GPUs, which are control groups with a part of a core each.

    torchrun --standalone --nproc-per-node 1 scripts/reproduce/adaptive_train.py --out out.json

A rank that gsched has started enters the group of its GPU: ``--gpus`` names a JSON file with, by
node, the files of each GPU's groups to which a process writes its number. With ``--hold FILE`` the
training waits after each step of its second half while the file exists.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

from gsched import elastic

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

from elastic_digits import TRAINED_ON, Digits, accuracy

TUNED = 32
PIXELS = 64
CLASSES = 10
HOLD_S = 5.0


def network(width: int) -> nn.Module:
    """Return a network of two hidden layers; its pass takes as long as ``width`` says."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(PIXELS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train on scikit-learn's handwritten digits")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON file for the result")
    parser.add_argument("--gpus", type=pathlib.Path, help="JSON file of the declared GPUs")
    parser.add_argument("--hold", type=pathlib.Path, help="wait while this file exists")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-max", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    return parser.parse_args()


def enter_gpu(path: pathlib.Path) -> None:
    """Put this process into the control groups of its declared GPU."""
    gpus = json.loads(path.read_text())[os.environ["GSCHED_NODE"]]
    own = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
    for entrance in gpus[int(own)]:
        pathlib.Path(entrance).write_text(str(os.getpid()))


def main() -> None:
    """Train; rank 0 writes the accuracy in the end."""
    asked = options()
    torch.set_num_threads(1)
    elastic.ready()
    if asked.gpus is not None:
        enter_gpu(asked.gpus)
    init_process_group("gloo")
    torch.manual_seed(1)
    data, test = Digits(0, TRAINED_ON), Digits(TRAINED_ON, 1797)
    model = DistributedDataParallel(network(asked.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    training = elastic.start(
        model,
        optimizer,
        elastic.Samples(len(data), global_batch=TUNED, epochs=asked.epochs),
        adaptive=elastic.Adaptive(batch_max=asked.batch_max, until=elastic.Until.PROGRESS),
    )
    half = len(data) // TUNED * asked.epochs / 2
    for _ in training.epochs():
        for parts in training.steps(data):
            optimizer.zero_grad()
            for images, classes, _ in parts:
                loss = nn.functional.cross_entropy(model(images), classes)
                (training.weight * loss).backward()
            optimizer.step()
            training.step()
            is_late = training.scale_invariant_steps > half
            if is_late and asked.hold is not None and asked.hold.exists():
                time.sleep(HOLD_S)
    if training.rank == 0:
        told = {
            "accuracy": accuracy(model.module, test, torch.device("cpu")),
            "steps": training.step_count,
            "progress": training.scale_invariant_steps,
            "batch": training.global_batch,
        }
        asked.out.write_text(json.dumps(told))
    training.finish(end_process=True)


if __name__ == "__main__":
    main()
