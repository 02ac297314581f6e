"""Saves a training's state and finds the newest good one again, all ranks together."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gsched.elastic.errors import (
    BadCheckpointError,
    CheckpointMismatchError,
    CheckpointUnusableError,
    SaveError,
)
from gsched.elastic.generators import restore_generators, seed_generators
from gsched.elastic.manifest import File, Manifest, check_size, first_fault, read_manifest, share_of
from gsched.elastic.pickles import RankState
from gsched.elastic.ranks import Ranks
from gsched.elastic.samples import Position, Samples
from gsched.elastic.shelf import LOADS_MAX, Shelf, ShelfEntry
from gsched.elastic.state import TrainingState
from gsched.elastic.tensors import has_tensors
from gsched.failpoint import failpoint

#: What makes the order of the samples, and so must stay as it was.
_ORDER = ("count", "seed", "shuffle", "drop_last")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that was published; ``wall_s`` from the agreed step to its name, seconds."""

    path: str
    size_bytes: int
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A checkpoint that was loaded.

    Attributes:
        entry: which.
        position: where the training goes on.
        own: what is to be as it was before the first step.
        wall_s: from looking for checkpoints to the loaded state, seconds.
    """

    entry: ShelfEntry
    position: Position
    own: RankState
    wall_s: float


class CheckpointKeeper:
    """Every method is called by all ranks together, and gives or raises the same on all."""

    def __init__(
        self,
        shelf: Shelf,
        ranks: Ranks,
        state: TrainingState,
        samples: Samples,
        *,
        job: int,
        attempt: int,
    ) -> None:
        self._shelf = shelf
        self._ranks = ranks
        self._state = state
        self._samples = samples
        self._job = job
        self._attempt = attempt

    def save(self, position: Position) -> SavedCheckpoint:
        """Publish a checkpoint, then remove those that it makes superfluous.

        Raises:
            SaveError: it could not be done; nothing is changed, and nothing is left over.
        """
        began_s = time.monotonic()
        unfinished, fault = self._ranks.share(self._begin())
        if fault is not None:
            raise SaveError(fault)
        try:
            path, size_bytes = self._fill(unfinished, position)
        except SaveError:
            if self._ranks.rank == 0:
                self._shelf.abandon(unfinished)
            raise
        wall_s = time.monotonic() - began_s
        failpoint("training.save.after_publish")
        if self._ranks.rank == 0:
            try:
                self._shelf.tidy()
            except OSError as error:
                _say(f"old checkpoints stay: {error}")
        return SavedCheckpoint(path=path, size_bytes=size_bytes, wall_s=wall_s)

    def restore(self) -> Restored | None:
        """Load the newest checkpoint that is good; None: there is none at all.

        Each one that is not is told on the standard error of rank 0, with the reason.

        Raises:
            CheckpointMismatchError: it is one of other data.
            CheckpointUnusableError: there are some, and none is good.
        """
        began_s = time.monotonic()
        entries, fault = self._ranks.share(self._list())
        if fault is not None:
            raise CheckpointUnusableError(fault)
        for entry in entries:
            try:
                manifest = self._look_at(entry)
                own = self._load(entry, manifest)
            except BadCheckpointError as error:
                if self._ranks.rank == 0:
                    _say(f"{entry.path} cannot be used: {error}")
                continue
            wall_s = time.monotonic() - began_s
            failpoint("training.restore.after_load")
            return Restored(entry=entry, position=manifest.position, own=own, wall_s=wall_s)
        if entries:
            raise CheckpointUnusableError(
                f"none of the {len(entries)} checkpoints in {self._shelf.path} can be used: repair "
                "them, or move them away to let the training begin anew"
            )
        return None

    def finish(self, keep: int) -> None:
        """Remove the checkpoints of a training that is over but for the newest ``keep``."""
        if keep == 0:
            self._ranks.gather(None)  # a rank that is not through yet may still need one
        if self._ranks.rank == 0:
            try:
                self._shelf.tidy(keep)
            except OSError as error:
                _say(f"old checkpoints stay: {error}")

    def may_save(self) -> bool:
        """Return whether a checkpoint that is saved now lacks nothing."""
        return all(self._ranks.gather(self._state.may_be_saved()))

    def give_back(self, restored: Restored, seed: int) -> None:
        """Set what is this rank's own to what it was when ``restored`` was saved.

        Args:
            restored: the checkpoint that was loaded.
            seed: for the generators of a rank that did not exist then.
        """
        self._state.give_gradients_their_place(restored.own, self._ranks.world_size)
        if restored.own.generators:
            restore_generators(restored.own.generators)
        else:
            seed_generators(seed, restored.position.step, self._ranks.rank)
        self._state.give_back(restored.own)

    def first_step_done(self, restored: Restored) -> None:
        """Note that the training has survived this checkpoint."""
        if self._ranks.rank == 0:
            self._shelf.forget_loads(restored.entry)

    def _fill(self, unfinished: str, position: Position) -> tuple[str, int]:
        """Save into a directory and publish it; return its path then and its size."""
        files = self._state.save(unfinished, self._ranks)
        failpoint("training.save.before_manifest")
        manifest = Manifest(
            position=position,
            world_size=self._ranks.world_size,
            job=self._job,
            attempt=self._attempt,
            samples=self._order(),
            files=tuple(files),
        )
        path, fault = self._ranks.share(self._publish(unfinished, manifest))
        if fault is not None:
            raise SaveError(fault)
        return path, manifest.size_bytes

    def _begin(self) -> tuple[str, str | None]:
        if self._ranks.rank != 0:
            return "", None
        try:
            return self._shelf.begin(self._attempt), None
        except OSError as error:
            return "", str(error)

    def _publish(self, unfinished: str, manifest: Manifest) -> tuple[str, str | None]:
        if self._ranks.rank != 0:
            return "", None
        try:
            return self._shelf.publish(unfinished, manifest).path, None
        except OSError as error:
            return "", str(error)

    def _list(self) -> tuple[list[ShelfEntry], str | None]:
        if self._ranks.rank != 0:
            return [], None
        try:
            return self._shelf.entries(), None
        except OSError as error:
            return [], f"the directory of checkpoints cannot be read: {error}"

    def _look_at(self, entry: ShelfEntry) -> Manifest:
        """Return the manifest of a checkpoint that may be loaded."""
        manifest, fault = self._ranks.share(self._read(entry))
        if manifest is None:
            raise BadCheckpointError(fault or "")
        for name in _ORDER:
            saved, now = manifest.samples.get(name), self._order()[name]
            if saved != now:
                raise CheckpointMismatchError(
                    f"{entry.path} was saved with {name}={saved}, and this script says "
                    f"{name}={now}: say the same, or use another directory of checkpoints"
                )
        return manifest

    def _read(self, entry: ShelfEntry) -> tuple[Manifest | None, str | None]:
        if self._ranks.rank != 0:
            return None, None
        loads = self._shelf.loads(entry)
        if loads >= LOADS_MAX:
            return None, (
                f"{loads} starts from it did not get to their first step (remove "
                f"{entry.path}.loads to try it again)"
            )
        try:
            return read_manifest(entry.path), None
        except BadCheckpointError as error:
            return None, str(error)

    def _load(self, entry: ShelfEntry, manifest: Manifest) -> RankState:
        """Prove the files good, each rank a part of them, and load them.

        Files that are pickles are proven first. Those with tensors, nearly all of it, are loaded
        while they are read for their digests: torch reads nothing but tensors and an optimiser's
        settings from them, and what it loaded counts only when they are proven.
        """
        small = self._part([file for file in manifest.files if not has_tensors(file.name)])
        large = self._part([file for file in manifest.files if has_tensors(file.name)])
        fault = first_fault(entry.path, large, check_size) or first_fault(entry.path, small)
        for words in self._ranks.gather(fault):
            if words is not None:
                raise BadCheckpointError(words)
        if self._ranks.rank == 0:
            try:
                self._shelf.note_load(entry)
            except OSError as error:
                _say(f"it cannot be noted that {entry.path} is being loaded: {error}")
        failpoint("training.restore.before_load")
        try:
            with ThreadPoolExecutor(1, "gsched-elastic-proof") as pool:
                proof = pool.submit(first_fault, entry.path, large)
                own = self._state.load(entry.path, self._ranks, manifest.world_size, proof.result)
        except BadCheckpointError:
            if self._ranks.rank == 0:
                self._shelf.forget_loads(entry)  # it was survived
            raise
        if self._ranks.rank == 0:
            self._shelf.prove(entry)
        return own

    def _part(self, files: list[File]) -> list[File]:
        return share_of(files, self._ranks.rank, self._ranks.world_size)

    def _order(self) -> dict[str, int | bool]:
        samples = self._samples
        return {
            "count": samples.count,
            "seed": samples.seed,
            "shuffle": samples.shuffle,
            "drop_last": samples.drop_last,
            "global_batch": samples.global_batch,
            "epochs": samples.epochs,
        }


def _say(message: str) -> None:
    sys.stderr.write(f"gsched.elastic: {message}\n")
