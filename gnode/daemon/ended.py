"""The log of ended attempts: what a node keeps of each after the head has acknowledged its end.

A head goes on from what its database holds. If that was restored from an old copy, it does not know
what has run since: it would run it again. The node does know, for as many attempts as fit here.

Two files of JSON lines, written in turn: when one is full, the older one is dropped. A line is
flushed before the attempt's own records are removed. One that cannot be read is skipped. What a
full disk does not take is kept in memory until the next call.
"""

import itertools
import logging
import os
from collections.abc import Iterator, Sequence

import msgspec

from gnode.core.effects import TellKnown
from gnode.core.task import AttemptKey
from gsched.protocol.node import KnownAttempt

log = logging.getLogger(__name__)

LINES_MAX = 10_000  # of one file: the newest 10,000 to 20,000 attempts are kept
BYTES_MAX = 32 * 1024 * 1024  # of one file: many with huge requests are fewer

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(KnownAttempt)


class EndedLog:
    """The newest ended attempts of a node, on disk."""

    def __init__(self, state_dir: str, *, lines_max: int = LINES_MAX) -> None:
        self.paths = (
            os.path.join(state_dir, "ended.jsonl"),
            os.path.join(state_dir, "ended.older.jsonl"),
        )
        self._lines_max = lines_max
        self._lines: int | None = None
        self._unwritten: tuple[KnownAttempt, ...] = ()

    def add(self, known: Sequence[KnownAttempt]) -> None:
        """Keep attempts, and what could not be written before; durable when this returns.

        Raises:
            OSError: they cannot be written; they are kept in memory until the next call.
        """
        self._unwritten = (*self._unwritten, *known)[-self._lines_max :]
        if not self._unwritten:
            return
        path, older = self.paths
        if self._lines is None:
            self._lines = sum(1 for _ in _lines_of(path))
        if self._lines >= self._lines_max or _size_of(path) >= BYTES_MAX:
            os.replace(path, older)
            self._lines = 0
        text = b"".join(_encoder.encode(each) + b"\n" for each in self._unwritten)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _is_torn(path):
                text = b"\n" + text
            size = os.fstat(fd).st_size
            try:
                while text:
                    text = text[os.write(fd, text) :]
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)  # written again as a whole
                raise
        finally:
            os.close(fd)
        self._lines += len(self._unwritten)
        self._unwritten = ()

    def read(self) -> Iterator[KnownAttempt]:
        """Yield all that is kept, oldest first."""
        unwritten = self._unwritten  # taken first: `add` may write them meanwhile
        for path in reversed(self.paths):
            for line in _lines_of(path):
                try:
                    yield _decoder.decode(line)
                except msgspec.MsgspecError:
                    log.warning("a broken line in %s is skipped", path)
        yield from unwritten

    def keys(self) -> tuple[AttemptKey, ...]:
        """Return the attempts that are kept, oldest first."""
        return tuple(AttemptKey(known.job, known.attempt) for known in self.read())

    def find(self, key: AttemptKey) -> KnownAttempt | None:
        """Return the newest that is kept of an attempt."""
        found = None
        for known in self.read():
            if (known.job, known.attempt) == key:
                found = known
        return found

    def answer(self, question: TellKnown) -> tuple[KnownAttempt, ...]:
        """Return all attempts that a survey asks for, those that are still in the spool included.

        What is in the spool is newer than what the log may hold of the same attempt.
        """
        survey = question.survey
        unfinished = frozenset(survey.unfinished)
        newest = {
            (known.job, known.attempt, known.token): known
            for known in itertools.chain(self.read(), question.attempts)
            if known.job >= survey.first_unknown or known.job in unfinished
        }
        return tuple(newest.values())


def _lines_of(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from (line for line in file if line.strip())
    except FileNotFoundError:
        return


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _is_torn(path: str) -> bool:
    """Return whether the last line has no end: the machine lost power, or the disk was full."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"
