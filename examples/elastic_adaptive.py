"""Train on handwritten digits with a global batch that gsched chooses together with the GPUs.

    gsub --adaptive --batch 32 --batch-max 512 --gpus 1..4 --torchrun examples/elastic_adaptive.py
    torchrun --standalone --nproc-per-node 2 examples/elastic_adaptive.py

Outside gsched, GSCHED_BATCH_PER_GPU=64 and GSCHED_ACCUMULATION=1 give the second one 256 images a
step.

The learning rate is tuned for batches of 32. The training ends when it has made the progress of
20 epochs with this batch: larger ones use some more images for it, in fewer steps.
"""

import os
import pathlib
import sys

import torch
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

from gsched import elastic

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from elastic_digits import TRAINED_ON, Digits, accuracy, network


def main() -> None:
    """Join the other ranks and train; rank 0 tells how it went after each epoch."""
    torch.set_num_threads(1)  # ranks of one machine share its cores
    enough_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if enough_gpus else "cpu"
    if enough_gpus:
        torch.cuda.set_device(device)
    init_process_group("nccl" if enough_gpus else "gloo")

    torch.manual_seed(1)
    data, test = Digits(0, TRAINED_ON), Digits(TRAINED_ON, 1797)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = elastic.Samples(len(data), global_batch=32, epochs=20)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, samples.total // 32)

    training = elastic.start(
        model,
        optimizer,
        samples,
        also={"schedule": schedule},
        adaptive=elastic.Adaptive(batch_max=512, until=elastic.Until.PROGRESS),
    )
    for epoch in training.epochs():
        for parts in training.steps(data):
            optimizer.zero_grad()
            for images, classes, _ in parts:
                loss = nn.functional.cross_entropy(model(images.to(device)), classes.to(device))
                (training.weight * loss).backward()
            optimizer.step()
            training.step()
            training.advance(schedule)
        reached = accuracy(model.module, test, device)
        if training.rank == 0:
            print(
                f"epoch {epoch + 1}: batch {training.global_batch}, accuracy {reached:.3f}, "
                f"{training.step_count} steps, worth {training.scale_invariant_steps:.0f}",
                flush=True,
            )
    training.finish(end_process=True)


if __name__ == "__main__":
    main()
