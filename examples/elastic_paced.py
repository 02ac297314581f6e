"""An elastic training job with a given step time, for experiments without GPUs.

Every rank computes on its own part of generated data and averages gradients with the others, as in
any training job; then it waits until the step has taken ``--step-time-ms``, as if a GPU were busy.
So its run time is known in advance, like that of a training job on GPUs from its earlier runs:

    gsub --elastic --deadline 5m --gpus 1..4 --params 8449 --samples 6400 --batch 16 --epochs 2 \
        --step-time 200ms --torchrun examples/elastic_paced.py \
        --samples 6400 --batch 16 --epochs 2 --step-time-ms 200

The batch is that of each rank: on more ranks a step uses more samples, and there are fewer steps.
"""

import argparse
import time

import torch
from torch import nn
from torch.distributed import get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from gsched import elastic


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train at a given pace on generated data")
    parser.add_argument("--samples", type=int, default=6400, help="in the data set")
    parser.add_argument("--batch", type=int, default=16, help="samples per rank and step")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--step-time-ms", type=float, default=200.0)
    return parser.parse_args()


def main() -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    args = options()
    init_process_group("gloo")
    torch.manual_seed(1)  # the same first weights everywhere
    inputs = torch.randn(args.samples, 64)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    samples = elastic.Samples(
        len(data), global_batch=args.batch * get_world_size(), epochs=args.epochs
    )
    training = elastic.start(model, optimizer, samples)
    loss = torch.zeros(())
    for _ in training.epochs():
        for x, y in training.loader(data):
            due_s = time.monotonic() + args.step_time_ms / 1000
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, due_s - time.monotonic()))
            training.step()
    if training.rank == 0:
        done = f"{training.step_count} steps, {training.samples_done} samples"
        print(f"{done} on {training.world_size} ranks at last, last loss {loss.item():.3f}")
    training.finish(end_process=True)


if __name__ == "__main__":
    main()
