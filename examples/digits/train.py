"""Train a small network on scikit-learn's handwritten digits with torch.distributed.

Run it under torchrun, on one machine or many:

    gsub -N digits -l nodes=2:ppn=1:gpus=2 --torchrun examples/digits/train.py --out digits.json
    torchrun --standalone --nproc-per-node 4 examples/digits/train.py --out digits.json

The 1,797 images (8 x 8 pixels, 10 classes) ship inside scikit-learn, so nothing is downloaded.
Each rank trains on its part of the training set and keeps the same weights as the others by
DistributedDataParallel; the test set is split over the ranks, too. Rank 0 writes the accuracy.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.distributed import all_reduce, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

IMAGE_PIXELS_MAX = 16.0  # the pixels are counts from 0 to 16


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train on scikit-learn's handwritten digits")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: a GPU for each rank if this node shows that many, else the CPU",
    )
    return parser.parse_args()


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test images, shape ``(N, 1, 8, 8)`` in 0..1, with their classes."""
    images, classes = load_digits(return_X_y=True)
    parts = train_test_split(images, classes, test_size=0.25, stratify=classes, random_state=seed)
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)

    def dataset(x: Tensor, y: Tensor) -> TensorDataset:
        return TensorDataset((x.float() / IMAGE_PIXELS_MAX).reshape(-1, 1, 8, 8), y.long())

    return dataset(train_x, train_y), dataset(test_x, test_y)


def network() -> nn.Module:
    """Return two convolutions and two dense layers: 10 scores for each image."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train_epoch(model: nn.Module, batches: DataLoader, optimizer: torch.optim.Optimizer) -> Tensor:
    """Train on this rank's batches and return their mean loss."""
    device = next(model.parameters()).device
    losses = []
    for images, classes in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


@torch.no_grad()
def accuracy(model: nn.Module, images: TensorDataset, rank: int, world_size: int) -> float:
    """Return the share of ``images`` that all ranks together classify correctly."""
    device = next(model.parameters()).device
    model.eval()
    # A plain slice, not a DistributedSampler: that repeats images to give each rank the same.
    inputs, classes = (part[rank::world_size].to(device) for part in images.tensors)
    right = (model(inputs).argmax(dim=1) == classes).sum()
    counts = torch.stack([right, torch.tensor(len(classes), device=device)])
    all_reduce(counts)
    model.train()
    return counts[0].item() / counts[1].item()


def train(args: argparse.Namespace, device: torch.device) -> dict[str, float | int | str]:
    """Train on all ranks and return the result, the same on each."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(args.seed)  # the same first weights everywhere
    train_set, test_set = digits(args.seed)
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, seed=args.seed)
    batches = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(
        network().to(device), device_ids=[device.index] if device.type == "cuda" else None
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    reached = 0.0
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, batches, optimizer)
        all_reduce(loss)
        reached = accuracy(model, test_set, rank, world_size)
        if rank == 0:
            mean = loss.item() / world_size
            print(f"epoch {epoch:2d}: loss {mean:.4f}, test accuracy {reached:.4f}", flush=True)
    return {
        "accuracy": reached,
        "epochs": args.epochs,
        "world_size": world_size,
        "backend": torch.distributed.get_backend(),
        "device": device.type,
    }


def main() -> None:
    """Join the other ranks, train, and let rank 0 write the result."""
    args = options()
    torch.set_num_threads(1)  # ranks of one machine share its cores
    started_s = time.monotonic()
    # A GPU for each rank of this node, or none at all: a cluster for trying out declares GPUs
    # that do not exist.
    enough_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if args.device == "cuda" or (args.device == "auto" and enough_gpus):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        init_process_group("nccl")
    else:
        device = torch.device("cpu")
        init_process_group("gloo")
    result = train(args, device)
    destroy_process_group()
    if os.environ["RANK"] == "0":
        result["seconds"] = round(time.monotonic() - started_s, 2)
        partial = args.out.with_suffix(".partial")
        partial.write_text(json.dumps(result) + "\n", encoding="utf-8")
        partial.replace(args.out)
        print(f"accuracy {result['accuracy']:.4f} on {result['world_size']} ranks", flush=True)
    # DistributedDataParallel keeps the process group alive, and gloo's threads with it. One that
    # still has to give back a tensor needs Python for it, and where Python is just ending then,
    # the process aborts (torch 2.13, about one run in ten on a busy machine). So end without.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
