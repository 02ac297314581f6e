"""Which samples a step uses, whatever the number of ranks.

The order of an epoch is a permutation drawn from seed and epoch alone. A step takes the next
``global_batch`` samples of it, and each rank its part of these. So the position in the data is one
number, samples used of this epoch, and means the same on every number of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gsched.elastic.errors import StepError, WorldSizeError

if TYPE_CHECKING:
    from torch import Tensor

WORLD_SIZES_REPORTED_MAX = 256  # as many numbers fit into a line of the socket with ease


@dataclass(frozen=True, slots=True)
class Samples:
    """The data of a training and how it is gone through.

    Attributes:
        count: samples of the data set; they have the indices 0 to ``count - 1``.
        global_batch: samples of one step, over all ranks.
        epochs: how often all are used.
        seed: of the order; every epoch has an order of its own.
        shuffle: False: every epoch goes from the first to the last.
        drop_last: leave out what remains at the end of an epoch and is less than a global batch
            (others every epoch, with ``shuffle``). False: it is one more, shorter step.
        uneven: let ranks have one sample more than others. Then the loss must be multiplied by
            `Training.weight`, as DistributedDataParallel gives every *rank* the same weight.
        world_sizes: numbers of ranks that the script can run on, if others than these do not do;
            None: whatever divides the batch (with ``uneven``: whatever is not more than it).
    """

    count: int
    global_batch: int
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True
    uneven: bool = False
    world_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        # NumPy's integers are not Python's, and cannot be written into a manifest.
        for name, least in (("count", 1), ("global_batch", 1), ("epochs", 0), ("seed", None)):
            value = getattr(self, name)
            if not isinstance(value, int) or (least is not None and value < least):
                from_least = "" if least is None else f" from {least}"
                raise ValueError(f"Samples: {name}={value!r}: should be a whole number{from_least}")
        if self.global_batch > self.count:
            raise ValueError(
                f"Samples: global_batch={self.global_batch} is more than the {self.count} samples"
            )

    @property
    def per_epoch(self) -> int:
        """Return the samples that an epoch uses (count)."""
        return self.count - (self.count % self.global_batch if self.drop_last else 0)

    @property
    def total(self) -> int:
        """Return the samples of the whole training (count)."""
        return self.per_epoch * self.epochs

    def batch_at(self, offset: int) -> int:
        """Return the samples of the step that begins ``offset`` samples into an epoch."""
        left = self.count - offset
        return 0 if self.drop_last and left < self.global_batch else min(self.global_batch, left)

    def part(self, batch: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return where in a global batch of ``batch`` samples a rank's part begins and ends."""
        return part_of(batch, rank, world_size)

    def fault(self, world_size: int, offset: int = 0) -> str | None:
        """Return in words why the training cannot run on ``world_size`` ranks; None if it can.

        Args:
            world_size: ranks.
            offset: samples used of the current epoch. After a change of ``global_batch`` it may
                be no multiple of that, and the epoch end with a batch that no other has.
        """
        if self.world_sizes is not None and world_size not in self.world_sizes:
            return (
                f"it cannot run on {world_size} ranks: it says that it can on "
                f"{_listed(self.world_sizes)}"
            )
        remainder = self._rest(offset)
        sizes = [self.global_batch, *([remainder] if remainder else [])]
        for size in sizes:
            what = "global batch" if size == self.global_batch else "last batch of an epoch"
            if size < world_size:
                return (
                    f"it cannot run on {world_size} ranks: its {what} is {size} samples, "
                    f"less than one for each rank"
                )
            if size % world_size and not self.uneven:
                others = _listed(self.accepted(offset=offset))
                return (
                    f"it cannot run on {world_size} ranks: its {what}, {size} samples, does not "
                    f"split into equal parts (it does on {others}); Samples("
                    f"uneven=True) splits it unevenly"
                )
        return None

    def check(self, world_size: int, offset: int = 0) -> None:
        """Do nothing if the training can run on ``world_size`` ranks, from ``offset`` of an epoch.

        Raises:
            WorldSizeError: it cannot, with the reason.
        """
        fault = self.fault(world_size, offset)
        if fault is not None:
            raise WorldSizeError(f"this training can not start: {fault}")

    def accepted(self, most: int = WORLD_SIZES_REPORTED_MAX, offset: int = 0) -> tuple[int, ...]:
        """Return the numbers of ranks that the training can run on, ascending, ``most`` at most.

        From ``offset`` of an epoch: see `fault`.
        """
        if self.world_sizes is None:
            candidates: Iterable[int] = range(1, min(self.global_batch, 1 << 16) + 1)
        else:
            candidates = sorted(self.world_sizes)
        remainder = self._rest(offset)
        smallest = remainder or self.global_batch
        found = [
            size
            for size in candidates
            if size <= smallest
            and (self.uneven or (self.global_batch % size == 0 and remainder % size == 0))
        ]
        return tuple(found[:most])

    def fault_from(self, world_size: int, offset: int) -> str | None:
        """Return why not all that is left can run on ``world_size`` ranks; None if it can.

        What is left is the rest of an epoch from ``offset`` on, and whole epochs after it.
        """
        return self.fault(world_size) or self.fault(world_size, offset)

    def accepted_from(self, offset: int) -> tuple[int, ...]:
        """Return the numbers of ranks that all that is left can run on: see `fault_from`."""
        if self._rest(offset) == self._rest(0):
            return self.accepted()
        here = set(self.accepted(1 << 16, offset))
        return tuple(size for size in self.accepted(1 << 16) if size in here)[
            :WORLD_SIZES_REPORTED_MAX
        ]

    def _rest(self, offset: int) -> int:
        """Return the samples of the last, shorter step of an epoch; 0: there is none."""
        return 0 if self.drop_last else (self.count - offset) % self.global_batch


