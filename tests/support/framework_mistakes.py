"""Mistakes in scripts with the callbacks of frameworks: prints what each of them is told.

python framework_mistakes.py huggingface|lightning DIRECTORY
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gsched.elastic import Samples
from gsched.elastic.errors import ElasticError


def told(name: str, act: Callable[[], object]) -> None:
    """Print the words of a mistake, in one line."""
    try:
        act()
    except (ElasticError, ValueError) as error:
        print(f"{name}: {type(error).__name__}: {error}".replace("\n", " "))
    else:
        print(f"{name}: nothing")


def huggingface(directory: Path) -> None:
    """Tell of scripts with a Trainer of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from gsched.elastic.huggingface import ElasticCallback

    def arguments(**changes: Any) -> Any:
        return TrainingArguments(
            str(directory / "out"),
            **{"use_cpu": True, "report_to": "none", "max_steps": 1, **changes},
        )

    def train(elastic: ElasticCallback) -> None:
        config = GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1)
        data = [{"input_ids": torch.zeros(4, dtype=torch.long)}] * 8
        args = arguments(per_device_train_batch_size=8)
        Trainer(GPT2LMHeadModel(config), args, train_dataset=data, callbacks=[elastic]).train()

    elastic = ElasticCallback(global_batch=8)
    told("other batch", lambda: elastic.checkpoint(arguments(per_device_train_batch_size=4)))
    told(
        "other accumulation",
        lambda: elastic.checkpoint(
            arguments(per_device_train_batch_size=4, gradient_accumulation_steps=2)
        ),
    )
    told("weights only", lambda: elastic.checkpoint(arguments(save_only_model=True)))
    told("not looked", lambda: train(elastic))


def lightning(directory: Path) -> None:
    """Tell of scripts with a Trainer of Lightning, under its older name."""
    import pytorch_lightning
    from torch.utils.data import TensorDataset

    from gsched.elastic.lightning import ElasticCallback

    class Line(pytorch_lightning.LightningModule):  # type: ignore[misc]  # no types here
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _number: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(elastic: ElasticCallback, **changes: Any) -> None:
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[elastic],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            logger=False,
            default_root_dir=directory,
            **{"use_distributed_sampler": False, **changes},
        )
        trainer.fit(Line(), elastic.loader(TensorDataset(torch.zeros(8, 2))))

    elastic = ElasticCallback(Samples(8, global_batch=4))
    assert issubclass(ElasticCallback, pytorch_lightning.Callback)
    told("not looked", lambda: elastic.loader(TensorDataset(torch.zeros(8, 2))))
    elastic.checkpoint()
    told("other data", lambda: elastic.loader(TensorDataset(torch.zeros(9, 2))))
    told("uneven", lambda: ElasticCallback(Samples(8, global_batch=4, uneven=True)))
    told("its own samples", lambda: fit(elastic, use_distributed_sampler=True))
    told("as it should", lambda: fit(elastic))
    print(f"steps: {elastic._now().step_count}")


if __name__ == "__main__":
    {"huggingface": huggingface, "lightning": lightning}[sys.argv[1]](Path(sys.argv[2]))
