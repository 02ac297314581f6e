"""A Lightning Trainer that gsched checkpoints, moves and resizes.

    from gsched.elastic.lightning import ElasticCallback

    elastic = ElasticCallback(Samples(len(data), global_batch=64, epochs=20))
    path = elastic.checkpoint()
    trainer = Trainer(callbacks=[elastic], use_distributed_sampler=False, max_epochs=20, ...)
    trainer.fit(model, elastic.loader(data), ckpt_path=path)

Checkpoints are the Trainer's own; they lie where those of other training jobs do, complete or not
at all. Lightning does not go on within an epoch's data by itself: the loader does, which takes the
same samples for the same steps on any number of ranks.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gsched.elastic.errors import BadArgumentError
from gsched.elastic.hosted import Host, HostedTraining, check_batches, end_process, errors_shown
from gsched.elastic.samples import Samples
from gsched.elastic.training import Settings

if (
    TYPE_CHECKING
    or "lightning.pytorch" in sys.modules
    or (
        "pytorch_lightning" not in sys.modules and importlib.util.find_spec("lightning") is not None
    )
):
    from lightning.pytorch import Callback
else:  # the same under its older name: a script uses one of the two
    from pytorch_lightning import Callback

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, Dataset

_FILE = "lightning.ckpt"  # a directory, with some strategies


class ElasticCallback(Callback):  # type: ignore[misc]  # the library has no types here
    """Saves when gsched asks, waits to be stopped, and reports steps. Give it last.

    Args:
        samples: the data, and how it is gone through. With ``accumulate_grad_batches`` its global
            batch is that of one batch of the loader, over all ranks.
        settings: where checkpoints are and how often, if the environment is not to say it.
    """

    def __init__(self, samples: Samples, *, settings: Settings | None = None) -> None:
        if samples.uneven:
            raise ValueError("Samples(uneven=True): Lightning gives every rank the same weight")
        self._samples = samples
        self._host = Host(self._write, settings)
        self._training: HostedTraining | None = None
        self._trainer: Trainer | None = None
        self._has_begun = False

    def checkpoint(self) -> str | None:
        """Return what ``Trainer.fit`` is to resume from; None: it begins anew.

        Called by all ranks, before the Trainer is made. With several ranks it makes the process
        group, unless the script has made one. Files that are not those that were saved are told
        and left alone.

        Raises:
            ElasticError: the training cannot go on, or not as it is.
        """
        with errors_shown():
            _join_ranks()
            restored = self._host.restore(self._samples)
            if restored is not None:
                check_batches(self._samples, restored.position)
            self._training = self._host.training(_no_model(), self._samples)
            self._training.take(restored)
            return os.path.join(restored.entry.path, _FILE) if restored is not None else None

    def loader(self, dataset: Dataset[object], **options: Any) -> DataLoader[Any]:
        """Return this rank's part of the data, each epoch the batches that are left of it.

        Args:
            dataset: has `Samples.count` samples, found by index.
            options: of ``torch.utils.data.DataLoader``, but for what chooses the samples
                (batch_size, shuffle, sampler, batch_sampler, drop_last).

        Raises:
            ValueError: the data set has another number of samples.
        """
        import torch

        training = self._now()
        if len(dataset) != self._samples.count:
            raise ValueError(
                f"the data set has {len(dataset)} samples, and Samples says {self._samples.count}"
            )
        options.setdefault("generator", torch.Generator().manual_seed(training.loader_seed()))
        return _loader_class()(dataset, batch_sampler=_Batches(training, self._samples), **options)

    # --- what the Trainer calls ---

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what would choose other samples."""
        connector = getattr(trainer, "_accelerator_connector", None)
        if stage == "fit" and getattr(connector, "use_distributed_sampler", False):
            with errors_shown():
                raise BadArgumentError(
                    "Trainer would choose the samples of a rank itself: give it "
                    "use_distributed_sampler=False"
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Connect to the node."""
        with errors_shown():
            position = self._now().position
            progress = trainer.fit_loop.epoch_loop.batch_progress.total.ready
            if progress != position.step:
                raise BadArgumentError(
                    f"the training is at step {progress}, and its checkpoint at step "
                    f"{position.step}: call trainer.fit(..., ckpt_path=elastic.checkpoint())"
                )
        self._trainer = trainer
        self._now().watch(trainer.model or pl_module)
        self._host.begin(self._now())

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not count what lies between epochs as a step's time."""
        self._now().begin_steps()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Give the generators back before the first step."""
        if not self._has_begun:
            self._has_begun = True
            self._now().become_what_was_saved()
            self._now().begin_steps()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count a step; save if the ranks have agreed on it and Lightning can go on from here.

        That is not so while gradients are accumulated, which no checkpoint has, nor between epochs:
        a checkpoint that is due there is saved after the next step.
        """
        training = self._now()
        training.step()
        is_last = self._samples.batch_at(training.position.offset) == 0
        if is_last and training.position.epoch + 1 >= self._samples.epochs:
            training.refuse_requests()
        elif not is_last and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            training.save_if_due()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do not count a validation as a step's time."""
        if self._training is not None and not trainer.sanity_checking:
            self._training.begin_steps()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count an epoch."""
        self._now().end_epoch()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that the training is over; its newest checkpoint stays."""
        self._now().finish()

    def end_process(self) -> None:
        """End this process with code 0, at the end of the script; see `Training.finish`."""
        end_process()

    def _now(self) -> HostedTraining:
        with errors_shown():
            if self._training is None:
                raise BadArgumentError("call elastic.checkpoint() before the Trainer is made")
            return self._training

    def _write(self, directory: str) -> None:
        assert self._trainer is not None, "the Trainer calls on_train_start first"
        self._trainer.save_checkpoint(os.path.join(directory, _FILE))


class _Batches:
    """A batch sampler: each pass yields what is left of the epoch.

    Its length is that of a whole epoch: Lightning counts the batches before a restart, too.
    """

    def __init__(self, training: HostedTraining, samples: Samples) -> None:
        self._training = training
        self._length = -(-samples.per_epoch // samples.global_batch)

    def __iter__(self) -> Iterator[list[int]]:
        return self._training.rest_of_epoch()

    def __len__(self) -> int:
        return self._length


def _loader_class() -> Any:
    """Return a ``DataLoader`` of which Lightning knows that it goes on within an epoch."""
    from torch.utils.data import DataLoader

    class ElasticLoader(DataLoader):  # type: ignore[misc]  # the library has no types here
        """Its place in the data is the training's, which the checkpoint's manifest has."""

        def state_dict(self) -> dict[str, object]:
            """Return nothing."""
            return {}

        def load_state_dict(self, state: dict[str, object]) -> None:
            """Do nothing."""

    return ElasticLoader


def _no_model() -> Any:
    """Return a model without parameters, until the Trainer has made its own."""
    from torch import nn

    return nn.Module()


def _join_ranks() -> None:
    """Make the process group of all ranks, as Lightning would; it keeps one that is there."""
    import torch
    from torch import distributed

    if int(os.environ.get("WORLD_SIZE") or 1) == 1 or "RANK" not in os.environ:
        return
    if distributed.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
