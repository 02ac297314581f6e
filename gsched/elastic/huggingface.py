"""A Hugging Face Trainer that gsched checkpoints, moves and resizes.

    from gsched.elastic.huggingface import ElasticCallback

    elastic = ElasticCallback(global_batch=64)
    args = TrainingArguments(
        "out", per_device_train_batch_size=elastic.per_device_batch, dataloader_drop_last=True, ...
    )
    trainer = Trainer(model, args, train_dataset=data, callbacks=[elastic])
    trainer.train(resume_from_checkpoint=elastic.checkpoint(args))

Checkpoints are the Trainer's own; they lie where those of other training jobs do, complete or not
at all. The Trainer skips the batches that an epoch has used, so the global batch, which is the same
on any number of ranks, makes the samples of a step the same, too.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from gsched.elastic.errors import BadArgumentError, WorldSizeError
from gsched.elastic.hosted import Host, HostedTraining, check_batches, end_process, errors_shown
from gsched.elastic.samples import Samples
from gsched.elastic.training import Settings

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

#: Steps of which the Trainer has not said yet how many there are.
_MANY_STEPS = 1 << 40


class ElasticCallback(TrainerCallback):  # type: ignore[misc]  # the library has no types here
    """Saves when gsched asks, waits to be stopped, and reports steps.

    Args:
        global_batch: samples of a step of the optimiser, over all ranks.
        accumulation: ``gradient_accumulation_steps``.
        settings: where checkpoints are and how often, if the environment is not to say it.
    """

    def __init__(
        self, *, global_batch: int, accumulation: int = 1, settings: Settings | None = None
    ) -> None:
        self._accumulation = accumulation
        sizes = range(1, global_batch // accumulation + 1)
        self._samples = Samples(
            count=_MANY_STEPS * global_batch,
            global_batch=global_batch,
            shuffle=False,
            world_sizes=tuple(n for n in sizes if global_batch % (n * accumulation) == 0),
        )
        self._host = Host(self._write, settings)
        self._looked_s = 0.0
        self._training: HostedTraining | None = None
        self._source = ""  # what the Trainer has saved, on its way into our directory
        self._stays = False  # where it is, too
        self._has_begun = False

    @property
    def per_device_batch(self) -> int:
        """Return ``per_device_train_batch_size`` for this number of ranks.

        Raises:
            WorldSizeError: the global batch does not split into equal parts.
        """
        with errors_shown():
            world_size = int(os.environ.get("WORLD_SIZE") or 1)
            self._samples.check(world_size)
            return self._samples.global_batch // (world_size * self._accumulation)

    def checkpoint(self, args: TrainingArguments) -> str | None:
        """Return what ``Trainer.train`` is to resume from; None: it begins anew.

        Called by all ranks. Files that are not those that were saved are told and left alone.

        Raises:
            ElasticError: the training cannot go on, or not as it is.
        """
        with errors_shown():
            world_size = args.world_size  # makes the process group
            if args.save_only_model:
                raise BadArgumentError(
                    "save_only_model=True: checkpoints without the optimiser cannot be gone on "
                    "from: leave it out"
                )
            batch = args.train_batch_size * world_size * args.gradient_accumulation_steps
            if (batch, args.gradient_accumulation_steps) != (
                self._samples.global_batch,
                self._accumulation,
            ):
                raise WorldSizeError(
                    f"a step takes {batch} samples on {world_size} ranks with "
                    f"gradient_accumulation_steps={args.gradient_accumulation_steps}, and "
                    f"ElasticCallback says global_batch={self._samples.global_batch} and "
                    f"accumulation={self._accumulation}: let per_device_train_batch_size be its "
                    "per_device_batch"
                )
            restored = self._host.restore(self._samples)
            self._looked_s = time.perf_counter()
            if restored is None:
                return None
            check_batches(self._samples, restored.position)
            return restored.entry.path

    # --- what the Trainer calls ---

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Connect to the node."""
        with errors_shown():
            if not self._host.has_looked:
                raise BadArgumentError(
                    "call trainer.train(resume_from_checkpoint=elastic.checkpoint(args))"
                )
            restored = self._host.restored
            if restored is not None and state.global_step != restored.position.step:
                raise BadArgumentError(
                    f"the training is at step {state.global_step}, and its checkpoint at step "
                    f"{restored.position.step}: call "
                    "trainer.train(resume_from_checkpoint=elastic.checkpoint(args))"
                )
            batch = self._samples.global_batch
            samples = replace(self._samples, count=max(state.max_steps, 1) * batch)
            if restored is not None:  # since then the Trainer has loaded it
                loaded_s = time.perf_counter() - self._looked_s
                self._host.restored = replace(restored, wall_s=restored.wall_s + loaded_s)
            self._training = self._host.training(kwargs["model"], samples)
            self._host.begin(self._training)
            self._training.begin_steps()

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Do not count what lies between epochs as a step's time."""
        self._now().begin_steps()

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Give the generators back before the first step; the Trainer does so on equal ranks."""
        if not self._has_begun:
            self._has_begun = True
            self._now().become_what_was_saved()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Count a step, and let the Trainer save if the ranks have agreed on it."""
        training = self._now()
        training.step()
        if state.global_step >= state.max_steps:
            training.refuse_requests()
        elif training.is_due:
            self._source = os.path.join(args.output_dir or "", f"checkpoint-{state.global_step}")
            self._stays = control.should_save or args.save_total_limit is not None
            control.should_save = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Publish the Trainer's checkpoint, tell of it, and wait if the node asks to."""
        if self._source:
            self._stays = self._stays or state.best_model_checkpoint == self._source
            self._now().save_if_due()
            self._source = ""
        self._now().begin_steps()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Do not count an evaluation as a step's time."""
        if self._training is not None:
            self._training.begin_steps()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Say that the training is over; its newest checkpoint stays."""
        self._now().finish()

    def end_process(self) -> None:
        """End this process with code 0, at the end of the script; see `Training.finish`."""
        end_process()

    # --- its checkpoints ---

    def _now(self) -> HostedTraining:
        assert self._training is not None, "the Trainer calls on_train_begin first"
        return self._training

    def _write(self, directory: str) -> None:
        """Move what the Trainer has saved into our directory, or let it have it twice.

        Only rank 0 does: the directory of one checkpoint is seen by all nodes.
        """
        if self._now().rank != 0:
            return
        if self._stays:
            shutil.copytree(self._source, directory, copy_function=_link, dirs_exist_ok=True)
            return
        for name in os.listdir(self._source):
            shutil.move(os.path.join(self._source, name), os.path.join(directory, name))
        os.rmdir(self._source)


def _link(source: str, target: str) -> str:
    """Let a file have another name, or copy it where it cannot: the Trainer writes files anew."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
