"""A training job with a given step time, to try deadlines without GPUs.

Every rank computes on its own part of generated data and averages gradients with the others, as in
any training job; then it waits until the step has taken ``--step-time-ms``, as if a GPU were busy.
So its run time is known in advance, like that of a training job on GPUs from its earlier runs:

    gsub --deadline 5m --gpus 1..4 --params 10k --samples 6400 --batch 16 --epochs 2 \
        --step-time 200ms --torchrun examples/paced/train.py \
        --samples 6400 --batch 16 --epochs 2 --step-time-ms 200
"""

import argparse
import os
import sys
import time

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train at a given pace on generated data")
    parser.add_argument("--samples", type=int, default=6400, help="in the data set")
    parser.add_argument("--batch", type=int, default=16, help="samples per rank and step")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--step-time-ms", type=float, default=200.0)
    return parser.parse_args()


def train(args: argparse.Namespace, rank: int, world_size: int) -> float:
    """Train on all ranks and return the last loss."""
    torch.manual_seed(1)  # the same first weights everywhere
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    loss = torch.zeros(())
    for _ in range(args.epochs):
        for _ in range(args.samples // (args.batch * world_size)):
            due_s = time.monotonic() + args.step_time_ms / 1000
            inputs = torch.randn(args.batch, 64, generator=generator)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, due_s - time.monotonic()))
    return loss.item()


def main() -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    args = options()
    init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    loss = train(args, rank, world_size)
    if rank == 0:
        print(f"{world_size} ranks, last loss {loss:.3f}")
    destroy_process_group()
    sys.stdout.flush()
    # At the end of the interpreter this torch's gloo threads may abort a rank that has done all.
    os._exit(0)


if __name__ == "__main__":
    main()
