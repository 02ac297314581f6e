"""A Lightning Trainer on a tiny network, whose samples are noted step by step."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from gsched.elastic.lightning import ElasticCallback
from gsched.elastic.samples import Samples
from tests.support.framework_trace import Trace


class Points(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # no types here
    """Random points; the number of the sample comes along."""

    def __init__(self, count: int) -> None:
        self._points = torch.randn(count, 4, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._points[index], index


class Line(LightningModule):  # type: ignore[misc]  # no types here
    """Learns the sum of a point."""

    def __init__(self, trace: Trace, elastic: ElasticCallback, options: argparse.Namespace) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Dropout(options.dropout), nn.Linear(8, 1)
        )
        self._trace, self._elastic, self._options = trace, elastic, options

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, numbers = batch
        training = self._elastic._now()
        self._trace.step(training.step_count + 1, numbers.tolist(), training._reporter.has_request)
        if training.step_count + 1 == self._options.die_at:
            os._exit(9)
        if training.step_count + 1 == self._options.save_at:
            training.checkpoint()
        time.sleep(self._options.step_s)
        return nn.functional.mse_loss(self.net(x), x.sum(dim=1, keepdim=True))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--save-at", type=int, default=0, help="a checkpoint is due after it")
    parser.add_argument("--die-at", type=int, default=0, help="killed within this step")
    parser.add_argument("--hold-at", type=int, action="append", default=[])
    options = parser.parse_args()
    torch.manual_seed(1)
    elastic = ElasticCallback(
        Samples(options.count, global_batch=options.global_batch, epochs=options.epochs)
    )
    path = elastic.checkpoint()
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if "RANK" in os.environ else "auto",
        max_epochs=options.epochs,
        accumulate_grad_batches=options.accumulation,
        callbacks=[elastic],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trace = Trace(options.directory, options.hold_at)
    model = Line(trace, elastic, options)
    trainer.fit(model, elastic.loader(Points(options.count)), ckpt_path=path)
    trace.end(elastic._now().step_count, model.state_dict())
    print(f"trained {trainer.global_step} steps on rank {os.environ.get('RANK', '0')}")
    elastic.end_process()


if __name__ == "__main__":
    main()
