"""An elastic training job with the Trainer of Hugging Face transformers.

A small language model with random weights learns to count; nothing is downloaded. Migrate and
resize it while it trains:

    gsub -N count --elastic --gpus 1..4 --torchrun examples/elastic_huggingface.py --model count
    gmigrate JOB --gpus 2 --wait
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gsched.elastic.huggingface import ElasticCallback

WORDS, LENGTH = 64, 16


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description="train a small language model to count")
    parser.add_argument("--samples", type=int, default=4096, help="in the data set")
    parser.add_argument("--global-batch", type=int, default=64, help="samples of a step, all ranks")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--out", default="count-trainer", help="the Trainer's own directory")
    parser.add_argument("--model", default="count", help="directory of the trained model")
    return parser.parse_args()


class Counting(torch.utils.data.Dataset):
    """Sequences that count upwards from a random number."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        begins = torch.randint(0, WORDS, (count, 1), generator=generator)
        self._sequences = (begins + torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._sequences[index], "labels": self._sequences[index]}


def main() -> None:
    """Run one rank."""
    wanted = options()
    elastic = ElasticCallback(global_batch=wanted.global_batch)
    args = TrainingArguments(
        wanted.out,
        per_device_train_batch_size=elastic.per_device_batch,
        num_train_epochs=wanted.epochs,
        learning_rate=1e-3,
        dataloader_drop_last=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(1)  # the same first weights on all ranks
    trainer = Trainer(
        GPT2LMHeadModel(config),
        args,
        train_dataset=Counting(wanted.samples),
        callbacks=[elastic],
    )
    trainer.train(resume_from_checkpoint=elastic.checkpoint(args))
    trainer.save_model(wanted.model)
    if trainer.is_world_process_zero():
        samples = trainer.state.global_step * wanted.global_batch
        print(f"{trainer.state.global_step} steps, {samples} samples on {args.world_size} ranks")
    elastic.end_process()


if __name__ == "__main__":
    main()
