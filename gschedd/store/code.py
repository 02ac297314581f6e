"""Code snapshots of jobs: archives in files of the head, by owner and digest.

An archive comes in pieces and counts when it is whole, has the digest that it is named by, and is
durable. It never changes after that. A user's archives are for that user's jobs only, so that a
digest tells nobody else what there is. All of it runs in threads: nothing here may block the loop.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Collection
from typing import Final

from gsched.errors import InvalidRequestError, RequestTooLargeError, UnknownJobError
from gsched.model.limits import MAX_USER_UPLOADS
from gsched.model.units import format_size

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
PART_LIFE_S: Final = 3600.0  # of one that does not come any further
#: An archive whose job has not come yet, or not again, is kept for so long.
UNUSED_LIFE_S: Final = 86400.0
READ_BYTES: Final = 256 * 1024
_PART: Final = ".part"


class CodeStore:
    """The archives below a directory.

    Args:
        directory: in the head's state directory.
        most_bytes: of one archive.
    """

    def __init__(self, directory: str, *, most_bytes: int) -> None:
        self._directory = directory
        self.most_bytes = most_bytes

    def _path(self, uid: int, digest: str) -> str:
        if not DIGEST.fullmatch(digest):
            raise InvalidRequestError("a digest has 64 hex digits", hint="give the SHA-256")
        return os.path.join(self._directory, str(uid), digest)

    def has(self, uid: int, digest: str) -> bool:
        """Return whether a user's archive is there, and keep it for another day."""
        path = self._path(uid, digest)
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def put(
        self, uid: int, digest: str, *, size_bytes: int, offset: int, data: bytes, now_s: float
    ) -> int:
        """Take a piece of an archive; return how many of its bytes are there now.

        A piece that does not follow what is there changes nothing.

        Raises:
            RequestTooLargeError: the archive is larger than allowed.
            InvalidRequestError: it has another digest or size, or too many are on their way.
        """
        if size_bytes > self.most_bytes:
            raise RequestTooLargeError(
                f"the snapshot has {format_size(size_bytes)}; the limit is "
                f"{format_size(self.most_bytes)}",
                hint="list data and results in .gschedignore; snapshot_bytes in [limits] sets it",
            )
        if self.has(uid, digest):
            return size_bytes
        path = self._path(uid, digest)
        part = path + _PART
        place = os.path.dirname(path)
        os.makedirs(place, mode=0o700, exist_ok=True)
        have_bytes = os.path.getsize(part) if os.path.exists(part) else 0
        if offset != have_bytes or not data:
            return have_bytes
        if not have_bytes:
            self._check_parts(place, now_s)
        if offset + len(data) > size_bytes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise InvalidRequestError("the snapshot is larger than announced")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as stream:
            stream.write(data)
        if offset + len(data) == size_bytes:
            self._finish(part, path, digest)
        return offset + len(data)

    def _check_parts(self, place: str, now_s: float) -> None:
        parts = [os.path.join(place, name) for name in os.listdir(place) if name.endswith(_PART)]
        old = [each for each in parts if now_s - os.path.getmtime(each) > PART_LIFE_S]
        for each in old:
            os.unlink(each)
        if len(parts) - len(old) >= MAX_USER_UPLOADS:
            raise InvalidRequestError(
                f"{MAX_USER_UPLOADS} snapshots of this user are being sent already",
                hint="wait until they are there; one that stops is forgotten after an hour",
            )

    def _finish(self, part: str, path: str, digest: str) -> None:
        """Make a whole archive durable under its name.

        Raises:
            InvalidRequestError: it has another digest.
        """
        with open(part, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != digest:
                os.unlink(part)
                raise InvalidRequestError("the snapshot was damaged on its way", hint="try again")
            os.fsync(stream.fileno())
        os.rename(part, path)
        place = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)

    def read(self, uid: int, digest: str, offset: int) -> tuple[int, bytes]:
        """Return the size of an archive, and a piece of it.

        Raises:
            UnknownJobError: it is not there any more.
        """
        try:
            with open(self._path(uid, digest), "rb") as stream:
                size_bytes = os.fstat(stream.fileno()).st_size
                return size_bytes, os.pread(stream.fileno(), READ_BYTES, offset)
        except FileNotFoundError:
            raise UnknownJobError(
                "the head does not have the job's code snapshot any more", hint="submit again"
            ) from None

    def purge(self, in_use: Collection[tuple[int, str]], now_s: float) -> int:
        """Remove archives that no job has, and that were not used for a day; return how many."""
        removed = 0
        with contextlib.suppress(FileNotFoundError):
            for owner in os.listdir(self._directory):
                place = os.path.join(self._directory, owner)
                for name in os.listdir(place):
                    path = os.path.join(place, name)
                    is_old = now_s - os.path.getmtime(path) > UNUSED_LIFE_S
                    if is_old and (int(owner), name) not in in_use:
                        os.unlink(path)
                        removed += 1
        return removed
