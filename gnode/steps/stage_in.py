"""Copies a file or directory from a job's host of submission: ``gsub --stage-in``.

``stage_in.py gsched-stage-in SOCKET ATTEMPT ITEM LIMIT PATH`` runs as the job's owner, as a process
of the attempt before its program starts. The pieces come from the head by gnode's socket, as
`gnode.daemon.owner_tree` describes them. A file is written under another name and renamed when it
is there in full. A gnode, head or host that does not answer is waited for. It uses the standard
library only.
"""

import base64
import contextlib
import errno
import hashlib
import io
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO, Any, NoReturn

from gnode.daemon.owner_tree import BEGIN, MODES, give_mode, since_first, unpack
from gnode.steps.agent import connect_unix
from gnode.steps.read_ahead import ReadAhead, TreeCursor

VERSION = 1
PAUSE_S = 1.0
#: Before the supervisor would end this process, so that the reason is told.
SPARE_S = 2.0
FILES_MAX = 10_000  # as gsched.model.limits.MAX_DELIVERED_FILES
BYTES_MAX = 64 * 1024**3  # as MAX_DELIVERED_BYTES, of one file
#: Pieces that are requested and not taken: enough for a network with 100 MB/s and 80 ms.
AHEAD = 8
_TRIES = 3  # of a file that changes while it is copied
_CONNECT_S = 20.0
_ANSWER_S = 90.0
BEGINNING = TreeCursor("", BEGIN)


class StageError(Exception):
    """A file cannot be had; the message says why."""


def main() -> None:
    """TreeCopy what the arguments say."""
    _, socket, attempt, item, limit_s, path = sys.argv[1:]
    end_s = time.monotonic() + float(limit_s) - SPARE_S
    copy = TreeCopy(path, attempt)
    source = PieceSource(socket, attempt, int(item), end_s)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        while not copy.is_complete:
            copy.take_piece(source.piece(copy.cursor, copy.size))
    except StageError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or path}: {error.strerror or error}")
    except (ValueError, LookupError, TypeError):
        _fail(f"{path}: a piece of it cannot be read")
    finally:
        copy.abandon()


def _fail(message: str) -> NoReturn:
    text = " ".join(message.split())
    sys.stderr.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.exit(1)


