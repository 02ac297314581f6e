"""The proof of a checkpoint by ranks that wait for their launch, before they may load it.

A rank that was started early looks for a checkpoint that comes into being while it waits. As soon
as all tensors of it are written, it reads the files that it would have to prove when it loads them,
while the attempt before proves, publishes and ends. What it has read counts for the file as it was
then: the same inode, size and time of change. Nothing is written, and nothing is kept but digests.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from gsched.elastic.errors import BadCheckpointError
from gsched.elastic.manifest import File, check_digest, check_file, digest_file, share_of
from gsched.elastic.shelf import is_of_checkpoint
from gsched.elastic.tensors import METADATA_NAME, has_tensors

_PERIOD_S = 0.1

_Version = tuple[int, int, int, int]  # of a file: device, inode, size, time of change


class ProofAhead:
    """Proves what appears in a directory of checkpoints, in a thread of its own.

    Args:
        directory: of the checkpoints; what is there already is left alone.
        rank: this one's number.
        world_size: how many ranks prove a part each.
    """

    def __init__(self, directory: str, rank: int, world_size: int) -> None:
        self._directory = directory
        self._rank = rank
        self._world_size = world_size
        self._seen = set(self._complete())
        self._digests: dict[_Version, str] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gsched-elastic-ahead", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look for nothing new any more; what is being read is read to its end."""
        self._is_over.set()

    def check(self, directory: str, file: File) -> None:
        """Do nothing if the file is there with its size and its digest, which may be known.

        Raises:
            BadCheckpointError: it is not.
        """
        self._is_over.set()
        self._thread.join()
        try:
            version = _version(os.stat(os.path.join(directory, file.name)))
        except OSError as error:
            raise BadCheckpointError(f"{file.name}: {error.strerror}") from error
        digest = self._digests.get(version)
        if digest is None or version[2] != file.size_bytes:
            check_file(directory, file)
        else:
            check_digest(file, digest)

    def _run(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            for inode, path in self._complete().items():
                if inode not in self._seen:
                    self._seen.add(inode)
                    with contextlib.suppress(OSError):  # it was removed, or cannot be read
                        self._prove(path)

    def _complete(self) -> dict[int, str]:
        """Return, by inode, the directories of checkpoints whose tensors are all written."""
        try:
            names = os.listdir(self._directory)
        except OSError:
            return {}
        return dict(self._those_complete(filter(is_of_checkpoint, names)))

    def _those_complete(self, names: Iterator[str]) -> Iterator[tuple[int, str]]:
        for name in names:
            path = os.path.join(self._directory, name)
            with contextlib.suppress(OSError):
                if os.path.exists(os.path.join(path, METADATA_NAME)):
                    yield os.stat(path).st_ino, path

    def _prove(self, path: str) -> None:
        """Read this rank's share of a checkpoint; the directory may get its name meanwhile."""
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            place = f"/proc/self/fd/{directory}"
            names = filter(has_tensors, os.listdir(directory))
            files = [_sized(place, name) for name in names]
            for file in share_of(files, self._rank, self._world_size):
                at = os.path.join(place, file.name)
                before = _version(os.stat(at))
                digest = digest_file(at)
                if _version(os.stat(at)) == before:
                    self._digests[before] = digest
        finally:
            os.close(directory)


def _sized(directory: str, name: str) -> File:
    size_bytes = os.stat(os.path.join(directory, name)).st_size
    return File(name=name, size_bytes=size_bytes, sha256="")


def _version(found: os.stat_result) -> _Version:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
