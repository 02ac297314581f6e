"""How the samples of a step are split over ranks and micro-batches, for any batch on any ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

from gsched.elastic.samples import WORLD_SIZES_REPORTED_MAX, Samples, part_of

#: Micro-batches count as equal, for the gradient noise, up to this difference in size.
_ALIKE = 0.1


@dataclass(frozen=True, slots=True)
class AdaptiveSamples(Samples):
    """Samples whose global batch may be another in each attempt.

    An epoch consists of the samples that it has with the tuned batch: what is used of it, and when
    it ends, does not depend on the batches. Its last step takes what is left.

    Attributes:
        tuned_batch: the global batch for which the script was written.
        batch_max: the most samples in a step; 0: not said.
        epochs_tuned: how often all samples are used when all steps have the tuned batch.
        replica_ranks: over which one replica of the model is split; they get the same samples.
    """

    tuned_batch: int = 1
    batch_max: int = 0
    epochs_tuned: int = 1
    replica_ranks: int = 1

    def __post_init__(self) -> None:
        """Accept what `Samples` has accepted, with any batch."""

    @property
    def per_epoch(self) -> int:
        """Return the samples that an epoch uses (count)."""
        return self.count - (self.count % self.tuned_batch if self.drop_last else 0)

    @property
    def total(self) -> int:
        """Return the samples of the whole training, when tuned (count)."""
        return self.per_epoch * self.epochs_tuned

    @property
    def steps_tuned(self) -> int:
        """Return the steps of the whole training when all have the tuned batch (count)."""
        return -(-self.per_epoch // self.tuned_batch) * self.epochs_tuned

    def batch_at(self, offset: int) -> int:
        """Return the samples of the step that begins ``offset`` samples into an epoch."""
        return max(0, min(self.global_batch, self.per_epoch - offset))

    def fault(self, world_size: int, offset: int = 0) -> str | None:
        """Return in words why the training cannot run on ``world_size`` ranks; None if it can."""
        if world_size in self.accepted(1 << 16, offset):
            return None
        if self.world_sizes is not None:
            numbers = ", ".join(map(str, sorted(self.world_sizes)))
            return f"it cannot run on {world_size} ranks: it says that it can on {numbers}"
        if world_size % self.replica_ranks:
            return (
                f"it cannot run on {world_size} ranks: each replica of its model is split over "
                f"{self.replica_ranks}"
            )
        return (
            f"it cannot run on {world_size} ranks: its largest global batch is {self._largest()} "
            "samples, less than one for each replica"
        )

    def accepted(self, most: int = WORLD_SIZES_REPORTED_MAX, offset: int = 0) -> tuple[int, ...]:
        """Return the numbers of ranks that the training can run on, ascending, ``most`` at most.

        They are the same from every ``offset`` of an epoch.
        """
        del offset
        if self.world_sizes is not None:
            return tuple(sorted(self.world_sizes))[:most]
        each = self.replica_ranks
        return tuple(range(each, min(self._largest() * each, most) + 1, each))

    def _largest(self) -> int:
        return max(self.tuned_batch, self.batch_max, self.global_batch)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Samples of one micro-batch of a rank.

    Attributes:
        begin, end: where they lie in the order of the epoch.
        weight: what the mean loss of these samples is multiplied with, so that the sum over the
            micro-batches, and then the mean over the ranks, is the mean over the global batch.
    """

    begin: int
    end: int
    weight: float


def split(size: int, offset: int, rank: int, world_size: int, per_gpu: int) -> list[BatchPart]:
    """Return the micro-batches of a rank in the step at ``offset``, of nearly the same size.

    A rank for which the last step of an epoch has no sample gets one of another rank, without
    weight: it has to take part in the synchronisation.

    Args:
        size: samples of the step over all ranks.
        offset: where it begins in the order of the epoch.
        rank: whose micro-batches.
        world_size: ranks.
        per_gpu: the most samples of a micro-batch.
    """
    begin, end = part_of(size, rank, world_size)
    count = end - begin
    if count == 0:
        return [BatchPart(offset, offset + 1, 0.0)]
    pieces = -(-count // per_gpu)
    cuts = [offset + begin + count * piece // pieces for piece in range(pieces + 1)]
    return [
        BatchPart(first, last, (last - first) * world_size / size) for first, last in pairwise(cuts)
    ]


def is_regular(size: int, world_size: int, per_gpu: int) -> bool:
    """Return whether all ranks have equally many micro-batches of about the same size.

    Args:
        size: samples of the step over all ranks.
        world_size: ranks.
        per_gpu: the most samples of a micro-batch.
    """
    # The first rank has the smallest part, and the last one the largest.
    small, large = size // world_size, -(-size // world_size)
    if small == 0 or -(-small // per_gpu) != -(-large // per_gpu):
        return False
    pieces = -(-large // per_gpu)
    least, most = small // pieces, -(-large // pieces)
    return most - least <= _ALIKE * most


def batching(
    tuned_batch: int, batch_max: int, per_gpu: int, accumulation: int, world_size: int
) -> tuple[int, int]:
    """Return the global batch, and the samples of a micro-batch on a GPU.

    Args:
        tuned_batch: the global batch for which the script was written.
        batch_max: the largest one; 0: not said.
        per_gpu: samples of a micro-batch, as gsched says; 0: the tuned batch is divided among the
            ranks.
        accumulation: micro-batches of a step before the last one, as gsched says.
        world_size: ranks.
    """
    if per_gpu <= 0:
        batch = max(tuned_batch, world_size)
        return batch, -(-batch // world_size)
    pieces = world_size * (accumulation + 1)
    if tuned_batch >= pieces and per_gpu == -(-tuned_batch // pieces):
        return tuned_batch, per_gpu  # it is the tuned batch that was divided, evenly or not
    batch = pieces * per_gpu
    if batch_max:
        batch = min(batch, max(batch_max, tuned_batch, world_size))
    return batch, per_gpu


def adaptive_samples(
    samples: Samples, batch: int, batch_max: int, *, endless: bool, replica_ranks: int = 1
) -> AdaptiveSamples:
    """Return the samples of a script with another global batch.

    Args:
        samples: as the script has made them, with the tuned batch.
        batch: samples of a step now.
        batch_max: the most that there will be in a step; 0: not said.
        endless: the training does not end after a number of epochs.
        replica_ranks: over which one replica of the model is split.
    """
    given = {field.name: getattr(samples, field.name) for field in fields(Samples)}
    given |= {"global_batch": batch, "uneven": True}
    if endless:
        given["epochs"] = 1 << 40
    return AdaptiveSamples(
        **given,
        tuned_batch=samples.global_batch,
        batch_max=batch_max,
        epochs_tuned=samples.epochs,
        replica_ranks=replica_ranks,
    )
