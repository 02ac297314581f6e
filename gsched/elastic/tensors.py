"""The files of a checkpoint that hold tensors, by torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gsched.elastic.errors import SaveError
from gsched.elastic.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

METADATA_NAME = ".metadata"
TENSORS_SUFFIX = ".distcp"

State = dict[str, Any]


def has_tensors(name: str) -> bool:
    """Return whether a file of a checkpoint is one of those that hold weights and the like."""
    return name.endswith(TENSORS_SUFFIX)


def save_tensors(state: State, directory: str, ranks: Ranks) -> None:
    """Write tensors; called by all ranks together.

    Raises:
        SaveError: one of them could not.
    """
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
        raise SaveError(first_failure(error)) from error
    except (OSError, RuntimeError) as error:  # where there is one rank
        raise SaveError(words(error)) from error


def load_tensors(template: State, directory: str, ranks: Ranks) -> None:
    """Read tensors into those of ``template``; called by all ranks together."""
    from torch.distributed import checkpoint

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


def first_failure(error: CheckpointException) -> str:
    """Return in words what went wrong on the first rank of those on which something did."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {words(cause)}"


def words(error: BaseException) -> str:
    """Return an error in one line: the first of torch's, which like to go on."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if not isinstance(error, OSError) else text


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from warning that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
