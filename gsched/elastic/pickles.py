"""The pickles of a checkpoint: what ranks have beside weights and optimiser state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gsched.elastic import gradients
from gsched.elastic.differences import Differences, Entries, merged
from gsched.elastic.generators import GENERATORS
from gsched.elastic.ranks import Ranks

OBJECTS_NAME = "objects.pt"

State = dict[str, Any]


def rank_name(rank: int) -> str:
    """Return the file of what only one rank has."""
    return f"rank-{rank:05d}.pt"


@dataclass(frozen=True, slots=True)
class RankState:
    """What the pickles hold for a rank.

    Attributes:
        entries: what all ranks have, with what this one has otherwise.
        own: what only this rank has; empty: it did not exist.
        is_same_size: whether as many ranks load as have saved.
    """

    entries: State
    own: State
    is_same_size: bool

    @property
    def generators(self) -> State:
        """Return the random number generators; empty: this rank did not exist."""
        return {name: value for name, value in self.own.items() if name in GENERATORS}

    @property
    def objects(self) -> State:
        """Return the states of the script's objects that belong to this rank."""
        found: State = self.own.get("objects", {})
        return found

    def named(self, kind: str) -> State:
        """Return the entries of a kind by name."""
        begin = f"{kind} "
        return {
            name.removeprefix(begin): entry
            for name, entry in self.entries.items()
            if name.startswith(begin)
        }


def read_pickles(directory: str, ranks: Ranks, world_size: int) -> RankState:
    """Return what the files that are no tensors' hold for this rank.

    Whole pickles, as schedulers and generators need them: the digests were checked, and who can
    write here could as well change the training script.
    """
    entries: State = _read(directory, OBJECTS_NAME)
    is_same_size = ranks.world_size == world_size
    own: State = {}
    if ranks.rank < world_size:
        own = _read(directory, rank_name(ranks.rank))
    if is_same_size:
        entries = merged(entries, own["differences"])
    elif entries.get("gradients"):
        all_ranks = [_read(directory, rank_name(rank)) for rank in range(world_size)]
        entries["gradients"] = gradients.mean(
            [_gradients_of(entries, rank["differences"]) for rank in all_ranks]
        )
    return RankState(entries, own, is_same_size)


def _gradients_of(entries: State, found: State) -> gradients.Gradients:
    rank_0s: Entries = {"gradients": dict(entries["gradients"])}
    mine: Differences = {"gradients": found["gradients"]} if "gradients" in found else {}
    return merged(rank_0s, mine)["gradients"]  # type: ignore[return-value]  # what `collect` returned


def _read(directory: str, name: str) -> State:
    import torch

    found: State = torch.load(os.path.join(directory, name), map_location="cpu", weights_only=False)
    return found


def save_pickles(directory: str, rank: int, entries: Entries, own: State) -> None:
    """Write what is a rank's own, and on rank 0 what is all ranks'."""
    import torch

    saved = {rank_name(rank): own} | ({OBJECTS_NAME: entries} if rank == 0 else {})
    for name, content in saved.items():
        # Into an open file: given a path, torch keeps the system's error to itself.
        with open(os.path.join(directory, name), "wb") as file:
            torch.save(content, file)
