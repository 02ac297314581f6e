"""The journal of one attempt: orders to its supervisor, its start and its exit record.

gnode makes it with the task and reserves its space; from then on lines are appended, each by one
write, so that lines of gnode and of the supervisor never mix, and no reader sees half a line
unless the disk is full or the machine has lost power. Each begins and ends with a newline, so that
half a line spoils no other. The kinds of lines:

``{"do": ...}``        gnode's order
``starting``           the job's process is about to be made
``staging {...}``      who runs the attempt, whose files are being copied: no program runs yet
``may run``            its program may run from now on
``started {...}``      who runs the attempt
``asked N``            the signal of migration N was sent to the processes that handle it
``unhandled N``          no process handles it, so it was not sent
``sent N``             the signals among the orders before byte N have been sent
``cleaned``            what the attempt's container has left is removed
``ended CHECK {...}``  the exit record with its CRC-32; the first one counts
``epilog "..."``       the epilog has ended, and what went wrong, as JSON

One file instead of one for each of these: four fewer files to make and to remove. Of its lines only
the exit record has to survive a power loss, and mostly gnode's log of outcomes has it before that
file is flushed (`gnode.daemon.outcomes`).
"""

import contextlib
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping

from gnode.supervisor import kernel
from gnode.task import SupervisorInfo
from gsched import failpoint, trust
from gsched.files import flush_directory

NAME = "journal"
#: What is reserved for the exit record, and again for orders, so that a full disk keeps neither
#: from being written: more than nearly all of them need.
RESERVED_BYTES = 4096
_STARTED_BYTES = 5 * RESERVED_BYTES  # two paths of 4096 bytes, twice
_STARTING, _MAY_RUN, _STARTED, _ENDED = b"starting", b"may run", b"started ", b"ended "
_STAGING, _CLEANED, _EPILOG = b"staging ", b"cleaned", b"epilog "
_SIGNALLED, _UNHANDLED, _SENT = b"asked ", b"unhandled ", b"sent "
_FACTS = (
    _STARTING,
    _STAGING,
    _MAY_RUN,
    _STARTED,
    _SIGNALLED,
    _UNHANDLED,
    _SENT,
    _CLEANED,
    _ENDED,
    _EPILOG,
)
_CHECK_BYTES = 9  # eight hexadecimal digits and a space
_READ_BYTES = 1 << 16


class Story:
    """What the lines say that were read so far.

    Attributes:
        begun: a supervisor was about to start the job, or did.
        may_have_run: the program may have been started, recorded or not.
        started: who runs the attempt, JSON.
        signalled: the last migration for which it was sent its signal, 0: none.
        unhandled: the last migration whose signal no process handled, 0: none.
        sent_bytes: the signals among the orders before this byte have been sent.
        cleaned: nothing is left of its container.
        ended: the exit record, JSON.
        epilog: what went wrong in its epilog, empty: nothing; None: it has not ended.
        size_bytes: of all lines.
    """

    __slots__ = (
        "begun",
        "cleaned",
        "ended",
        "epilog",
        "may_have_run",
        "sent_bytes",
        "signalled",
        "size_bytes",
        "started",
        "unhandled",
    )

    def __init__(self, content: bytes = b"") -> None:
        self.begun = self.may_have_run = self.cleaned = False
        self.signalled = self.unhandled = self.sent_bytes = 0
        self.size_bytes = len(content)
        self.started: bytes | None = None
        self.ended: bytes | None = None
        self.epilog: str | None = None
        for line in content[: content.rfind(b"\n") + 1].split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        if line == _STARTING:
            self.begun = True
        elif line.startswith(_STAGING):
            self.begun = True
            self.started = line[len(_STAGING) :]
        elif line == _CLEANED:
            self.cleaned = True
        elif line.startswith(_SIGNALLED):
            self.signalled = max(self.signalled, _number_after(_SIGNALLED, line))
        elif line.startswith(_UNHANDLED):
            self.unhandled = max(self.unhandled, _number_after(_UNHANDLED, line))
        elif line.startswith(_SENT):
            self.sent_bytes = max(self.sent_bytes, _number_after(_SENT, line))
        elif line == _MAY_RUN:
            self.begun = self.may_have_run = True
        elif line.startswith(_STARTED):
            self.begun = self.may_have_run = True
            self.started = line[len(_STARTED) :]
        else:
            self._take_end(line)

    def _take_end(self, line: bytes) -> None:
        if line.startswith(_ENDED) and self.ended is None:
            text = line[len(_ENDED) + _CHECK_BYTES :]
            if line == _ended_line(text):
                self.ended = text
        elif line.startswith(_EPILOG) and self.epilog is None:
            with contextlib.suppress(ValueError):  # half a line
                self.epilog = str(json.loads(line[len(_EPILOG) :]))


def _number_after(start: bytes, line: bytes) -> int:
    number = line[len(start) :]
    return int(number) if number.isdigit() else 0


def _ended_line(text: bytes) -> bytes:
    return b"%s%08x %s" % (_ENDED, zlib.crc32(text), text)


