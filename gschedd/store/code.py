"""Code snapshots of jobs: archives in files of the head, by owner and digest.

An archive comes in pieces and counts when it is whole, has the digest that it is named by, and is
durable. It never changes after that. A user's archives are for that user's jobs only, so that a
digest tells nobody else what there is. All of it runs in threads: nothing here may block the loop.

Archives have quotas of bytes and number, for each user and in all, and stay away from the last of
the disk: that is for the database. An archive counts with its whole size from its first piece on.
"""

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Collection
from typing import Final

from gsched.config.tables import LimitsConfig
from gsched.errors import (
    NO_ROOM,
    InvalidRequestError,
    RequestTooLargeError,
    StorageFullError,
    UnknownJobError,
)
from gsched.files import flush_directory
from gsched.model.limits import MAX_USER_UPLOADS
from gsched.model.units import format_size
from gschedd.store.journal import SharedFiles

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
PART_LIFE_S: Final = 3600.0  # of one that does not come any further
#: An archive whose job has not come yet, or not again, is kept for so long.
UNUSED_LIFE_S: Final = 86400.0
#: Likewise where a quota is used up: its job is on its way.
FRESH_S: Final = 600.0
READ_BYTES: Final = 256 * 1024
#: Parts of the file system for all archives, and of that for those of one user, by default.
TOTAL_PART: Final = 10
USER_PART: Final = 4
#: No archive is taken that would leave less than a twentieth of the file system free, at least and
#: at most so much: the ballast and the head's reserve are far below.
FREE_PART: Final = 20
FREE_LEAST_BYTES: Final = 16 * 1024 * 1024
FREE_MOST_BYTES: Final = 1024 * 1024 * 1024
FREE_INODES: Final = 1000
_PART: Final = ".part"


