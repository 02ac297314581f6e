"""The ranks of a training, and the few words they exchange on a channel of their own.

The channel is a gloo group beside the training's: nothing here delays the gradients' messages, and
it needs no GPU. Without torch.distributed there is one rank, and nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

Word = TypeVar("Word")


class Ranks:
    """All ranks, seen from one of them. Every method is called by all of them, in one order.

    Attributes:
        rank: of this process, from 0.
        world_size: how many there are.
        group: the channel; None where there is no torch.distributed.
    """

    def __init__(self) -> None:
        from torch import distributed

        self.rank = 0
        self.world_size = 1
        self.group: ProcessGroup | None = None
        if distributed.is_available() and distributed.is_initialized():
            self.rank = distributed.get_rank()
            self.world_size = distributed.get_world_size()
            self.group = distributed.new_group(backend="gloo")

    @property
    def is_alone(self) -> bool:
        """Return whether there is nobody to talk to."""
        return self.world_size == 1

    def greatest(self, values: Sequence[int]) -> Pending:
        """Begin to find the greatest of each of ``values`` over all ranks; do not wait for it."""
        import torch
        from torch import distributed

        tensor = torch.tensor(values, dtype=torch.int64)
        if self.is_alone:
            return Pending(tensor, None)
        work = distributed.all_reduce(
            tensor, distributed.ReduceOp.MAX, group=self.group, async_op=True
        )
        return Pending(tensor, work)

    def mean(self, values: Sequence[float]) -> list[float]:
        """Return the mean of each of ``values`` over all ranks, the same on all of them."""
        import torch
        from torch import distributed

        if self.is_alone:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(tensor, group=self.group)
        found: list[float] = (tensor / self.world_size).tolist()
        return found

    def share(self, word: Word) -> Word:
        """Return rank 0's ``word`` on all ranks."""
        from torch import distributed

        if self.is_alone:
            return word
        words = [word]
        distributed.broadcast_object_list(words, src=0, group=self.group)
        return words[0]

    def gather(self, word: Word) -> list[Word]:
        """Return the words of all ranks, on all ranks."""
        from torch import distributed

        if self.is_alone:
            return [word]
        words: list[Word] = [word] * self.world_size
        distributed.all_gather_object(words, word, group=self.group)
        return words


class Pending:
    """An exchange under way."""

    def __init__(self, tensor: Tensor, work: Work | None) -> None:
        self._tensor = tensor
        self._work = work

    def result(self) -> list[int]:
        """Wait for the other ranks and return what was found."""
        if self._work is not None:
            self._work.wait()
        found: list[int] = self._tensor.tolist()
        return found
