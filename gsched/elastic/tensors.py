"""The files of a checkpoint that hold tensors, by torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gsched.elastic.errors import SaveError
from gsched.elastic.manifest import TENSORS_SUFFIX, File, thread_count
from gsched.elastic.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint import FileSystemWriter, SavePlan, SavePlanner
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.planner import WriteItem

    from gsched.elastic.early import EarlyCopy

METADATA_NAME = ".metadata"
_PART_MIN = 4 << 20  # numbers in a file of its own; less is not worth a thread
_OF_ARCHIVE = "inline_container"  # stands in what torch says of an archive's writing

State = dict[str, Any]


def has_tensors(name: str) -> bool:
    """Return whether a file of a checkpoint is one of those that hold weights and the like."""
    return name.endswith(TENSORS_SUFFIX)


def save_tensors(
    state: State, directory: str, ranks: Ranks, copy: EarlyCopy | None = None
) -> dict[str, File]:
    """Write tensors; called by all ranks together.

    Args:
        state: what is saved.
        directory: the checkpoint's.
        ranks: that save it.
        copy: what was written there early, and was ended; its files are let go.

    Returns:
        This rank's files whose digests are known, by name.

    Raises:
        SaveError: one of them could not.
    """
    from torch.distributed import checkpoint

    # Flushed later, while the digests are computed.
    writer = checkpoint.FileSystemWriter(directory, sync_files=False)
    write = _in_parts(writer.write_data, _thread_count(state))
    known: dict[str, File] = {}

    def write_data(plan: SavePlan, planner: SavePlanner) -> Any:
        if copy is not None:
            updated = copy.update(plan, planner)
            if updated is not None:
                known.update(updated[1])
                return _done(updated[0])
            copy.remove()
        return write(plan, planner)

    writer.write_data = write_data
    try:
        _save(state, writer, ranks)
    finally:
        if copy is not None:
            copy.close()
    return known


def can_copy_early() -> bool:
    """Return whether this torch can write files with room for tensors."""
    from torch import serialization

    return hasattr(serialization, "skip_data")


def copy_tensors(
    state: State,
    directory: str,
    ranks: Ranks,
    constant: Collection[str],
    *,
    only_constant: bool,
) -> EarlyCopy:
    """Begin to write tensors while they change; called by all ranks together.

    Args:
        state: what is to be saved later.
        directory: the checkpoint's.
        ranks: that save it.
        constant: names of tensors that are not trained.
        only_constant: write no others.

    Raises:
        SaveError: one of them could not.
    """
    from torch.distributed import checkpoint

    from gsched.elastic.early import EarlyCopy

    writer = checkpoint.FileSystemWriter(directory, sync_files=False)
    write, count = writer.write_data, _thread_count(state)
    begun: list[EarlyCopy] = []

    def begin(plan: SavePlan, planner: SavePlanner) -> Any:
        begun.append(
            EarlyCopy(
                directory,
                plan,
                planner,
                write=write,
                divide=partial(_parts, count=count),
                constant=constant,
                only_constant=only_constant,
            )
        )
        return _done([])

    writer.write_data = begin
    writer.finish = _nothing
    try:
        _save(state, writer, ranks)
    except SaveError:
        for copy in begun:
            copy.end()
            copy.close()
        raise
    (copy,) = begun
    return copy


def _save(state: State, writer: FileSystemWriter, ranks: Ranks) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with _quiet(), _without_checksums():
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


def _thread_count(state: State) -> int:
    # Devices and their streams are of one thread: what is on a GPU is written by this one.
    return thread_count() if _is_on_cpu(state) else 1


def _done(results: list[Any]) -> Any:
    """Return results as a writer of torch's does."""
    import torch

    future: Any = torch.futures.Future()
    future.set_result(results)
    return future


def _nothing(*_arguments: object, **_named: object) -> None:
    """Write down nothing of tensors whose content is not there yet."""


def load_tensors(template: State, directory: str, ranks: Ranks) -> None:
    """Read tensors into those of ``template``; called by all ranks together."""
    from torch.distributed import checkpoint

    from gsched.elastic.reading import in_place

    with _quiet():
        checkpoint.load(
            template,
            storage_reader=in_place(checkpoint.FileSystemReader(directory)),
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


def root_error(error: BaseException) -> BaseException:
    """Return the system's error behind one of torch's, or the error itself where there is none.

    Torch finishes its archive even when a write failed, and then reports the archive's wrong
    length; the full disk is only the context of that.
    """
    found: BaseException | None = error if _OF_ARCHIVE in str(error) else None
    while found is not None and not isinstance(found, OSError):
        found = found.__context__
    return found or error


def words(error: BaseException) -> str:
    """Return an error in one line: the first of torch's, which like to go on."""
    error = root_error(error)
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if not isinstance(error, OSError) else text


def _is_on_cpu(value: object) -> bool:
    """Return whether all tensors of a tree are on the CPU."""
    if isinstance(value, dict):
        return all(map(_is_on_cpu, value.values()))
    device = getattr(value, "device", None)
    return device is None or device.type == "cpu"


def _in_parts(write: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return torch's method with ``count`` threads, each of which writes files of its own.

    A thread writes about 600 MB/s where the system has to find memory for the file. Torch has an
    option for threads, too, and takes no notice of one that fails. Errors say what the disk said.
    """

    def write_parts(plan: SavePlan, planner: SavePlanner) -> Any:
        parts = _parts(plan, count)
        with ThreadPoolExecutor(len(parts)) as pool:
            writes = [pool.submit(write, part, planner) for part in parts]
        results: list[Any] = []
        for each in writes:
            error = each.exception()  # raised here, it would lose the error that is behind it
            if error is not None and root_error(error) is not error:
                raise root_error(error) from error
            results += each.result().wait()
        return _done(results)

    return write_parts


def _parts(plan: SavePlan, count: int) -> list[SavePlan]:
    """Divide what a rank writes into parts of about the same size, whose files differ in name."""
    count = min(count, sum(map(_size, plan.items)) // _PART_MIN)
    if count <= 1:
        return [plan]
    items: list[list[WriteItem]] = [[] for _ in range(count)]
    sizes = [0] * count
    for item in sorted(plan.items, key=_size, reverse=True):
        lightest = sizes.index(min(sizes))
        items[lightest].append(item)
        sizes[lightest] += _size(item)
    prefix = plan.storage_data.prefix  # of the names of files
    return [
        replace(
            plan,
            items=part,
            storage_data=replace(plan.storage_data, prefix=f"{prefix}{number}_"),
        )
        for number, part in enumerate(items)
        if part
    ]


def _size(item: WriteItem) -> int:
    """Return how many numbers a tensor has; 0 of other things."""
    return 0 if item.tensor_data is None else item.tensor_data.chunk.sizes.numel()


@contextlib.contextmanager
def _without_checksums() -> Iterator[None]:
    """Keep torch from computing a CRC-32 of each tensor: the manifest has digests of the files.

    That takes more time than writing them to memory does. Torch before 2.6 cannot leave it out.
    """
    from torch import serialization

    if not hasattr(serialization, "set_crc32_options"):
        yield
        return
    before = serialization.get_crc32_options()
    serialization.set_crc32_options(compute_crc32=False)
    try:
        yield
    finally:
        serialization.set_crc32_options(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from warning that a single process is a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
