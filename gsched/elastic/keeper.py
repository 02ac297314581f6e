"""Saves a training's state and finds the newest good one again, all ranks together."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gsched.directories import is_on_network
from gsched.elastic.ahead import ProofAhead
from gsched.elastic.errors import (
    BadCheckpointError,
    CheckpointMismatchError,
    CheckpointUnusableError,
    SaveError,
)
from gsched.elastic.flushing import Flush
from gsched.elastic.generators import restore_generators, seed_generators
from gsched.elastic.manifest import (
    File,
    Manifest,
    check_file,
    check_size,
    first_fault,
    read_manifest,
    share_of,
)
from gsched.elastic.pickles import RankState
from gsched.elastic.ranks import Ranks
from gsched.elastic.samples import Position, Samples
from gsched.elastic.shelf import KEEP, LOADS_MAX, Shelf, ShelfEntry
from gsched.elastic.state import TrainingState
from gsched.elastic.tensors import has_tensors
from gsched.failpoint import failpoint

if TYPE_CHECKING:
    from gsched.elastic.early import EarlyCopy

#: Smaller states are written sooner than ranks agree on a copy.
COPY_MIN_BYTES = 64 << 20
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


@dataclass(frozen=True, slots=True)
class _Unflushed:
    """A checkpoint that is on its way to the disk, and this rank's part of that."""

    entry: ShelfEntry
    flush: Flush | None


