"""An elastic training job with the Trainer of PyTorch Lightning.

A small network learns the sum of random numbers. Migrate and resize it while it trains:

    gsub -N sums --elastic --gpus 1..4 --torchrun examples/elastic_lightning.py --model sums.pt
    gmigrate JOB --gpus 2 --wait
"""

import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import TensorDataset

from gsched.elastic import Samples
from gsched.elastic.lightning import ElasticCallback


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train a small network to add")
    parser.add_argument("--samples", type=int, default=65536, help="in the data set")
    parser.add_argument("--global-batch", type=int, default=64, help="samples of a step, all ranks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--model", default="sums.pt", help="file of the trained model")
    return parser.parse_args()


class Adding(LightningModule):
    """Learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, sums = batch
        return nn.functional.mse_loss(self.net(inputs), sums)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Run one rank."""
    wanted = options()
    elastic = ElasticCallback(
        Samples(wanted.samples, global_batch=wanted.global_batch, epochs=wanted.epochs)
    )
    path = elastic.checkpoint()  # before the Trainer is made
    trainer = Trainer(
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if "RANK" in os.environ else "auto",
        max_epochs=wanted.epochs,
        callbacks=[elastic],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    torch.manual_seed(1)  # the same first weights on all ranks
    inputs = torch.randn(wanted.samples, 16, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = Adding()
    trainer.fit(model, elastic.loader(data), ckpt_path=path)
    trainer.save_checkpoint(wanted.model, weights_only=True)
    if trainer.is_global_zero:
        samples = trainer.global_step * wanted.global_batch
        print(f"{trainer.global_step} steps, {samples} samples on {trainer.world_size} ranks")
    elastic.end_process()


if __name__ == "__main__":
    main()
