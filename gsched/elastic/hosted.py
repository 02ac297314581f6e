"""A training whose loop, and whose checkpoints' content, belong to a framework.

The framework's callback says when a step is done and how a checkpoint is written into a directory.
Everything else is as in any other training: the ranks agree on the step, the directory is published
when all of it is on the disk, the node is told, and the ranks wait until they are stopped or told
to go on. With the framework's files lie each rank's random number generators.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gsched.elastic.conversation import CheckpointRequest
from gsched.elastic.environment import Environment
from gsched.elastic.errors import CheckpointMismatchError, ElasticError, WorldSizeError
from gsched.elastic.gate import proof_ahead
from gsched.elastic.generators import generators_state
from gsched.elastic.keeper import CheckpointKeeper, Restored
from gsched.elastic.manifest import File
from gsched.elastic.pickles import RankState, read_pickles, save_pickles
from gsched.elastic.ranks import Ranks
from gsched.elastic.reporter import Reporter
from gsched.elastic.samples import Position, Samples
from gsched.elastic.shelf import Shelf, flush_directory
from gsched.elastic.starting import tell_error
from gsched.elastic.state import (
    Fault,
    Written,
    describe_and_flush,
    raise_first,
    refuse_first,
)
from gsched.elastic.tensors import words
from gsched.elastic.training import Settings, Training
from gsched.failpoint import failpoint

if TYPE_CHECKING:
    from torch import nn


class HostedState:
    """What `CheckpointKeeper` saves and loads where a framework writes the files.

    Args:
        write: writes a checkpoint into an empty directory; called by all ranks together.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def may_be_saved(self) -> bool:
        """Return True: the callback saves only where the framework can go on."""
        return True

    def size_to_copy(self) -> int:
        """Return 0: the framework writes whole checkpoints."""
        return 0

    def save(
        self,
        directory: str,
        ranks: Ranks,
        *,
        flush_later: bool = False,
        copy: None = None,  # noqa: ARG002 - as `TrainingState.save`; there is none
    ) -> Written:
        """Let the framework write into ``directory``, flushed, or with a flush under way.

        Raises:
            SaveError: it cannot; the words say why.
        """
        failpoint("training.save.before_data")
        fault: Fault = None
        try:
            self._write(directory)
            own = {**generators_state(), "differences": {}, "objects": {}}
            save_pickles(directory, ranks.rank, {"gradients": {}}, own)
        except Exception as error:  # noqa: BLE001 - a framework may raise anything; it is told
            fault = words(error)
        raise_first(ranks.gather(fault))
        files: list[File] = []
        flush = None
        try:
            if ranks.rank == 0:  # what others have written is on the server when they close it
                names = _names(directory)
                files, flush = describe_and_flush(directory, names, later=flush_later)
        except OSError as error:
            fault = words(error)
        files, fault = ranks.share((files, fault))
        raise_first([fault])
        return Written(files, flush)

    def load(
        self, directory: str, ranks: Ranks, world_size: int, fault_of_tensors: Callable[[], Fault]
    ) -> RankState:
        """Return what is a rank's own; the framework loads the rest, once it is proven.

        Raises:
            BadCheckpointError: a file is not what was saved.
        """
        refuse_first(ranks.gather(fault_of_tensors()))
        fault: Fault = None
        state = RankState({}, {}, is_same_size=False)
        try:
            state = read_pickles(directory, ranks, world_size)
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything; it is told
            fault = words(error)
        refuse_first(ranks.gather(fault))
        return state

    def give_gradients_their_place(self, _state: RankState, _world_size: int) -> None:
        """Do nothing: no gradients are saved."""

    def give_back(self, _state: RankState) -> None:
        """Do nothing: the framework has loaded its own."""


class HostedTraining(Training):
    """The same training with the loop outside."""

    @property
    def is_due(self) -> bool:
        """Return whether the ranks have agreed on a checkpoint after this step."""
        return self._is_due

    @property
    def position(self) -> Position:
        """Return how far it is."""
        return self._position

    def take(self, restored: Restored | None) -> None:
        """Be where a checkpoint is, before `begin_with`: its loader may begin sooner."""
        if restored is not None:
            self._position = restored.position

    def watch(self, model: nn.Module) -> None:
        """Report the gradients and the communication of this model from now on."""
        self._model = model

    def begin_steps(self) -> None:
        """Note that the next step begins now: what came before it does not count as its time."""
        self._timer.begin()

    def become_what_was_saved(self) -> None:
        """Set the generators to what they were; once, before the first step."""
        self._become_what_was_saved()

    def save_if_due(self) -> None:
        """Save a checkpoint if it is due, tell of it, and wait if the node asks to."""
        self._checkpoint_if_due()

    def refuse_requests(self) -> None:
        """Refuse requests for checkpoints from now on: the last step is done."""
        self._reporter.over("the training has done its last step")

    def rest_of_epoch(self) -> Iterator[list[int]]:
        """Yield this rank's sample numbers for each step left of the epoch."""
        epoch = self._position.epoch
        for _, (begin, end) in list(self._parts()):
            yield self._order.part(epoch, begin, end)

    def loader_seed(self) -> int:
        """Return a seed for what a loader's workers draw."""
        return self._loader_seed()

    def _wait(self, order: CheckpointRequest | None) -> None:
        """Wait as any training does, and let TERM end it: frameworks have handlers that go on."""
        with _default_term():
            super()._wait(order)

    def end_epoch(self) -> None:
        """Note that the epoch is over."""
        self._position = self._position.next_epoch()
        self._reporter.begin_at(0)


