"""A copy of a training's tensors, written while it goes on; imported once torch is.

What a move waits for is memory for the files, more than the copying itself. So a thread writes the
files of the next checkpoint beside the steps, with whatever the tensors hold just then. When the
training has stopped at a step, `EarlyCopy.update` writes over them, in the same places. Tensors
that are not trained are compared, and neither written nor digested again if they are the same.

The copy lies in the directory of an unfinished save until then: nobody loads it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import IO, Any

import torch
from torch import Tensor, serialization
from torch.distributed.checkpoint import SavePlan, SavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from gsched.elastic.manifest import (
    PART_BYTES,
    TENSORS_SUFFIX,
    File,
    digest_of_parts,
    thread_count,
)
from gsched.elastic.reading import content_begin
from gsched.failpoint import failpoint

_BLOCK_BYTES = 1 << 20  # at once: it is digested while the processor's cache has it
_BLOCK_BYTES_GPU = 16 << 20
_ZEROS = memoryview(bytes(_BLOCK_BYTES))

Write = Callable[[SavePlan, SavePlanner], Any]
Divide = Callable[[SavePlan], list[SavePlan]]
Tensors = Mapping[MetadataIndex, Tensor]


@dataclass(frozen=True, slots=True)
class _Content:
    """Where in a file the content of a tensor is."""

    begin: int
    end: int
    index: MetadataIndex


@dataclass(slots=True)
class _Room:
    """A file with room for tensors.

    Attributes:
        contents: in the order of the file.
        is_constant: of tensors that are not trained.
        digests: of its parts, by where they begin: of what was written there last.
    """

    name: str
    descriptor: int
    size_bytes: int
    contents: list[_Content]
    is_constant: bool
    digests: dict[int, bytes] = field(default_factory=dict)

    def parts(self) -> range:
        """Return where its parts begin."""
        return range(0, self.size_bytes, PART_BYTES)

    def blocks(
        self, begin: int, tensors: Tensors, *, read_gpus: bool
    ) -> Iterator[tuple[int, memoryview, bool]]:
        """Yield the blocks of a part: where each is, what it holds, and whether tensors do.

        Args:
            begin: of the part.
            tensors: what they hold; else it is what is in the file.
            read_gpus: False: zeros for tensors on GPUs.
        """
        end = min(begin + PART_BYTES, self.size_bytes)
        for content in self.contents:
            if content.begin < end and content.end > begin:
                yield from self._read(begin, content.begin)
                begin = max(begin, content.begin)
                until = min(end, content.end)
                tensor = tensors[content.index]
                blocks = _blocks(
                    tensor, begin - content.begin, until - content.begin, read_gpu=read_gpus
                )
                for block in blocks:
                    yield begin, block, True
                    begin += len(block)
        yield from self._read(begin, end)

    def _read(self, begin: int, end: int) -> Iterator[tuple[int, memoryview, bool]]:
        while begin < end:
            block = os.pread(self.descriptor, min(_BLOCK_BYTES, end - begin), begin)
            if not block:
                raise OSError(f"{self.name} ends early")
            yield begin, memoryview(block), False
            begin += len(block)

    def digest_file(self, begin: int) -> None:
        """Make the digest of a part from what is in the file."""
        digest = hashlib.sha256()
        for _, block, _ in self._read(begin, min(begin + PART_BYTES, self.size_bytes)):
            digest.update(block)
        self.digests[begin] = digest.digest()

    def file(self) -> File:
        """Return its size and digest, once all parts have one."""
        digest = digest_of_parts([self.digests[begin] for begin in self.parts()])
        return File(name=self.name, size_bytes=self.size_bytes, sha256=digest)


class EarlyCopy:
    """What one rank writes early of its part of a checkpoint.

    Args:
        directory: of the unfinished save.
        plan: what torch has this rank write.
        planner: has the tensors.
        write: torch's method that writes a file for a plan.
        divide: divides a plan into those of files.
        constant: names of tensors that are not trained.
        only_constant: leave all others to `update`.
    """

    def __init__(  # noqa: PLR0913 - each is one thing that it works with
        self,
        directory: str,
        plan: SavePlan,
        planner: SavePlanner,
        *,
        write: Write,
        divide: Divide,
        constant: Collection[str],
        only_constant: bool,
    ) -> None:
        self.directory = directory
        self._items = list(plan.items)
        self._write = write
        self._tensors = _fit_tensors(planner, self._items)
        fixed: list[WriteItem] = []
        trained: list[WriteItem] = []
        late: list[WriteItem] = []
        for item in self._items:
            if item.index not in self._tensors:
                late.append(item)
            elif item.index.fqn in constant:
                fixed.append(item)
            else:
                (late if only_constant else trained).append(item)
        self._late = _part_of(plan, "late_", late)
        self._plans = [
            *((part, True) for part in divide(_part_of(plan, "same_", fixed)) if fixed),
            *((part, False) for part in divide(_part_of(plan, "", trained)) if trained),
        ]
        self._rooms: list[_Room] = []
        self._results: list[Any] = []
        self._is_over = threading.Event()
        self._is_complete = False
        self._thread = threading.Thread(target=self._run, name="gsched-elastic-copy", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Return whether it is still being written."""
        return self._thread.is_alive()

    def end(self) -> bool:
        """Write no more of it; return whether all of it was written."""
        self._is_over.set()
        self._thread.join()
        return self._is_complete

    def close(self) -> None:
        """Let its files go, once it was ended."""
        rooms, self._rooms = self._rooms, []
        for room in rooms:
            os.close(room.descriptor)

    def remove(self) -> None:
        """Remove its files, once it was ended."""
        for room in self._rooms:
            os.unlink(os.path.join(self.directory, room.name))
        self.close()

    def update(
        self, plan: SavePlan, planner: SavePlanner
    ) -> tuple[list[Any], dict[str, File]] | None:
        """Write what the tensors hold now; nobody changes them meanwhile.

        Returns:
            What torch has to know of each tensor, and the files whose digests are known. None: what
            is to be saved has not its places in the copy; nothing is changed then.

        Raises:
            OSError: the disk is full, or the like.
        """
        tensors = _fit_tensors(planner, plan.items)
        if list(plan.items) != self._items or tensors.keys() != self._tensors.keys():
            return None
        results = list(self._results)
        with ThreadPoolExecutor(thread_count()) as pool:
            parts = [
                pool.submit(_update_part, room, begin, tensors)
                for room in self._rooms
                for begin in room.parts()
            ]
            if self._late.items:
                results += self._write(self._late, planner).wait()
            for part in parts:
                part.result()
        return results, {room.name: room.file() for room in self._rooms}

    def _run(self) -> None:
        try:
            failpoint("training.copy.before")
            for plan, is_constant in self._plans:
                if self._is_over.is_set():
                    return
                self._make_room(plan, is_constant=is_constant)
            self._is_complete = all(
                self._copy_part(room, begin) for room in self._rooms for begin in room.parts()
            )
            failpoint("training.copy.complete")
        except Exception:  # noqa: BLE001 - torch's are many; the save writes everything, and tells
            self._is_complete = False

    def _make_room(self, plan: SavePlan, *, is_constant: bool) -> _Room:
        """Make a file as torch makes it, without the content of its tensors."""
        name = f"{plan.storage_data.prefix}0{TENSORS_SUFFIX}"
        path = os.path.join(self.directory, name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        room = _Room(name, descriptor, 0, [], is_constant)
        self._rooms.append(room)
        with open(descriptor, "wb", closefd=False) as file:
            self._results += [_written(room, file, item) for item in plan.items]
            room.size_bytes = file.tell()
        for item, result in zip(plan.items, self._results[-len(plan.items) :], strict=True):
            at = result.storage_data
            begin = content_begin(descriptor, at.offset, at.length)
            size_bytes = self._tensors[item.index].nbytes
            if begin is None or begin + size_bytes > at.offset + at.length:
                raise ValueError(f"no room for {item.index.fqn}")
            room.contents.append(_Content(begin, begin + size_bytes, item.index))
        return room

    def _copy_part(self, room: _Room, begin: int) -> bool:
        """Write a part of a file as its tensors are; return False if nobody wants it any more."""
        for at, block, is_content in room.blocks(begin, self._tensors, read_gpus=False):
            if self._is_over.is_set():
                return False
            if is_content:  # the system refuses memory that a library has taken back meanwhile
                _write_all(room.descriptor, block, at)
        if room.is_constant:
            room.digest_file(begin)
        return True


def _written(room: _Room, file: IO[bytes], item: WriteItem) -> WriteResult:
    """Write a tensor without its content; return what torch has to know of it."""
    assert item.tensor_data is not None
    begin = file.tell()
    with serialization.skip_data():  # of this thread
        # Its memory is not touched.
        empty = torch.empty(item.tensor_data.chunk.sizes, dtype=item.tensor_data.properties.dtype)
        torch.save(empty, file)
    length = file.tell() - begin
    return WriteResult(
        index=item.index,
        size_in_bytes=length,
        storage_data=_StorageInfo(room.name, begin, length),
    )


def _part_of(plan: SavePlan, name: str, items: list[WriteItem]) -> SavePlan:
    """Return a plan of some of the items, with a name for its files."""
    storage_data = replace(plan.storage_data, prefix=f"{plan.storage_data.prefix}{name}")
    return replace(plan, items=items, storage_data=storage_data)


def _fit_tensors(planner: SavePlanner, items: Sequence[WriteItem]) -> dict[MetadataIndex, Tensor]:
    """Return the tensors whose bytes lie in memory as in a file."""
    found = {}
    for item in items:
        if item.type is not WriteItemType.TENSOR or item.tensor_data is None:
            continue
        tensor = planner.resolve_data(item)
        if (
            isinstance(tensor, torch.Tensor)
            and tensor.layout is torch.strided
            and tensor.device.type in {"cpu", "cuda"}
            and tensor.is_contiguous()
            and not (tensor.is_conj() or tensor.is_neg())
            and tensor.shape == item.tensor_data.chunk.sizes
        ):
            found[item.index] = tensor.detach()
    return found


def _update_part(room: _Room, begin: int, tensors: Tensors) -> None:
    """Write a part of a file anew, unless it is known to be the same."""
    if begin in room.digests and _is_same(room, begin, tensors):
        return
    digest = hashlib.sha256()
    for at, block, is_content in room.blocks(begin, tensors, read_gpus=True):
        if is_content:
            _write_all(room.descriptor, block, at)
        digest.update(block)
    room.digests[begin] = digest.digest()


def _is_same(room: _Room, begin: int, tensors: Tensors) -> bool:
    """Return whether a part of a file holds what the tensors hold."""
    buffer = ctypes.create_string_buffer(_BLOCK_BYTES)
    for at, block, is_content in room.blocks(begin, tensors, read_gpus=True):
        if is_content:
            count = os.preadv(room.descriptor, [memoryview(buffer)[: len(block)]], at)
            if count != len(block) or _differ(block, buffer):
                return False
    return True


def _differ(block: memoryview, other: ctypes.Array[ctypes.c_char]) -> bool:
    """Compare a block with the beginning of a buffer; other threads run meanwhile."""
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    first = ctypes.addressof(ctypes.c_char.from_buffer(block))
    return bool(compare(first, ctypes.addressof(other), len(block)))


def _blocks(tensor: Tensor, begin: int, end: int, *, read_gpu: bool) -> Iterator[memoryview]:
    """Yield the bytes of a tensor from ``begin`` to ``end``."""
    if tensor.is_cpu:
        memory = (ctypes.c_char * (end - begin)).from_address(tensor.data_ptr() + begin)
        view = memoryview(memory).cast("B")
        for at in range(0, end - begin, _BLOCK_BYTES):
            yield view[at : at + _BLOCK_BYTES]
        return
    step = _BLOCK_BYTES_GPU if read_gpu else _BLOCK_BYTES
    for at in range(begin, end, step):
        if read_gpu:
            until = min(at + step, end)
            part = tensor.view(-1).view(torch.uint8)[at:until].cpu()
            yield from _blocks(part, 0, until - at, read_gpu=read_gpu)
        else:  # the GPU is the training's
            yield _ZEROS[: min(step, end - at)]


def _write_all(descriptor: int, block: memoryview, at: int) -> None:
    while block:
        count = os.pwrite(descriptor, block, at)
        block, at = block[count:], at + count
