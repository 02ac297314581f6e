"""A training that can be checkpointed, moved and resized: what a script holds in its hands."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gsched.elastic.agreement import Agreement, CheckpointWish, checkpoint_interval_s
from gsched.elastic.conversation import Body, CheckpointRequest
from gsched.elastic.errors import SaveError, StepError
from gsched.elastic.keeper import CheckpointKeeper, Restored
from gsched.elastic.ranks import Ranks
from gsched.elastic.reporter import Reporter
from gsched.elastic.samples import Position, SampleOrder, Samples, order_seed
from gsched.elastic.timing import MeasuredSteps, StepTimer, communication_s, gradient_bytes
from gsched.failpoint import failpoint

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import Dataset

#: The head gives a move up after 300 s. A training that hears nothing for three times as long takes
#: it that nobody will ever tell it to go on.
WAIT_TIMEOUT_S = 900.0
#: Steps that a checkpoint waits for gradients to be used that cannot be saved.
PUT_OFF_MAX = 64
#: A move waits no longer for a copy that is written while the training goes on ...
COPY_TIMEOUT_S = 30.0
#: ... and for none where steps are longer: ranks agree on it between steps, three times.
COPY_STEP_MAX_S = 10.0
_WORD_PERIOD_S = 1.0  # how often rank 0 tells the others that it still waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a script may decide itself.

    Attributes:
        directory: of the checkpoints, the same on all nodes; None: GSCHED_CHECKPOINT_DIR.
        interval_s: between two checkpoints that nobody asked for; 0: none; None:
            GSCHED_CHECKPOINT_INTERVAL_S, else from what a checkpoint costs.
        signal_number: a signal that requests a checkpoint, if any rank gets it; None: none does.
        wait_timeout_s: a training that saved to be moved, and hears nothing for so long, goes on.
    """

    directory: str | None = None
    interval_s: float | None = None
    signal_number: int | None = None
    wait_timeout_s: float = WAIT_TIMEOUT_S