class PieceSource:
    """Where the pieces come from.

    Args:
        socket: of gnode.
        attempt: its key, ``JOB.ATTEMPT``.
        item: the number of what is copied.
        end_s: until when it is tried again, monotonic.
    """

    def __init__(self, socket: str, attempt: str, item: int, end_s: float) -> None:
        self._socket = socket
        job, _, number = attempt.partition(".")
        self._hello = {"version": VERSION, "job": int(job), "attempt": int(number)}
        self._item = item
        self._end_s = end_s
        self._messages: io.BufferedRWPair | None = None
        self._requested: deque[tuple[TreeCursor, bool]] = deque()  # with whether it is a listing
        self._ahead = ReadAhead(BEGINNING, 0)
        self._is_listing = False

    def piece(self, cursor: TreeCursor, size: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the entries of the next piece, and request those that follow.

        Args:
            cursor: where it begins.
            size: of the file that the cursor is in, bytes.

        Raises:
            StageError: it cannot be had.
        """
        while True:
            try:
                answer = self._next(cursor, size)
            except (OSError, ValueError, LookupError) as error:
                answer = {"later": f"gnode does not answer: {error}"}
            if "data" in answer:
                return unpack(answer["data"])
            self.close()
            if "error" in answer:
                raise StageError(str(answer["error"]))
            if time.monotonic() + PAUSE_S > self._end_s:
                raise StageError(str(answer.get("later") or answer.get("refused")))
            time.sleep(PAUSE_S)

    def _next(self, cursor: TreeCursor, size: int) -> dict[str, Any]:
        """Return the answer to the request for a piece."""
        while True:
            self._request_ahead(cursor, size)
            answer = self._answer()
            _, is_list = self._requested.popleft()
            if not is_list:
                return answer
            listed = unpack(answer["data"]) if "data" in answer else [({"end": True}, b"")]
            self._ahead.take(header for header, _ in listed)
            self._is_listing = False

    def _request_ahead(self, cursor: TreeCursor, size: int) -> None:
        """Request a piece and those that follow, as far as that was not done and they are known."""
        pieces = (each for each, is_list in self._requested if not is_list)
        if next(pieces, cursor) != cursor:  # files have changed since they were listed
            self.close()
        if not self._requested:
            if self._ahead.following() != cursor:
                self._ahead = ReadAhead(cursor, size)
            self._request(cursor)
            if cursor == BEGINNING:
                return  # it may be all
        while len(self._requested) < AHEAD and not self._is_listing:
            following = self._ahead.following()
            if following is not None:
                self._request(following)
            elif self._ahead.is_whole:
                return
            else:
                self._is_listing = True
                self._request(TreeCursor(self._ahead.last, BEGIN), is_list=True)

    def _request(self, cursor: TreeCursor, *, is_list: bool = False) -> None:
        if self._messages is None:
            self._messages = self._connected()
        known = base64.b64encode(os.fsencode(cursor.name)).decode()
        line = {"item": self._item, "after": known, "offset": cursor.offset, "raw": True}
        fetch = {"fetch": {**line, "lists": True} if is_list else line}
        self._messages.write(json.dumps(fetch).encode() + b"\n")
        self._requested.append((cursor, is_list))

    def _connected(self) -> io.BufferedRWPair:
        channel = connect_unix(self._socket, _CONNECT_S)
        channel.settimeout(_ANSWER_S)
        with contextlib.closing(channel):  # the file keeps it
            messages = channel.makefile("rwb")
        messages.write(json.dumps({"stage": self._hello}).encode() + b"\n")
        return messages

    def _answer(self) -> dict[str, Any]:
        messages = self._messages
        assert messages is not None, "something is requested"
        messages.flush()
        line = messages.readline()
        if not line:
            raise ConnectionError("it has closed the connection")
        found: dict[str, Any] = json.loads(line)
        if "count" in found:
            found["data"] = messages.read(int(found["count"]))
            if len(found["data"]) != found["count"]:
                raise ConnectionError("it has closed the connection")
        elif "data" in found:  # of a gnode of the version before
            found["data"] = base64.b64decode(found["data"])
        return found

    def close(self) -> None:
        """Forget what was requested; the next request opens a connection."""
        if self._messages is not None:
            with contextlib.suppress(OSError):
                self._messages.close()
            self._messages = None
        self._requested.clear()
        self._is_listing = False


class TreeCopy:
    """What is copied.

    Args:
        path: where it goes.
        attempt: its key, for names of files that are not complete.

    Attributes:
        cursor: how far it is.
        size: of the file that the cursor is in, bytes.
        is_complete: all of it is there.
    """

    def __init__(self, path: str, attempt: str) -> None:
        self._path = path
        self._attempt = attempt
        self._directories = {""}
        self._count = 0
        self._open: IO[bytes] | None = None
        self._stamp = ""
        self._tries = 0
        self.cursor = BEGINNING
        self.size = 0
        self.is_complete = False

    def take_piece(self, entries: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        """Take the entries of a piece, up to a file that is to be read from its beginning again.

        Raises:
            StageError: an entry is not the next one, or there are too many.
            OSError: one cannot be written.
        """
        for header, data in entries:
            self.take(header, data)
            if self.cursor[1] == 0:  # what follows would pass over that file
                return

    def take(self, header: dict[str, Any], data: bytes) -> None:
        """Take the next entry.

        Raises:
            StageError: it is not the next one, or there are too many.
            OSError: it cannot be written.
        """
        if self._open is not None and header.get("name") != self.cursor[0]:
            self.abandon()
            raise StageError(f"{self._target} has not arrived in full")
        if "end" in header:
            self.is_complete = True
            return
        name, kind = str(header["name"]), header["kind"]
        if kind == "file" and header["at"] > 0:
            self._continue(name, header, data)
            return
        self.abandon()
        self._check(name, kind)
        path = os.path.join(self._path, name) if name else self._path
        if kind == "directory":
            self._make(path, int(header.get("mode", 0)))
            self._directories.add(name)
        elif kind == "link":
            temporary = self._temporary(path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(data, os.fsencode(temporary))
            os.rename(temporary, path)
        else:
            if int(header["size"]) > BYTES_MAX:
                raise StageError(f"{path} has {header['size']} bytes; the limit is {BYTES_MAX}")
            self._begin(path, header)
            self._write(name, header, data)
            return
        self.cursor = TreeCursor(name, BEGIN)

    def _check(self, name: str, kind: str) -> None:
        if name and (name != self.cursor[0] or self.cursor[1] == BEGIN):
            self._count += 1
        if self._count > FILES_MAX:
            raise StageError(
                f"{self._path} has more than {FILES_MAX} files: stage an archive in instead"
            )
        top, _, last = name.rpartition("/")
        is_top = not name and kind != "link"
        if not is_top and (last in {"", ".", ".."} or top not in self._directories):
            raise StageError(f"{name!r} is not below {self._path}")

    def _make(self, path: str, mode: int) -> None:
        if path == self._path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(path)
            if mode:
                give_mode(path, mode)
        except FileExistsError:
            if os.path.isdir(path) and (path == self._path or not os.path.islink(path)):
                return
            raise StageError(f"{path} is there already, and is no directory") from None

    def _temporary(self, path: str, attempt: str = "") -> str:
        top, name = os.path.split(path)
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        return os.path.join(top, f".gsched-{attempt or self._attempt}-{digest}")

    def _begin(self, path: str, header: dict[str, Any]) -> None:
        if path == self._path:
            path = os.path.realpath(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(path):
            raise StageError(f"{path} is there already, and is a directory")
        self._target, self._stamp = path, header["stamp"]
        temporary = self._temporary(path)
        for attempt in since_first(self._attempt):  # one that was killed has left its own
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary(path, attempt))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._open = open(os.open(temporary, flags, 0o600), "wb")  # noqa: SIM115 - over several pieces

    def _continue(self, name: str, header: dict[str, Any], data: bytes) -> None:
        if self._open is None or self.cursor != (name, header["at"]):
            raise StageError(f"{name!r} is not the next piece")
        if header["stamp"] == self._stamp:
            self._write(name, header, data)
            return
        self._tries += 1
        if self._tries >= _TRIES:
            self.abandon()
            raise StageError(f"{self._target} changes while it is copied")
        self.cursor = TreeCursor(name, 0)  # from its beginning

    def _write(self, name: str, header: dict[str, Any], data: bytes) -> None:
        assert self._open is not None, "it was opened for that"
        try:
            self._open.write(data)
            end = int(header["at"]) + len(data)
            self.cursor, self.size = TreeCursor(name, end), int(header["size"])
            if end >= int(header["size"]):
                os.fchmod(self._open.fileno(), int(header["mode"]) & MODES)
                self._open.close()
                self._open = None
                os.rename(self._temporary(self._target), self._target)
                self.cursor, self._tries = TreeCursor(name, BEGIN), 0
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror, self._target) from None

    def abandon(self) -> None:
        """Remove a partly written file."""
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open.close()
            self._open = None
            with contextlib.suppress(OSError):
                os.unlink(self._temporary(self._target))


if __name__ == "__main__":
    main()
