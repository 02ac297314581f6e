"""What a checkpoint consists of, and the proof that it is all there, unaltered.

The manifest is written last. A directory without one is not a checkpoint; one whose manifest does
not agree with its files is a bad one. The manifest holds a digest of itself, too.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields

from gsched.elastic.errors import BadCheckpointError
from gsched.elastic.samples import Position

FORMAT_VERSION = 3
MANIFEST_NAME = "manifest.json"
TENSORS_SUFFIX = ".distcp"  # of files with weights and the like
MANIFEST_BYTES_MAX = 64 << 20  # a line for each file; a million ranks would fit
_BLOCK_BYTES = 1 << 20
PART_BYTES = 64 << 20  # of a file: each has a digest of its own
_THREADS_MAX = 4  # memory is no faster than that


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a checkpoint: its name within it, its size and its digest: `digest_file`."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        position: where the training goes on.
        world_size: ranks that saved it; any other number can load it.
        job, attempt: whose it is; 0 outside gsched.
        samples: what must not change between saving and loading, by name.
        files: all files but the manifest.
        version: of this format.
    """

    position: Position
    world_size: int
    job: int
    attempt: int
    samples: dict[str, int | bool]
    files: tuple[File, ...]
    version: int = FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Return the size of all files together."""
        return sum(file.size_bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the manifest as it is written."""
        body = asdict(self)
        return (json.dumps({**body, "sha256": _digest_of(body)}, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Manifest":
        """Return the manifest that `to_bytes` has written.

        Raises:
            BadCheckpointError: it was cut or altered, or is of a version that is not known here.
        """
        try:
            body = json.loads(content)
            digest = body.pop("sha256")
            if digest != _digest_of(body):
                raise BadCheckpointError(f"{MANIFEST_NAME} was altered: its digest is wrong")
            if body["version"] != FORMAT_VERSION:
                raise BadCheckpointError(
                    f"{MANIFEST_NAME} is of version {body['version']}, and this gsched reads "
                    f"version {FORMAT_VERSION}"
                )
            known = {field.name for field in fields(cls)}
            body = {name: value for name, value in body.items() if name in known}
            body["position"] = Position(**body["position"])
            body["files"] = tuple(File(**file) for file in body["files"])
            return cls(**body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpointError(f"{MANIFEST_NAME} cannot be read: {error}") from error


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of the checkpoint in ``directory``; its files are not looked at.

    Raises:
        BadCheckpointError: there is none, or it cannot be used.
    """
    try:
        with open(os.path.join(directory, MANIFEST_NAME), "rb") as file:
            return Manifest.from_bytes(file.read(MANIFEST_BYTES_MAX))
    except OSError as error:
        raise BadCheckpointError(f"{MANIFEST_NAME}: {error.strerror}") from error


def check_size(directory: str, file: File) -> None:
    """Do nothing if the file is there with its size.

    Raises:
        BadCheckpointError: it is not.
    """
    try:
        size_bytes = os.stat(os.path.join(directory, file.name)).st_size
    except OSError as error:
        raise BadCheckpointError(f"{file.name}: {error.strerror}") from error
    if size_bytes != file.size_bytes:
        raise BadCheckpointError(
            f"{file.name} has {size_bytes:,} bytes and should have {file.size_bytes:,}"
        )


def check_file(directory: str, file: File) -> None:
    """Do nothing if the file is there with its size and its digest.

    Raises:
        BadCheckpointError: it is not.
    """
    check_size(directory, file)
    try:
        digest = digest_file(os.path.join(directory, file.name))
    except OSError as error:
        raise BadCheckpointError(f"{file.name}: {error.strerror}") from error
    check_digest(file, digest)


def check_digest(file: File, digest: str) -> None:
    """Do nothing if a file has this digest.

    Raises:
        BadCheckpointError: it has another one.
    """
    if digest != file.sha256:
        raise BadCheckpointError(f"{file.name} was altered: its digest is wrong")


def first_fault(
    directory: str, files: Iterable[File], check: Callable[[str, File], None] = check_file
) -> str | None:
    """Return what is wrong with the first of the files that is not good; None: all are."""
    try:
        for file in files:
            check(directory, file)
    except BadCheckpointError as error:
        return str(error)
    return None


def thread_count() -> int:
    """Return how many threads save or load this rank's part; the node's other ranks do so, too."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)) // ranks))


def digest_file(path: str) -> str:
    """Return the digest of a file's content, in hex.

    Up to 64 MiB it is the SHA-256. Of a larger file it is the SHA-256 of those of its parts of
    64 MiB, one after the other: several processors work on them at once, as both a move and a start
    wait for it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(descriptor).st_size
        begins = range(0, max(size_bytes, 1), PART_BYTES)
        with ThreadPoolExecutor(min(len(begins), thread_count())) as pool:
            parts = pool.map(lambda begin: _digest_of_part(descriptor, begin), begins)
            return digest_of_parts(list(parts))
    finally:
        os.close(descriptor)


def digest_of_parts(digests: Sequence[bytes]) -> str:
    """Return the digest of a file from those of its parts."""
    only_one = len(digests) == 1
    return (digests[0] if only_one else hashlib.sha256(b"".join(digests)).digest()).hex()


def _digest_of_part(descriptor: int, begin: int) -> bytes:
    digest = hashlib.sha256()
    end = begin + PART_BYTES
    while begin < end and (block := os.pread(descriptor, min(_BLOCK_BYTES, end - begin), begin)):
        digest.update(block)  # both let other threads run meanwhile
        begin += len(block)
    return digest.digest()


def describe_file(directory: str, name: str) -> File:
    """Return size and digest of a file, after reading it back."""
    path = os.path.join(directory, name)
    return File(name=name, size_bytes=os.stat(path).st_size, sha256=digest_file(path))


def share_of(files: Iterable[File], rank: int, world_size: int) -> list[File]:
    """Return the files that a rank looks at, so that all have about as much to read."""
    loads = [0] * world_size
    mine = []
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.name)):
        lightest = loads.index(min(loads))
        loads[lightest] += file.size_bytes
        if lightest == rank:
            mine.append(file)
    return mine


def _digest_of(body: dict[str, object]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