def part_of(batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return where in ``batch`` samples a rank's part begins and ends; no two differ by two."""
    return batch * rank // world_size, batch * (rank + 1) // world_size


def _listed(sizes: Sequence[int]) -> str:
    """Return numbers as words: ``1, 2, 4 or 8``; long lists are cut."""
    if not sizes:
        return "none"
    if len(sizes) > 12:
        return f"{', '.join(map(str, sizes[:11]))}, … {sizes[-1]}"
    *most, last = map(str, sizes)
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a training is.

    Attributes:
        epoch: the current one, from 0.
        offset: samples used of this epoch, over all ranks (count).
        step: steps done since the training began, over all attempts.
        samples_done: samples used since the training began (count).
    """

    epoch: int = 0
    offset: int = 0
    step: int = 0
    samples_done: int = 0

    def after_step(self, samples: Samples) -> Position:
        """Return the position one step further.

        Raises:
            StepError: the epoch has no further step.
        """
        used = samples.batch_at(self.offset) if self.epoch < samples.epochs else 0
        if used <= 0:
            raise StepError(
                "training.step() was called after the last step of the epoch: "
                "call it once for each batch"
            )
        return Position(  # not `replace`: every step of the training comes by here
            epoch=self.epoch,
            offset=self.offset + used,
            step=self.step + 1,
            samples_done=self.samples_done + used,
        )

    def next_epoch(self) -> Position:
        """Return the position at the beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, offset=0)


class SampleOrder:
    """The order of the samples of an epoch; the last one asked for is remembered."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._epoch = -1
        self._indices: Tensor | None = None

    def part(self, epoch: int, begin: int, end: int) -> list[int]:
        """Return the indices of the samples at ``begin`` to ``end - 1`` of an epoch's order."""
        if not self._samples.shuffle:
            return list(range(begin, end))
        import torch

        if epoch != self._epoch or self._indices is None:
            generator = torch.Generator()
            generator.manual_seed(order_seed(self._samples.seed, epoch))
            self._indices = torch.randperm(self._samples.count, generator=generator)
            self._epoch = epoch
        part: list[int] = self._indices[begin:end].tolist()
        return part


def order_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's order, 0 to 2**63 - 1.

    A digest, not ``seed + epoch``: two training jobs with neighbouring seeds would otherwise share
    all orders but one.
    """
    digest = hashlib.sha256(f"gsched order {seed} {epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
