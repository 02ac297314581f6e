"""A Hugging Face Trainer on a tiny random network, whose samples are noted step by step."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gsched.elastic.huggingface import ElasticCallback
from tests.support.framework_trace import Trace


class Sequences(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # no types here
    """Random words; the number of the sample comes along."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self._words = torch.randint(0, 32, (count, 8), generator=generator)

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._words[index], "labels": self._words[index], "number": index}


class Noting(Trainer):  # type: ignore[misc]  # no types here
    """Notes the samples of each step."""

    trace: Trace
    elastic: ElasticCallback
    options: argparse.Namespace

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        training = self.elastic._now()
        self.trace.step(
            training.step_count + 1, inputs.pop("number").tolist(), training._reporter.has_request
        )
        if training.step_count + 1 == self.options.die_at:
            os._exit(9)
        if training.step_count + 1 == self.options.save_at:
            training.checkpoint()
        time.sleep(self.options.step_s)
        return super().training_step(model, inputs, *args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--save-total-limit", type=int)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--save-at", type=int, default=0, help="a checkpoint is due after it")
    parser.add_argument("--die-at", type=int, default=0, help="killed within this step")
    parser.add_argument("--hold-at", type=int, action="append", default=[])
    options = parser.parse_args()
    torch.manual_seed(1)
    elastic = ElasticCallback(global_batch=options.global_batch, accumulation=options.accumulation)
    args = TrainingArguments(
        str(options.directory / "out"),
        per_device_train_batch_size=elastic.per_device_batch,
        gradient_accumulation_steps=options.accumulation,
        num_train_epochs=options.epochs,
        learning_rate=0.01,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        save_total_limit=options.save_total_limit,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=options.dropout, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    trainer = Noting(
        GPT2LMHeadModel(config), args, train_dataset=Sequences(options.count), callbacks=[elastic]
    )
    trainer.trace = Trace(options.directory, options.hold_at)
    trainer.elastic, trainer.options = elastic, options
    trainer.train(resume_from_checkpoint=elastic.checkpoint(args))
    trainer.trace.end(trainer.state.global_step, trainer.model.state_dict())
    print(f"trained {trainer.state.global_step} steps on rank {os.environ.get('RANK', '0')}")
    elastic.end_process()


if __name__ == "__main__":
    main()