def spare_bytes(status: os.statvfs_result) -> int:
    """Return how much of a file system is to stay free for the database."""
    total_bytes = status.f_blocks * status.f_frsize
    return min(max(total_bytes // FREE_PART, FREE_LEAST_BYTES), FREE_MOST_BYTES)


class QuotaError(StorageFullError):
    """A quota of archives is used up; removing unused ones may help.

    Attributes:
        of_all: it is that of all users, not the one of this user.
    """

    def __init__(self, message: str, *, hint: str, of_all: bool) -> None:
        super().__init__(message, hint=hint)
        self.of_all = of_all


class CodeStore:
    """The archives below a directory.

    Args:
        directory: in the head's state directory, which exists.
        shared: has them for another head, too, before they count here.

    Attributes:
        limits: of one archive, of a user's and of all.
    """

    def __init__(
        self, directory: str, limits: LimitsConfig, shared: SharedFiles | None = None
    ) -> None:
        self._directory = directory
        self._shared = shared
        self.limits = limits
        self._lock = threading.Lock()
        self._held: dict[tuple[int, str], int] = {}  # bytes by owner and digest, parts as announced
        self._count()

    def _count(self) -> None:
        """Find out what is there."""
        with contextlib.suppress(FileNotFoundError):
            for owner in os.listdir(self._directory):
                for each in os.scandir(os.path.join(self._directory, owner)):
                    key = (int(owner), each.name.removesuffix(_PART))
                    self._held[key] = max(self._held.get(key, 0), each.stat().st_size)

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
            return self._fetch(path, (uid, digest))
        return True

    def _fetch(self, path: str, key: tuple[int, str]) -> bool:
        """Take over an archive that another head has received; return whether there is one."""
        name = _name_of(key)
        if self._shared is None:
            return False
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        incoming = f"{path}{_PART}-{threading.get_ident()}"
        try:
            if not self._shared.fetch(name, incoming):
                return False
            with self._lock:
                self._held[key] = os.path.getsize(incoming)
            os.rename(incoming, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(incoming)
        return True

    def put(
        self, uid: int, digest: str, *, size_bytes: int, offset: int, data: bytes, now_s: float
    ) -> int:
        """Take a piece of an archive; return how many of its bytes are there now.

        A piece that does not follow what is there changes nothing.

        Raises:
            RequestTooLargeError: the archive is larger than allowed.
            InvalidRequestError: it has another digest or size, or too many are on their way.
            QuotaError: it is beyond a quota of this user or of all.
            NoRoomError: the disk is nearly full.
        """
        most_bytes = self.limits.snapshot_bytes
        if size_bytes > most_bytes:
            raise RequestTooLargeError(
                f"the snapshot has {format_size(size_bytes)}; the limit is "
                f"{format_size(most_bytes)}",
                hint="list data and results in .gschedignore; snapshot_bytes in [limits] sets it",
            )
        if self.has(uid, digest):
            return size_bytes
        path = self._path(uid, digest)
        part = path + _PART
        try:
            return self._take(part, path, (uid, digest), size_bytes, offset, data, now_s)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._forget(part, (uid, digest))
            raise _full() from None

    def _take(  # noqa: PLR0913,PLR0917 - the arguments of `put`, checked
        self,
        part: str,
        path: str,
        key: tuple[int, str],
        size_bytes: int,
        offset: int,
        data: bytes,
        now_s: float,
    ) -> int:
        have_bytes = os.path.getsize(part) if os.path.exists(part) else 0
        if offset != have_bytes or not data:
            return have_bytes
        self._check_disk(size_bytes - have_bytes)
        place = os.path.dirname(path)
        if not have_bytes:
            with self._lock:
                self._check_parts(place, now_s)
                self._check_quotas(key, size_bytes)
                self._held[key] = size_bytes
            os.makedirs(place, mode=0o700, exist_ok=True)
        if offset + len(data) > size_bytes:
            self._forget(part, key)
            raise InvalidRequestError("the snapshot is larger than announced")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as stream:
            stream.write(data)
        if offset + len(data) == size_bytes:
            self._finish(part, path, key)
        return offset + len(data)

    def _forget(self, path: str, key: tuple[int, str]) -> None:
        """Remove a file, and what it counts for."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if self._shared is not None and not path.endswith(_PART):
            self._shared.remove(_name_of(key))
        with self._lock:
            self._held.pop(key, None)

    def _check_disk(self, size_bytes: int) -> None:
        """Refuse what would fill the disk: the last of it is for the database.

        Raises:
            NoRoomError: there is less room.
        """
        status = os.statvfs(os.path.dirname(self._directory))
        if status.f_bavail * status.f_frsize - size_bytes < spare_bytes(status):
            raise _full()
        if status.f_files and status.f_favail < FREE_INODES:
            raise _full()

    def _quotas(self) -> tuple[int, int]:
        """Return how many bytes a user's archives may have, and all together."""
        in_all = self.limits.snapshots_total_bytes
        if not in_all:
            status = os.statvfs(os.path.dirname(self._directory))
            in_all = status.f_blocks * status.f_frsize // TOTAL_PART
        return self.limits.snapshots_per_user_bytes or in_all // USER_PART, in_all

    def _check_quotas(self, key: tuple[int, str], size_bytes: int) -> None:
        """Refuse an archive beyond a quota.

        Raises:
            QuotaError: it is.
        """
        others = {each: size for each, size in self._held.items() if each != key}
        own = [size for (uid, _), size in others.items() if uid == key[0]]
        of_user_bytes, in_all_bytes = self._quotas()
        for of_all, sizes, most_bytes, most, name in (
            (False, own, of_user_bytes, self.limits.snapshots_per_user, "snapshots_per_user"),
            (True, others.values(), in_all_bytes, self.limits.snapshots_total, "snapshots_total"),
        ):
            whose = "all users" if of_all else "this user"
            hint = (
                "wait until jobs with snapshots have ended, or delete some; a snapshot is kept for "
                f"{FRESH_S:.0f} s after its last use; [limits] {name}"
            )
            if len(sizes) + 1 > most:
                raise QuotaError(
                    f"the head has {len(sizes)} code snapshots of {whose}; the limit is {most}",
                    hint=hint,
                    of_all=of_all,
                )
            if sum(sizes) + size_bytes > most_bytes:
                raise QuotaError(
                    f"the snapshot has {format_size(size_bytes)}, and the head has "
                    f"{format_size(sum(sizes))} of code snapshots of {whose}; the limit is "
                    f"{format_size(most_bytes)}",
                    hint=f"{hint}_bytes",
                    of_all=of_all,
                )

    def _check_parts(self, place: str, now_s: float) -> None:
        """Refuse a further upload of a user with many; forget those that came no further.

        Raises:
            InvalidRequestError: there are too many.
        """
        names = os.listdir(place) if os.path.isdir(place) else []
        parts = [os.path.join(place, name) for name in names if name.endswith(_PART)]
        old = [each for each in parts if now_s - os.path.getmtime(each) > PART_LIFE_S]
        for each in old:
            os.unlink(each)
            self._held.pop(_key_of(each), None)
        if len(parts) - len(old) >= MAX_USER_UPLOADS:
            raise InvalidRequestError(
                f"{MAX_USER_UPLOADS} snapshots of this user are being sent already",
                hint="wait until they are there; one that stops is forgotten after an hour",
            )

    def _finish(self, part: str, path: str, key: tuple[int, str]) -> None:
        """Make a whole archive durable under its name.

        Raises:
            InvalidRequestError: it has another digest.
        """
        with open(part, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != key[1]:
                self._forget(part, key)
                raise InvalidRequestError("the snapshot was damaged on its way", hint="try again")
            os.fsync(stream.fileno())
        if self._shared is not None:
            self._shared.put(_name_of(key), part)
        os.rename(part, path)
        flush_directory(os.path.dirname(path))

    def make_room(
        self,
        error: QuotaError,
        *,
        uid: int,
        size_bytes: int,
        in_use: Collection[tuple[int, str]],
        now_s: float,
    ) -> bool:
        """Remove archives that no unfinished job has, those first that were not used for longest.

        Args:
            error: the quota that is used up.
            uid: of the user who sends an archive of ``size_bytes``.
            in_use: owner and digest of those of unfinished jobs.

        Returns:
            Whether any was removed.
        """
        with self._lock:
            found = [key for key in self._held if error.of_all or key[0] == uid]
        old: list[tuple[float, str, tuple[int, str]]] = []
        for key in set(found) - set(in_use):
            path = self._path(*key)
            with contextlib.suppress(FileNotFoundError):  # a part, or removed meanwhile
                used_s = os.path.getmtime(path)
                if now_s - used_s > FRESH_S:
                    old.append((used_s, path, key))
        freed = 0
        for count, (used_s, path, key) in enumerate(sorted(old)):
            if freed >= size_bytes and count:
                break
            with contextlib.suppress(FileNotFoundError):
                if os.path.getmtime(path) == used_s:  # else a job needs it again
                    freed += self._held.get(key, 0)
                    self._forget(path, key)
        return bool(old)

    def read(self, uid: int, digest: str, offset: int) -> tuple[int, bytes]:
        """Return the size of an archive, and a piece of it.

        Raises:
            UnknownJobError: it is not there any more.
        """
        path = self._path(uid, digest)
        try:
            if not os.path.exists(path):
                self._fetch(path, (uid, digest))
            with open(path, "rb") as stream:
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
                        self._forget(path, (int(owner), name.removesuffix(_PART)))
                        removed += 1
        names = self._shared.names(UNUSED_LIFE_S) if self._shared is not None else []
        for name in names:  # that other heads have received
            key = _key_of(name)
            if key not in in_use and not os.path.exists(self._path(*key)):
                self._forget(self._path(*key), key)
                removed += 1
        return removed


def _name_of(key: tuple[int, str]) -> str:
    """Return the name of an archive among the files of both heads."""
    return f"code/{key[0]}/{key[1]}"


def _key_of(path: str) -> tuple[int, str]:
    """Return owner and digest of an archive's file."""
    place, name = os.path.split(path)
    return int(os.path.basename(place)), name.removesuffix(_PART)


def _full() -> StorageFullError:
    return StorageFullError(
        "the head's disk is nearly full: no code snapshots are taken",
        hint="submit without --snapshot, or ask the administrator to free space",
    )
