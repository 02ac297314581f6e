"""Files of tensors, whose digests are computed while they are written; imported once torch is.

A move waits for the digest of a checkpoint as well as for its writing, and both take a processor.
"""

import io
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

from gsched.elastic.manifest import PART_BYTES, digest_of_part

PartDigests = dict[str, tuple[bytes, ...]]  # by name of the file, of its first parts in order


@contextmanager
def digesting(writer: FileSystemWriter, pool: ThreadPoolExecutor) -> Iterator[PartDigests]:
    """Let ``pool`` digest the files of a writer; yield the digests, which are there at the end."""
    files: dict[str, _DigestedFile] = {}
    digests: PartDigests = {}

    @contextmanager
    def create_stream(path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with open(path, mode) as stream:
                yield stream
            return
        with _DigestedFile(os.fspath(path), pool) as file:
            files[os.path.basename(path)] = file
            yield file

    writer.fs.create_stream = create_stream
    yield digests
    for name, file in files.items():
        digests[name] = file.digests()


class _DigestedFile(io.BufferedWriter):
    """A new file; each part of it is read back and digested as soon as it is written."""

    def __init__(self, path: str, pool: ThreadPoolExecutor) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._pool = pool
        self._path = path
        self._parts: list[Future[bytes]] = []
        self._is_sequential = True

    def write(self, content: Any, /) -> int:
        """Write, and let the parts that are complete now be digested."""
        count = super().write(content)
        end = (len(self._parts) + 1) * PART_BYTES
        if self._is_sequential and self.tell() >= end:
            self.flush()
            while end <= self.tell():
                self._parts.append(self._pool.submit(_digest, self._path, end - PART_BYTES))
                end += PART_BYTES
        return count

    def seek(self, *place: int) -> int:
        """Go to a place: from now on what was digested may be written over."""
        self._is_sequential = False
        return super().seek(*place)

    def digests(self) -> tuple[bytes, ...]:
        """Return the digests of the parts that were complete in time.

        Raises:
            OSError: one could not be read back.
        """
        return tuple(part.result() for part in self._parts) if self._is_sequential else ()


def _digest(path: str, begin: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return digest_of_part(descriptor, begin)
    finally:
        os.close(descriptor)
