"""Tensors of a checkpoint read to where they belong; imported once torch is.

torch.distributed.checkpoint reads each tensor into new memory and copies it from there. Those that
are whole and lie on the CPU are read in place here: half the memory is written, and a start from a
large checkpoint waits for that.
"""

import io
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import torch
from torch import Tensor, serialization
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from gsched.elastic.manifest import thread_count

_HEADER_BYTES = 30  # of a file in an archive, before its name: the ZIP specification, 4.3.7
_NAME_LENGTH, _EXTRA_LENGTH = slice(26, 28), slice(28, 30)
_READ_BYTES_MAX = 64 << 20  # at once


def in_place(reader: FileSystemReader) -> FileSystemReader:
    """Let a reader read whole tensors into the memory of those that they are loaded into."""
    read_the_rest = reader.read_data

    def read_data(plan: LoadPlan, planner: LoadPlanner) -> Any:
        descriptors: dict[str, int] = {}
        others: list[ReadItem] = []
        try:
            with ThreadPoolExecutor(thread_count()) as pool:
                reads = []
                for item in plan.items:
                    target = _target(reader, item, planner, descriptors)
                    if target is None:
                        others.append(item)
                    else:
                        reads.append((item, target, pool.submit(target.read)))
                for item, target, read in reads:
                    read.result()
                    planner.commit_tensor(item, target.tensor)
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return read_the_rest(replace(plan, items=others), planner)

    reader.read_data = read_data
    return reader


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor that is read in place, and where its content is."""

    tensor: Tensor
    descriptor: int
    begin: int

    def read(self) -> None:
        """Read it; other threads read others meanwhile."""
        _read(self.descriptor, self.begin, self.tensor)


def _target(
    reader: FileSystemReader, item: ReadItem, planner: LoadPlanner, descriptors: dict[str, int]
) -> _Target | None:
    """Return a tensor that is to be read in place; None: it cannot be, and is left to torch."""
    stored = reader.storage_data[item.storage_index]
    if (
        item.type is not LoadItemType.TENSOR
        or any((*item.storage_offsets, *item.dest_offsets))
        or stored.transform_descriptors
        or not hasattr(serialization, "skip_data")
    ):
        return None
    target = planner.resolve_tensor(item).detach()
    if target.device.type != "cpu" or not target.is_contiguous():
        return None
    path = os.path.join(reader.path, stored.relative_path)
    if path not in descriptors:
        descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    archive = _Part(descriptors[path], stored.offset, stored.length)
    with serialization.skip_data():
        saved = torch.load(archive, map_location="cpu", weights_only=True)
    begin = _data_begin(archive) if _is_alike(saved, target) else None
    if begin is None:
        return None
    return _Target(target, descriptors[path], stored.offset + begin)


class _Part(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, descriptor: int, begin: int, length: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._begin = begin
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read what fits into a buffer, and return how much that was."""
        wanted = memoryview(buffer)[: max(0, self._length - self._at)]
        count = os.preadv(self._descriptor, [wanted], self._begin + self._at) if wanted else 0
        self._at += count
        return count


def _is_alike(saved: Any, target: Tensor) -> bool:
    """Return whether the bytes of a tensor are those of another one, in the same order."""
    return (
        type(saved) is Tensor
        and (saved.shape, saved.dtype) == (target.shape, target.dtype)
        and saved.is_contiguous()
        and saved.storage_offset() == 0
        and not (saved.is_conj() or saved.is_neg() or target.is_conj() or target.is_neg())
    )


def content_begin(descriptor: int, begin: int, length: int) -> int | None:
    """Return where in a file a tensor's content begins that torch saved there; None: unknown."""
    found = _data_begin(_Part(descriptor, begin, length))
    return None if found is None else begin + found


def _data_begin(archive: _Part) -> int | None:
    """Return where in an archive the only storage begins; None: there are several, or none."""
    archive.seek(0)
    with zipfile.ZipFile(cast("IO[bytes]", archive)) as files:
        found = [each for each in files.infolist() if "/data/" in each.filename]
    if len(found) != 1 or found[0].compress_type != zipfile.ZIP_STORED:
        return None
    archive.seek(found[0].header_offset)
    header = archive.read(_HEADER_BYTES) or b""
    lengths = (int.from_bytes(header[part], "little") for part in (_NAME_LENGTH, _EXTRA_LENGTH))
    return found[0].header_offset + _HEADER_BYTES + sum(lengths)


def _read(descriptor: int, begin: int, target: Tensor) -> None:
    """Read the content of a tensor from a place in a file.

    Raises:
        EOFError: the file ends before.
    """
    for part in _parts(target):
        done = 0
        while done < len(part):
            count = os.preadv(descriptor, [part[done:]], begin)
            if not count:
                raise EOFError("a file of the checkpoint ends within a tensor")
            done, begin = done + count, begin + count


def _parts(target: Tensor) -> Iterator[Any]:
    content = target.view(-1).view(torch.uint8).numpy()
    for begin in range(0, len(content), _READ_BYTES_MAX):
        yield memoryview(content[begin : begin + _READ_BYTES_MAX])