class CheckpointKeeper:
    """Every method is called by all ranks together, and gives or raises the same on all.

    Args:
        shelf: of the checkpoints.
        ranks: all of them.
        state: what is saved and loaded.
        samples: the data.
        job, attempt: whose checkpoints they are.
        ahead: what this process has proven while it waited for its launch.
        copy_min_bytes: a state of this size is copied early, for processes that wait.
    """

    def __init__(  # noqa: PLR0913 - each is one thing that it works with
        self,
        shelf: Shelf,
        ranks: Ranks,
        state: TrainingState,
        samples: Samples,
        *,
        job: int,
        attempt: int,
        ahead: ProofAhead | None = None,
        copy_min_bytes: float = COPY_MIN_BYTES,
    ) -> None:
        self._shelf = shelf
        self._ranks = ranks
        self._state = state
        self._samples = samples
        self._job = job
        self._attempt = attempt
        self._ahead = ahead
        self._copy_min_bytes = copy_min_bytes
        self._copy: EarlyCopy | None = None
        self._has_tried_copy = False
        self._unflushed: _Unflushed | None = None

    def wants_copy(self) -> bool:
        """Return whether copying the state early would make a move shorter."""
        size_bytes = self._state.size_to_copy()
        return size_bytes > 0 and size_bytes >= self._copy_min_bytes

    @property
    def has_tried_copy(self) -> bool:
        """Return whether `copy_early` was called for the next checkpoint."""
        return self._has_tried_copy

    def is_copying(self) -> bool:
        """Return whether this rank still writes its part of an early copy."""
        return self._copy is not None and self._copy.is_running

    def copy_early(self) -> None:
        """Begin to write the next checkpoint while the training goes on.

        If that cannot be done, the checkpoint is written as any other, and the fault is told then.
        """
        self.drop_copy()
        self._has_tried_copy = True
        unfinished, fault, only_constant = self._ranks.share(self._begin_copy())
        if fault is None:
            try:
                self._copy = self._state.copy_early(
                    unfinished, self._ranks, only_constant=only_constant
                )
            except SaveError:
                if self._ranks.rank == 0:
                    self._shelf.abandon(unfinished)

    def _begin_copy(self) -> tuple[str, str | None, bool]:
        if self._ranks.rank != 0:
            return "", None, False
        try:
            # What is written twice to a server is sent twice.
            return self._shelf.begin(self._attempt), None, is_on_network(self._shelf.path)
        except OSError as error:
            return "", str(error), False

    def drop_copy(self) -> None:
        """Give up what `copy_early` has begun."""
        copy, self._copy = self._copy, None
        self._has_tried_copy = False
        if copy is not None:
            copy.end()
            copy.close()
            self._ranks.gather(None)  # no rank writes there any more
            if self._ranks.rank == 0:
                self._shelf.abandon(copy.directory)

    def _complete_copy(self) -> EarlyCopy | None:
        """Return the early copy for a save, if all ranks have all of it."""
        if self._copy is None:
            return None
        if not all(self._ranks.gather(self._copy.end())):
            self.drop_copy()
        copy, self._copy = self._copy, None
        return copy

    def save(self, position: Position, *, is_awaited: bool = False) -> SavedCheckpoint:
        """Publish a checkpoint, then remove those that it makes superfluous.

        Args:
            position: where the training is.
            is_awaited: processes wait that go on from it. Where an older one is on the disk, it is
                published without waiting for the disk, and the flush goes on; see `settle`.

        Raises:
            SaveError: it could not be done; nothing is changed, and nothing is left over.
        """
        began_s = time.monotonic()
        self.settle()
        copy = self._complete_copy()
        self._has_tried_copy = False
        begun = self._begin(copy, is_awaited=is_awaited)
        unfinished, fault, flush_later = self._ranks.share(begun)
        if fault is not None:
            raise SaveError(fault)
        try:
            entry, size_bytes, flush = self._fill(
                unfinished, position, flush_later=flush_later, copy=copy
            )
        except SaveError:
            if self._ranks.rank == 0:
                self._shelf.abandon(unfinished)
            raise
        finally:
            if copy is not None:
                copy.close()
        wall_s = time.monotonic() - began_s
        failpoint("training.save.after_publish")
        if flush_later:
            self._unflushed = _Unflushed(entry, flush)
        else:
            self._tidy()
        return SavedCheckpoint(path=entry.path, size_bytes=size_bytes, wall_s=wall_s)

    def settle(self) -> None:
        """Wait until the newest checkpoint is on the disk, if it is not; all ranks together.

        If it cannot be written there, older ones stay, and this one is told.
        """
        unflushed, self._unflushed = self._unflushed, None
        if unflushed is None:
            return
        fault = None if unflushed.flush is None else unflushed.flush.fault()
        faults = [each for each in self._ranks.gather(fault) if each is not None]
        if self._ranks.rank == 0:
            self._flushed(unflushed.entry, faults[0] if faults else None)
            self._tidy()

    def _flushed(self, entry: ShelfEntry, fault: str | None) -> None:
        """Note on rank 0 that all files of a checkpoint are on the disk, or why they are not."""
        try:
            if fault is None:
                self._shelf.set_flushed(entry)
        except OSError as error:
            fault = str(error)
        if fault is not None:
            self._shelf.distrust(entry)
            _say(f"{entry.path} may not be on the disk: {fault}")

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
        self.drop_copy()
        self.settle()
        if keep == 0:
            self._ranks.gather(None)  # a rank that is not through yet may still need one
        self._tidy(keep, is_over=True)

    def _tidy(self, keep: int = KEEP, *, is_over: bool = False) -> None:
        if self._ranks.rank == 0:
            try:
                self._shelf.tidy(keep)
                if is_over:
                    self._shelf.remove_unfinished()
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

    def _fill(
        self,
        unfinished: str,
        position: Position,
        *,
        flush_later: bool,
        copy: EarlyCopy | None,
    ) -> tuple[ShelfEntry, int, Flush | None]:
        """Save into a directory and publish it; return it, its size and what flushes it."""
        written = self._state.save(unfinished, self._ranks, flush_later=flush_later, copy=copy)
        failpoint("training.save.before_manifest")
        manifest = Manifest(
            position=position,
            world_size=self._ranks.world_size,
            job=self._job,
            attempt=self._attempt,
            samples=self._order(),
            files=tuple(written.files),
        )
        entry, fault = self._ranks.share(
            self._publish(unfinished, manifest, flush_later=flush_later)
        )
        if entry is None:
            raise SaveError(fault or "")
        return entry, manifest.size_bytes, written.flush

    def _begin(self, copy: EarlyCopy | None, *, is_awaited: bool) -> tuple[str, str | None, bool]:
        if self._ranks.rank != 0:
            return "", None, False
        try:
            flush_later = is_awaited and self._shelf.has_flushed()
            unfinished = self._shelf.begin(self._attempt) if copy is None else copy.directory
        except OSError as error:
            return "", str(error), False
        return unfinished, None, flush_later

    def _publish(
        self, unfinished: str, manifest: Manifest, *, flush_later: bool
    ) -> tuple[ShelfEntry | None, str | None]:
        if self._ranks.rank != 0:
            return None, None
        try:
            return self._shelf.publish(unfinished, manifest, flush_later=flush_later), None
        except OSError as error:
            return None, str(error)

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
                check = check_file if self._ahead is None else self._ahead.check
                proof = pool.submit(first_fault, entry.path, large, check)
                own = self._state.load(entry.path, self._ranks, manifest.world_size, proof.result)
        except BadCheckpointError:
            if self._ranks.rank == 0:
                self._shelf.forget_loads(entry)  # it was survived
            raise
        if self._ranks.rank == 0:
            self._shelf.prove(entry)
        self._unflushed = self._flush(entry, manifest)
        return own

    def _flush(self, entry: ShelfEntry, manifest: Manifest) -> _Unflushed | None:
        """Begin to flush a checkpoint that was loaded, if the attempt before has not done it."""
        flush, is_unflushed, fault = None, False, None
        if self._ranks.rank == 0 and self._shelf.is_unflushed(entry):
            is_unflushed = True
            failpoint("training.flush.before")
            paths = [os.path.join(entry.path, file.name) for file in manifest.files]
            try:
                flush = Flush(paths, partial(self._shelf.set_flushed, entry))
            except OSError as error:
                fault = str(error)
        if fault is not None:
            self._flushed(entry, fault)
        return _Unflushed(entry, flush) if self._ranks.share(is_unflushed and not fault) else None

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
