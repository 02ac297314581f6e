"""Train on handwritten digits; gsched can checkpoint, migrate and resize the training job.

    gsub -N digits -l nodes=2:ppn=1:gpus=2 --torchrun examples/elastic_digits.py --out digits.json
    torchrun --standalone --nproc-per-node 2 examples/elastic_digits.py --out digits.json

Only the lines with ``elastic`` or ``training`` differ from an ordinary DistributedDataParallel
script. Outside gsched the script trains as usual; with GSCHED_CHECKPOINT_DIR set, it resumes from
its newest checkpoint when it is started again. The 1,797 images ship inside scikit-learn.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from gsched import elastic

IMAGE_PIXELS_MAX = 16.0  # the pixels are counts from 0 to 16
TRAINED_ON = 1280  # of the images; the others test


class Digits(Dataset):
    """Images of shape ``(1, 8, 8)`` in 0..1 with their classes and their numbers."""

    def __init__(self, first: int, last: int) -> None:
        images, classes = load_digits(return_X_y=True)
        scaled = torch.as_tensor(images[first:last]).float() / IMAGE_PIXELS_MAX
        self.images = scaled.reshape(-1, 1, 8, 8)
        self.classes = torch.as_tensor(classes[first:last]).long()

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.images[index], self.classes[index], index


def network() -> nn.Module:
    """Return a small convolutional network, with dropout, so that random numbers matter."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train on scikit-learn's handwritten digits")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--global-batch", type=int, default=64, help="images per step, all ranks")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


@torch.no_grad()
def accuracy(model: nn.Module, test: Digits, device: torch.device) -> float:
    """Return the share of the test images that are classified correctly."""
    model.eval()
    right = model(test.images.to(device)).argmax(dim=1) == test.classes.to(device)
    model.train()
    return right.float().mean().item()


def digest(model: nn.Module) -> str:
    """Return a digest of all weights: equal means equal in every bit."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    """Join the other ranks, train, and let rank 0 write the result."""
    args = options()
    torch.set_num_threads(1)  # ranks of one machine share its cores
    enough_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if enough_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    init_process_group("nccl" if enough_gpus else "gloo")

    torch.manual_seed(args.seed)
    data, test = Digits(0, TRAINED_ON), Digits(TRAINED_ON, 1797)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    samples = elastic.Samples(
        len(data), global_batch=args.global_batch, epochs=args.epochs, seed=args.seed
    )
    training = elastic.start(model, optimizer, samples, also={"schedule": schedule})
    reached = 0.0
    for epoch in training.epochs():
        for images, classes, _ in training.loader(data):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), classes.to(device))
            loss.backward()
            optimizer.step()
            training.step()
        schedule.step()
        reached = accuracy(model.module, test, device)
        if training.rank == 0:
            print(f"epoch {epoch + 1:2d}: accuracy {reached:.4f}", flush=True)

    if training.rank == 0:
        result = {
            "accuracy": reached,
            "steps": training.step_count,
            "samples": training.samples_done,
            "world_size": training.world_size,
            "restored_step": training.restored_step,
            "weights": digest(model.module),
        }
        args.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
        print(f"accuracy {reached:.4f} on {training.world_size} ranks", flush=True)
    training.finish(end_process=True)


if __name__ == "__main__":
    main()
