"""What a checkpoint holds of a training, and how it gets out of and into it.

Weights and optimiser state go through torch.distributed.checkpoint, which lets every rank write a
part of them and any number of ranks read them. What is small and the same everywhere (a scheduler,
a gradient scaler) is one file that rank 0 writes; random number generators are one file for each
rank.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gsched.elastic.errors import BadCheckpointError, SaveError
from gsched.elastic.manifest import File, describe_file
from gsched.elastic.ranks import Ranks
from gsched.elastic.room import make_room
from gsched.elastic.samples import order_seed
from gsched.elastic.shelf import flush_file
from gsched.failpoint import failpoint

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.optim import Optimizer

OBJECTS_NAME = "objects.pt"
METADATA_NAME = ".metadata"
TENSORS_SUFFIX = ".distcp"

State = dict[str, object]
Fault = str | None  # in words; None: there is none


class Stateful(Protocol):
    """Anything whose state can be taken and given back: a scheduler, a gradient scaler."""

    def state_dict(self) -> dict[str, object]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, object], /) -> object:
        """Take over a state."""


class TrainingState:
    """The objects of a training whose state is saved.

    Args:
        model: bare, or wrapped by DistributedDataParallel or FSDP.
        optimizers: of this model.
        also: further objects by name, their state the same on all ranks.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], also: Mapping[str, Stateful]
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.also = dict(also)

    def save(self, directory: str, ranks: Ranks) -> list[File]:
        """Write the state into ``directory``, flushed; return what all ranks have written.

        Called by all ranks together. All of them raise if one of them cannot.

        Raises:
            SaveError: the disk is full, or an object cannot be saved; the words say which.
        """
        state, fault = self._collect()
        _raise_first(ranks.gather(fault))
        failpoint("training.save.before_data")
        _save_distributed(state, directory, ranks)
        files: list[File] = []
        try:
            self._save_small(directory, ranks.rank)
            files = _flushed(directory, _own_files(directory, ranks.rank))
        except Exception as error:  # noqa: BLE001 - an object's pickle may raise anything; it is told
            fault = _words(error)
        outcomes = ranks.gather((files, fault))
        _raise_first([fault for _, fault in outcomes])
        return [file for files, _ in outcomes for file in files]

    def load(
        self, directory: str, ranks: Ranks, world_size: int, fault_of_tensors: Callable[[], Fault]
    ) -> State:
        """Take the state over from ``directory``; called by all ranks together.

        Args:
            directory: of a checkpoint; but for those with tensors, its files were found good.
            ranks: that load it.
            world_size: ranks that saved it.
            fault_of_tensors: returns, when it is known, what is wrong with a file with tensors.

        Returns:
            What `restore_generators` needs; empty if this rank did not exist when it was saved.

        Raises:
            BadCheckpointError: it cannot be loaded into these objects; some may have been changed.
        """
        import torch
        from torch.distributed.checkpoint.api import CheckpointException

        template, fault = self._template(directory)
        _refuse_first(ranks.gather(fault))
        failure = None
        try:
            self._load_distributed(template, directory, ranks)
        except CheckpointException as error:  # no Exception; the same on all ranks
            failure = _first_failure(error)
        except Exception as error:  # noqa: BLE001 - torch's own are many; it is told
            fault = _words(error)
        # Here it is seen that what was loaded is what was saved. If not, an older checkpoint is
        # loaded over it, or the training does not start.
        _refuse_first(ranks.gather(fault_of_tensors() or fault))
        if failure is not None:
            raise BadCheckpointError(failure)
        try:
            # Whole pickles, as schedulers and generators need them: the digests were checked, and
            # who can write here could as well change the training script.
            objects: dict[str, State] = torch.load(
                os.path.join(directory, OBJECTS_NAME), map_location="cpu", weights_only=False
            )
            for name, thing in self.also.items():
                if name in objects:
                    thing.load_state_dict(objects[name])
            generators: State = {}
            if ranks.rank < world_size:
                path = os.path.join(directory, generators_name(ranks.rank))
                generators = torch.load(path, map_location="cpu", weights_only=False)
        except Exception as error:  # noqa: BLE001 - an object may raise anything; it is told
            objects, generators, fault = {}, {}, _words(error)
        _refuse_first(ranks.gather(fault))
        _tell_differences(set(objects), set(self.also), ranks.rank)
        return generators

    def _collect(self) -> tuple[State, Fault]:
        """Return weights and optimiser state by name, or why they cannot be had."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        own = set(self.model.parameters())
        if any(not own.issuperset(group["params"]) for group in self._groups()):
            return {}, (
                "an optimiser has parameters that the model has not: put all modules that are "
                "trained into one, as nn.ModuleDict, and give `start` that"
            )
        try:
            model, optimizer = get_state_dict(self.model, self.optimizers)
        except Exception as error:  # noqa: BLE001 - told, and the training goes on
            return {}, _words(error)
        return {"model": model, "optimizer": optimizer}, None

    def _groups(self) -> Iterator[dict[str, Any]]:
        return (group for optimizer in self.optimizers for group in optimizer.param_groups)

    def _save_small(self, directory: str, rank: int) -> None:
        import torch

        torch.save(generators_state(), os.path.join(directory, generators_name(rank)))
        if rank == 0:
            objects = {name: thing.state_dict() for name, thing in self.also.items()}
            torch.save(objects, os.path.join(directory, OBJECTS_NAME))

    def _template(self, directory: str) -> tuple[State, Fault]:
        """Return what is to be loaded, with room for it, or why that cannot be said.

        A parameter that never had a gradient has no optimiser state in the checkpoint, but would
        have in a freshly made optimiser's: what was not saved is not asked for.
        """
        from torch.distributed import checkpoint

        try:
            saved = checkpoint.FileSystemReader(directory).read_metadata().state_dict_metadata
            make_room(self.model, self.optimizers, saved)
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything; it is told
            return {}, _words(error)
        state, fault = self._collect()
        if fault is not None:
            return {}, fault
        moments: State = state["optimizer"].get("state", {})  # type: ignore[attr-defined]  # torch's
        for name in list(moments):
            if not any(key.startswith(f"optimizer.state.{name}.") for key in saved):
                del moments[name]
        return state, None

    def _load_distributed(self, template: State, directory: str, ranks: Ranks) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict

        with _quiet():
            checkpoint.load(
                template,
                storage_reader=checkpoint.FileSystemReader(directory),
                # Flattened, the tensors of which FSDP gives a rank nothing seem to be missing, and
                # torch 2.13 takes the checkpoint for one of before 2.4.
                planner=checkpoint.DefaultLoadPlanner(flatten_sharded_tensors=False),
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
        state_dict.set_model_state_dict(self.model, template["model"])
        state_dict.set_optimizer_state_dict(
            self.model,
            self.optimizers,
            template["optimizer"],
            options=state_dict.StateDictOptions(strict=False),  # see _template
        )


def has_tensors(name: str) -> bool:
    """Return whether a file of a checkpoint is one of those that hold weights and the like."""
    return name.endswith(TENSORS_SUFFIX)


def generators_name(rank: int) -> str:
    """Return the file of a rank's random number generators."""
    return f"rank-{rank:05d}.pt"