class Host:
    """Begins a `HostedTraining`, in two phases: the checkpoint is known before the model is.

    Args:
        write: see `HostedState`.
        settings: as for `gsched.elastic.start`.
    """

    def __init__(self, write: Callable[[str], None], settings: Settings | None) -> None:
        self._write = write
        self._settings = settings or Settings()
        self._environment = Environment()
        self._ranks: Ranks | None = None
        self._keeper: CheckpointKeeper | None = None
        self.restored: Restored | None = None

    @property
    def has_looked(self) -> bool:
        """Return whether `restore` was called."""
        return self._ranks is not None

    def restore(self, samples: Samples) -> Restored | None:
        """Find the newest good checkpoint and prove its files; called by all ranks together.

        Raises:
            ElasticError: the training cannot go on, or not on so many ranks.
        """
        self._environment = environment = Environment.read()
        self._ranks = ranks = Ranks()
        started = int(os.environ.get("WORLD_SIZE") or 1) if "RANK" in os.environ else 1
        if started != ranks.world_size:
            raise WorldSizeError(
                f"this is one of {started} ranks, and its process group has {ranks.world_size}"
            )
        samples.check(ranks.world_size)
        self._settings = settings = replace(
            self._settings,
            directory=self._settings.directory or environment.directory,
            interval_s=(
                environment.interval_s
                if self._settings.interval_s is None
                else self._settings.interval_s
            ),
        )
        directory = ranks.share(settings.directory)
        if directory is None:
            return None
        self._keeper = CheckpointKeeper(
            Shelf(directory),
            ranks,
            HostedState(self._write),  # type: ignore[arg-type]  # what Keeper calls of it
            samples,
            job=environment.job,
            attempt=environment.attempt,
            ahead=proof_ahead(),
        )
        self.restored = self._keeper.restore()
        if self.restored is not None:
            samples.check(ranks.world_size, self.restored.position.offset)
        elif environment.attempt > 1 and ranks.rank == 0:
            sys.stderr.write(
                f"gsched.elastic: attempt {environment.attempt} of job {environment.job} begins "
                f"anew: there is no checkpoint in {directory}\n"
            )
        return self.restored

    def training(self, model: nn.Module, samples: Samples) -> HostedTraining:
        """Return the training; `begin` starts its talk with the node."""
        assert self._ranks is not None, "restore() comes first"
        ranks = self._ranks
        speaking = self._environment if ranks.rank == 0 else replace(self._environment, socket=None)
        reporter = Reporter(speaking, samples, ranks.world_size)
        return HostedTraining(model, samples, ranks, reporter, self._settings)

    def begin(self, training: HostedTraining) -> None:
        """Let the training take over the position of the checkpoint, and connect."""
        training.begin_with(self._keeper, self.restored)


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """Write an `ElasticError` to standard error before it ends the process."""
    try:
        yield
    except ElasticError as error:
        tell_error(error)
        raise


def check_batches(samples: Samples, position: Position) -> None:
    """Do nothing if all steps up to a position had as many samples as they have now.

    Frameworks count batches, so their place in the data is another one with another batch.

    Raises:
        CheckpointMismatchError: they had not.
    """
    batches = -(-samples.per_epoch // samples.global_batch)
    step = position.epoch * batches + -(-position.offset // samples.global_batch)
    done = position.epoch * samples.per_epoch + position.offset
    if (step, done) != (position.step, position.samples_done):
        raise CheckpointMismatchError(
            f"the checkpoint is of step {position.step} and {position.samples_done} samples, which "
            f"cannot be in global batches of {samples.global_batch}: go on with the batch that "
            "it was saved with"
        )


def end_process() -> None:
    """End this process at once with code 0, after its output was flushed; see `Training.finish`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextlib.contextmanager
def _default_term() -> Iterator[None]:
    """Let TERM end this process; all is saved that it has done."""
    try:
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except ValueError:  # not in the main thread, where no handler runs
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _names(directory: str) -> list[str]:
    """Return the names of all files below a directory, whose directories are flushed."""
    found = []
    for folder, _, names in os.walk(directory):
        flush_directory(folder)
        found += [os.path.relpath(os.path.join(folder, name), directory) for name in names]
    return sorted(found)