class Journal:
    """An open journal: what its reader has seen, and where it goes on."""

    __slots__ = ("_directory", "_fd", "_offset")

    def __init__(self, directory: str, fd: int) -> None:
        self._directory, self._fd = directory, fd
        self._offset = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def lock(self) -> None:
        """Wait until no other process runs the attempt's epilog; this one does until it ends."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    # --- read ---

    def story(self) -> Story:
        """Return what all lines say; `orders` goes on where it was."""
        return Story(_read_from(self._fd, 0))

    def orders(self, before: int | None = None) -> Iterator[bytes]:
        """Yield gnode's orders that were added since the last call, and are complete.

        Args:
            before: of those, the orders before this byte of the file.
        """
        content = _read_from(self._fd, self._offset)
        if before is not None:
            content = content[: max(0, before - self._offset)]
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.split(b"\n"):
            if line and not line.startswith(_FACTS):
                yield line

    # --- write ---

    def reserve(self, more_bytes: int = 0) -> None:
        """Reserve the space for an attempt's start and end, and for as many bytes of orders.

        Raises:
            OSError: there is none.
        """
        size = os.fstat(self._fd).st_size + _STARTED_BYTES + RESERVED_BYTES
        kernel.reserve(self._fd, size + more_bytes)

    def write_order(self, order: bytes) -> None:
        """Add an order; the space for the exit record stays reserved.

        Raises:
            OSError: there is no space.
        """
        self.reserve(len(order) + 2)
        self._append(order)

    def announce_start(self) -> None:
        """Say that the job's process is about to be made; `write_started` says which it is.

        Without that a supervisor that is killed right after the fork would leave a process that no
        file tells of, and the attempt would look as if it had never been started.

        Raises:
            OSError: there is no space for it.
        """
        self._append(_STARTING)

    def announce_run(self) -> None:
        """Say that the program may run from now on, before its process is recorded."""
        self._append(_MAY_RUN)

    def write_staging(self, started: SupervisorInfo) -> bytes:
        """Publish who copies files for the attempt, before its program may run."""
        return self._write_info(_STAGING, started)

    def write_answer(self, request: int, *, sent: bool) -> None:
        """Say whether the signal of a migration was sent: whether a process handles it.

        Raises:
            OSError: there is no space for it.
        """
        self._append(b"%s%d" % (_SIGNALLED if sent else _UNHANDLED, request))

    def announce_sent(self) -> None:
        """Say that the signals among the orders that were read are being sent.

        Raises:
            OSError: there is no space for it.
        """
        self._append(b"%s%d" % (_SENT, self._offset))

    def announce_cleaned(self) -> None:
        """Say that nothing is left of the attempt's container."""
        self._append(_CLEANED)

    def write_epilog(self, fault: str) -> None:
        """Say that the attempt's epilog has ended, and what went wrong; empty: nothing.

        Raises:
            OSError: there is no space for it.
        """
        self._append(_EPILOG + json.dumps(fault).encode())

    def write_started(self, started: SupervisorInfo) -> bytes:
        """Publish who runs the attempt; not flushed, since it says nothing after a power loss.

        Returns:
            What was written.
        """
        return self._write_info(_STARTED, started)

    def _write_info(self, kind: bytes, started: SupervisorInfo) -> bytes:
        text = json.dumps(vars(started)).encode()
        self._append(kind + text)
        return text

    def write_ended(self, record: Mapping[str, object]) -> bytes:
        """Write the exit record and return it as it was written; `flush` makes it durable.

        Raises:
            OSError: it cannot be written: to be written again, as a whole.
        """
        text = json.dumps(record).encode()
        line = _ended_line(text)
        if failpoint.is_armed("supervisor.exit.half_record"):
            os.write(self._fd, b"\n" + line[: len(line) // 2])
            failpoint.failpoint("supervisor.exit.half_record")
        self._append(line)
        return text

    def flush(self) -> None:
        """Have all lines outlive a power loss, and the name of the file.

        Raises:
            OSError: it cannot be flushed.
        """
        try:
            self._flush()
        except OSError:
            # What a failed flush was to write counts as written afterwards, so it is written again.
            ended = self.story().ended
            if ended is None:
                raise
            self._append(_ended_line(ended))
            self._flush()

    def _flush(self) -> None:
        os.fsync(self._fd)
        if not kernel.names_go_with_files(self._fd):
            flush_directory(self._directory)

    def _append(self, line: bytes) -> None:
        if os.write(self._fd, b"\n%s\n" % line) < len(line) + 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._directory)


def open_journal(directory: str, *, place: int | None = None) -> Journal:
    """Open the journal of an attempt that gnode has accepted.

    Args:
        directory: of the attempt.
        place: its descriptor, if the caller has found it trusted.

    Raises:
        OSError: it cannot be read, or somebody else could have written it.
    """
    path = f"{directory}/{NAME}"
    access = os.O_RDWR | os.O_APPEND
    if place is None:
        return Journal(directory, trust.open_file(path, access))
    return Journal(directory, trust.open_file_in(place, NAME, path, access))


def make_journal(directory: str) -> Journal:
    """Make the journal of an attempt, or open the one that is there.

    Raises:
        OSError: there is no space, or no such attempt.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return Journal(directory, os.open(f"{directory}/{NAME}", flags, 0o600))


def read_story(directory: str) -> Story:
    """Return what the journal of an attempt says; of one without a journal, nothing.

    Raises:
        OSError: it cannot be read, or somebody else could have written it.
    """
    try:
        fd = trust.open_file(f"{directory}/{NAME}")
    except FileNotFoundError:
        return Story()
    try:
        return Story(_read_from(fd, 0))
    finally:
        os.close(fd)


def _read_from(fd: int, offset: int) -> bytes:
    content = part = os.pread(fd, _READ_BYTES, offset)
    while len(part) == _READ_BYTES:
        part = os.pread(fd, _READ_BYTES, offset + len(content))
        content += part
    return content