def generators_state() -> State:
    """Return the state of Python's, NumPy's and torch's generators in this process.

    NumPy's only if it was imported, CUDA's (of the current device) only if it is in use.
    """
    import torch

    state: State = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_generators(state: State) -> None:
    """Set this process's generators to what `generators_state` has returned."""
    import torch

    random.setstate(state["python"])  # type: ignore[arg-type]  # what getstate has returned
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_generators(seed: int, step: int, rank: int) -> None:
    """Seed the generators of a rank that did not exist when the checkpoint was saved."""
    import torch

    mixed = order_seed(seed ^ (rank << 40), step)
    random.seed(mixed)
    torch.manual_seed(mixed)  # CUDA's, too
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(mixed & 0xFFFF_FFFF)


def _save_distributed(state: State, directory: str, ranks: Ranks) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    # Flushed later, while the digests are computed.
    writer = checkpoint.FileSystemWriter(directory, sync_files=False)
    try:
        with _quiet():
            checkpoint.save(
                state,
                storage_writer=writer,
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
    except CheckpointException as error:  # the same on all ranks
        raise SaveError(_first_failure(error)) from error
    except (OSError, RuntimeError) as error:  # where there is one rank
        raise SaveError(_words(error)) from error


def _own_files(directory: str, rank: int) -> list[str]:
    """Return the names of the files that a rank has written."""
    # torch names what a rank writes __RANK_NUMBER.distcp.
    names = [name for name in os.listdir(directory) if name.startswith(f"__{rank}_")]
    names.append(generators_name(rank))
    return [*names, METADATA_NAME, OBJECTS_NAME] if rank == 0 else names


def _flushed(directory: str, names: Sequence[str]) -> list[File]:
    """Flush files and return their sizes and digests: the disk and the processor work at once."""
    errors: list[OSError] = []

    def flush() -> None:
        for name in names:
            try:
                flush_file(os.path.join(directory, name))
            except OSError as error:
                errors.append(error)

    thread = threading.Thread(target=flush, name="gsched-elastic-flush")
    thread.start()
    try:
        files = [describe_file(directory, name) for name in names]
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return files


def _tell_differences(saved: set[str], given: set[str], rank: int) -> None:
    if rank != 0:
        return
    for name in sorted(given - saved):
        sys.stderr.write(
            f"gsched.elastic: the checkpoint has no state of {name!r}: it begins anew\n"
        )
    for name in sorted(saved - given):
        sys.stderr.write(
            f"gsched.elastic: the checkpoint has a state of {name!r}, which this script does not "
            "name: it is left out\n"
        )


def _raise_first(faults: Sequence[str | None]) -> None:
    for rank, fault in enumerate(faults):
        if fault is not None:
            raise SaveError(f"rank {rank}: {fault}" if len(faults) > 1 else fault)


def _refuse_first(faults: Sequence[str | None]) -> None:
    for rank, fault in enumerate(faults):
        if fault is not None:
            raise BadCheckpointError(f"rank {rank}: {fault}" if len(faults) > 1 else fault)


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {_words(cause)}"


def _words(error: BaseException) -> str:
    """Return an error in one line: the first of torch's, which like to go on."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if not isinstance(error, OSError) else text


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from warning that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