class Training:
    """The loop of a training, as `start` returns it.

    Every rank makes the same calls: `epochs`, in it `batches` or `loader`, and after each batch,
    once the optimiser has done its step, `step`.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Samples,
        ranks: Ranks,
        reporter: Reporter,
        settings: Settings,
    ) -> None:
        self._model = model
        self._samples = samples
        self._ranks = ranks
        self._reporter = reporter
        self._settings = settings
        self._order = SampleOrder(samples)
        self._timer = StepTimer()
        self._position = Position()
        self._keeper: CheckpointKeeper | None = None
        self._restored: Restored | None = None
        self._agreement: Agreement | None = None
        self._is_fresh = False  # of a checkpoint, and has done no step
        self._has_stepped = False
        self._is_in_epoch = False
        self._has_begun = False  # the batches of this epoch were requested
        self._weight = 1.0
        self._cost_s: float | None = None
        self._saved_s = time.perf_counter()
        self._is_signalled = False
        self._copy_until_s = 0.0
        self._is_due = False  # a checkpoint, as soon as the script asks for the next batch
        self._put_off = 0

    # --- what a script uses ---

    @property
    def rank(self) -> int:
        """Return the number of this process among all ranks, from 0."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self._ranks.world_size

    @property
    def step_count(self) -> int:
        """Return the steps done since the training began, over all attempts."""
        return self._position.step

    @property
    def samples_done(self) -> int:
        """Return the samples used since the training began, over all ranks and attempts."""
        return self._position.samples_done

    @property
    def restored_step(self) -> int | None:
        """Return the step that this attempt went on from; None: it began anew."""
        return self._restored.position.step if self._restored is not None else None

    @property
    def weight(self) -> float:
        """Return what to multiply this rank's mean loss of the current batch with.

        1 unless ranks have unequal parts (`Samples.uneven`). With it, the mean over ranks that
        DistributedDataParallel takes is the mean over the samples of the global batch.
        """
        return self._weight

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that are left, from 0, the current one first.

        A checkpoint that is due after the last step of an epoch is saved here, when the script has
        done what it does at the epoch's end: it would be left out otherwise, or done without what
        the steps before it have set.

        A training that goes on from there finds its generators, buffers and gradients as they were
        then; one that goes on within an epoch, when it requests its first batch (see `_begin`).

        Raises:
            StepError: an epoch has passed without `batches` or `loader`.
        """
        while self._has_epochs():
            self._is_in_epoch, self._has_begun = True, False
            if self._position.offset == 0:
                self._become_what_was_saved()
            yield self._position.epoch
            if not self._has_begun:
                raise StepError(
                    f"epoch {self._position.epoch} has used no batch: call training.loader() or "
                    "training.batches() anew in each epoch"
                )
            self._position = self._position.next_epoch()
            self._reporter.begin_at(0)
            if self._has_epochs():
                self._checkpoint_if_due()
        self._is_in_epoch = False
        self._reporter.over("the training has done its last step")

    def _has_epochs(self) -> bool:
        return self._position.epoch < self._samples.epochs

    def batches(self) -> Iterator[list[int]]:
        """Yield the indices of this rank's samples, one list for each step left of the epoch.

        Raises:
            StepError: `step` was not called since the last batch, or this is no epoch's loop.
        """
        self._begin()
        for offset, (begin, end) in self._parts():
            self._weigh(offset)
            yield self._order.part(self._position.epoch, begin, end)
            self._expect_step(offset)

    def loader(self, dataset: Dataset[object], **options: object) -> Iterator[Any]:
        """Yield this rank's batches for each step left of the epoch, from a ``DataLoader``.

        Args:
            dataset: has `Samples.count` samples, found by index.
            options: of ``torch.utils.data.DataLoader``, but for what chooses the samples
                (batch_size, shuffle, sampler, batch_sampler, drop_last).

        Raises:
            StepError: `step` was not called since the last batch, or this is no epoch's loop.
            ValueError: the data set has another number of samples.
        """
        self._check_size(dataset)
        self._begin()
        parts = list(self._parts())
        loader = self._loader(dataset, [bounds for _, bounds in parts], options)
        for (offset, _), batch in zip(parts, loader, strict=True):
            self._weigh(offset)
            yield batch
            self._expect_step(offset)

    def step(self) -> None:
        """Say that a step is done.

        A checkpoint that is due is saved when the script asks for its next batch.

        Raises:
            StepError: the epoch has no further step.
        """
        self._position = self._position.after_step(self._samples)
        now_s = self._timer.end()
        if not self._has_stepped:
            self._has_stepped = True
            if self._restored is not None and self._keeper is not None:
                self._keeper.first_step_done(self._restored)
        if self._reporter.is_due(now_s):
            self._tell_progress()
        if self._agreement is not None:
            wish = self._agreement.at(self._position.step, self._wish, self._timer.step_s)
            if wish is not None:
                self._heed(wish)

    def checkpoint(self) -> None:
        """Let a checkpoint be saved when the script asks for its next batch.

        Called by all ranks at the same step. Where there is no directory for it, nothing is saved.
        """
        self._is_due = self._keeper is not None

    def finish(self, *, end_process: bool = False, keep_checkpoints: int = 1) -> None:
        """Say that the training is over; call it once, on all ranks.

        Args:
            keep_checkpoints: the newest that stay. 0: none, which the script should say only when
                it has saved what it wants of the training: were it killed now, it would begin anew.
            end_process: end this process at once, with code 0, after its output was flushed.
                DistributedDataParallel keeps gloo's threads alive, and one of them that needs
                Python for giving back a tensor while Python is just ending aborts the process
                (torch 2.13: about one run in ten on a busy machine). Nothing that is registered
                with ``atexit`` runs then.
        """
        self._reporter.over("the training has done its last step")
        if self._agreement is not None:
            self._agreement.close()
        self._tell_progress()
        if self._keeper is not None:
            self._keeper.finish(keep_checkpoints)
        self._reporter.close()
        if end_process:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    # --- how it begins ---

    def begin_with(self, keeper: CheckpointKeeper | None, restored: Restored | None) -> None:
        """Take over the position of a checkpoint; called by `start`."""
        self._keeper = keeper
        self._restored = restored
        if restored is not None:
            self._position = restored.position
            self._is_fresh = True
        if keeper is not None:
            self._agreement = Agreement(self._ranks, self._position.step + 1)
        else:
            self._reporter.over(
                "there is no directory for checkpoints: set GSCHED_CHECKPOINT_DIR for the job"
            )
        if self._settings.signal_number is not None:
            signal.signal(self._settings.signal_number, self._on_signal)
        self._reporter.start(restored)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._is_signalled = True

    def _begin(self) -> None:
        """Note that the batches of an epoch begin.

        Within an epoch a restored training becomes only here what was saved: what a script does
        before an epoch's batches, as drawing numbers, it has done once in a training that was never
        stopped. Before the first batch of an epoch it has to do it (see `epochs`).
        """
        if not self._is_in_epoch:
            raise StepError("ask for batches within `for epoch in training.epochs()`")
        self._has_begun = True
        self._become_what_was_saved()
        self._timer.begin()

    def _become_what_was_saved(self) -> None:
        """Set generators, buffers and gradients of this rank to what they were after the step."""
        if not self._is_fresh or self._restored is None or self._keeper is None:
            return
        self._is_fresh = False
        self._keeper.give_back(self._restored, self._samples.seed)

    # --- the data ---

    def _parts(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield, for each step left of the epoch, its offset and where this rank's part lies."""
        offset = self._position.offset
        while (batch := self._samples.batch_at(offset)) > 0:
            begin, end = self._samples.part(batch, self.rank, self.world_size)
            yield offset, (offset + begin, offset + end)
            offset += batch

    def _check_size(self, dataset: Dataset[object]) -> None:
        size = len(dataset)
        if size != self._samples.count:
            raise ValueError(
                f"the data set has {size} samples, and Samples says {self._samples.count}"
            )

    def _loader(
        self, dataset: Dataset[object], bounds: Sequence[tuple[int, int]], options: dict[str, Any]
    ) -> Iterable[Any]:
        """Return a ``DataLoader`` of batches that lie so in the order of the epoch."""
        import torch
        from torch.utils.data import DataLoader

        # With a generator of its own the loader takes nothing from the one that is saved.
        options.setdefault("generator", torch.Generator().manual_seed(self._loader_seed()))
        epoch = self._position.epoch
        indices = (self._order.part(epoch, begin, end) for begin, end in bounds)
        loader: Iterable[Any] = DataLoader(
            dataset, batch_sampler=_Once(indices, len(bounds)), **options
        )
        return loader

    def _weigh(self, offset: int) -> None:
        size = self._samples.batch_at(offset)
        begin, end = self._samples.part(size, self.rank, self.world_size)
        self._weight = (end - begin) * self.world_size / size

    def _expect_step(self, offset: int) -> None:
        if self._position.offset != offset + self._samples.batch_at(offset):
            raise StepError("call training.step() once after each batch, before the next one")
        if self._samples.batch_at(self._position.offset) > 0:  # else at the end of the epoch
            self._checkpoint_if_due()

    def _loader_seed(self) -> int:
        """Return a seed for what the loader's workers draw, other in every epoch and rank."""
        return order_seed(self._samples.seed ^ (1 << 62) ^ (self.rank << 32), self._position.step)

    # --- checkpoints ---

    def _wish(self) -> CheckpointWish:
        """Return what this rank wants to be done at one of the next steps."""
        assert self._keeper is not None
        if self._is_signalled:
            return CheckpointWish.CHECKPOINT
        if self.rank == 0 and self._reporter.has_request():
            return self._wish_of_request()
        if self._keeper.is_copying():
            return CheckpointWish.COPYING
        return (
            CheckpointWish.CHECKPOINT
            if self.rank == 0 and self._is_periodic_due()
            else CheckpointWish.NOTHING
        )

    def _wish_of_request(self) -> CheckpointWish:
        """Return whether the checkpoint that was requested is to be copied early."""
        assert self._keeper is not None
        now_s = time.perf_counter()
        if not self._keeper.has_tried_copy:
            if (
                not self._reporter.is_awaited()
                or self._timer.step_s > COPY_STEP_MAX_S
                or not self._keeper.wants_copy()
            ):
                return CheckpointWish.CHECKPOINT
            self._copy_until_s = now_s + COPY_TIMEOUT_S
        if now_s > self._copy_until_s:
            return CheckpointWish.CHECKPOINT
        return CheckpointWish.COPYING if self._keeper.is_copying() else CheckpointWish.MOVE

    def _heed(self, wish: CheckpointWish) -> None:
        """Do what all ranks have agreed on."""
        assert self._keeper is not None
        if wish is CheckpointWish.CHECKPOINT:
            self._is_due = True
        elif wish is CheckpointWish.MOVE:
            if self._keeper.has_tried_copy:
                self._is_due = True
            else:
                self._keeper.copy_early()
                self._timer.begin()
        elif wish is CheckpointWish.NOTHING and self._keeper.has_tried_copy:
            self._keeper.drop_copy()  # the move was abandoned

    def _is_periodic_due(self) -> bool:
        interval_s = self._settings.interval_s
        if interval_s is None:
            interval_s = checkpoint_interval_s(self._cost_s, self.world_size)
        return interval_s > 0 and time.perf_counter() - self._saved_s >= interval_s

    def _checkpoint_if_due(self) -> None:
        """Save one if it is due, unless something would be lost of it here but not soon."""
        if not self._is_due or self._keeper is None:
            return
        if self._put_off < PUT_OFF_MAX and not self._keeper.may_save():
            self._put_off += 1
            return
        if self._put_off == PUT_OFF_MAX and self.rank == 0:
            sys.stderr.write(
                "gsched.elastic: gradients that are being accumulated are not saved for models "
                "that FSDP has cut: call training.step() only after optimizer.step()\n"
            )
        self._is_due, self._put_off = False, 0
        self._checkpoint()
        self._timer.begin()

    def _checkpoint(self) -> None:
        """Save, tell, and wait if it was requested; all ranks together."""
        assert self._keeper is not None
        self._is_signalled = False
        order = self._reporter.take_up()
        try:
            saved = self._keeper.save(
                self._position, is_awaited=order is not None and order.prepared
            )
        except SaveError as error:
            self._failed(order, str(error))
            return
        finally:
            self._saved_s = time.perf_counter()
        self._cost_s = saved.wall_s
        waits = self._reporter.saved(order, self._position, saved)
        if self._ranks.share(waits):
            self._wait(order)
            self._keeper.settle()

    def _failed(self, order: CheckpointRequest | None, message: str) -> None:
        if self.rank == 0:
            sys.stderr.write(
                f"gsched.elastic: no checkpoint at step {self._position.step}: {message}; "
                "the training goes on\n"
            )
        self._reporter.failed(order, message)

    def _wait(self, order: CheckpointRequest | None) -> None:
        """Do nothing until gnode says to go on, or has said nothing for too long.

        The others do not wait for one long message, which would outlast a time-out of theirs, but
        for one each second: so they also see within a second that rank 0 is gone.
        """
        failpoint("training.wait")
        until_s = time.monotonic() + self._settings.wait_timeout_s
        going, late = False, False
        while not going and not late:
            if order is not None:  # on rank 0
                going = self._reporter.wait_to_go_on(order.request, _WORD_PERIOD_S)
                late = not going and time.monotonic() >= until_s
            going, late = self._ranks.share((going, late))
        self._reporter.end_to_wait()
        if late and self.rank == 0:
            sys.stderr.write(
                f"gsched.elastic: saved at step {self._position.step} to be moved, and heard "
                f"nothing for {self._settings.wait_timeout_s:.0f} s: the training goes on\n"
            )

    def _tell_progress(self) -> None:
        times = MeasuredSteps(
            step_s=self._timer.mean_since_report(),
            communication_s=communication_s(self._model),
            gradient_bytes=gradient_bytes(self._model),
        )
        self._reporter.progress(self._position, times, self._more_progress(times.step_s))

    def _more_progress(self, _step_s: float) -> Body:
        return {}


class _Once:
    """A batch sampler over lists that are made as they are requested, one pass only."""

    def __init__(self, indices: Iterator[Sequence[int]], count: int) -> None:
        self._indices = indices
        self._count = count

    def __iter__(self) -> Iterator[Sequence[int]]:
        return self._indices

    def __len__(self) -> int:
        return self._count
