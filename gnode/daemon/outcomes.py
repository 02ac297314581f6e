"""The log of outcomes: one flush makes the exit records of many attempts durable.

A supervisor appends its attempt's exit record to the attempt's journal and does not flush it: on
most file systems the flush of a new file takes several writes, and with short jobs these were the
largest part of what the disk did. Instead gnode writes the records that it hears of in one turn to
this log, flushes it once, and only then takes them in: nobody else learns of an outcome before.

Two files are written in turn. When one is full, the journals of those of its older half that are
still in the spool are flushed, and the older half is dropped. The lines:

``ended NAME CHECK {...}``  an exit record with its CRC-32; the last one of an attempt counts
``gone NAME...``            the records of these attempts were removed from the spool; not flushed

Each begins and ends with a newline, so that half a line spoils no other. Where the log cannot be
written, on a full disk, the journals are flushed one by one: their space is reserved.
"""

import asyncio
import logging
import os
import zlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from gnode.supervisor import spool as records
from gsched.errors import ConfigError
from gsched.failpoint import failpoint, is_armed
from gsched.files import flush_directory
from gsched.trust import UntrustedError

log = logging.getLogger(__name__)

#: Of one file. With 400 jobs a second that is a minute: as long as records stay in the spool.
BYTES_MAX = 16 * 1024 * 1024
RETRY_S = 1.0  # while neither the log nor a journal can be flushed
_ENDED, _GONE = b"ended ", b"gone "


class EndToKeep(Struct, frozen=True):
    """An exit record that is to be made durable.

    Attributes:
        name: of the attempt.
        text: the record; empty: its journal is flushed instead.
        then: is called in the event loop once it is durable.
    """

    name: str
    text: bytes
    then: Callable[[], None]


class OutcomeLog:
    """The outcomes of a node's attempts that may not be durable elsewhere.

    Args:
        state_dir: of the node.
        flush_exit: flushes the exit record in the journal of an attempt.
        start: runs a task, and ends gnode if that raises.
    """

    def __init__(
        self,
        state_dir: str,
        *,
        flush_exit: Callable[[str], None],
        start: Callable[[Coroutine[None, None, None]], None],
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.paths = (
            os.path.join(state_dir, "outcomes"),
            os.path.join(state_dir, "outcomes.older"),
        )
        self._state_dir = state_dir
        self._flush_exit = flush_exit
        self._start = start
        self._bytes_max = bytes_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outcomes")
        self._waiting: list[EndToKeep] = []
        self._gone: list[str] = []
        self._fd = -1
        self._size = 0
        self._is_running = False

    def read(self) -> dict[str, bytes]:
        """Return the exit records that are in the log, of attempts that may be in the spool.

        Raises:
            ConfigError: it cannot be read, or somebody else could have written it.
        """
        kept: dict[str, bytes] = {}
        for path in reversed(self.paths):
            try:
                content = records.read_file(path) or b""
            except UntrustedError as error:
                raise ConfigError(
                    f"the log of outcomes {path} cannot be used: {error}", hint=error.hint
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"the log of outcomes {path} cannot be read: {error.strerror}",
                    hint="check the file system that state_dir in [node] is on",
                ) from error
            _take_lines(content, kept)
        return kept

    def add(self, outcome: EndToKeep) -> None:
        """Make an outcome durable, with all others of this turn of the event loop."""
        self._waiting.append(outcome)
        if not self._is_running:
            self._is_running = True
            self._start(self._run())

    def note_gone(self, names: Sequence[str]) -> None:
        """Note that nothing of these attempts is in the spool any more: with the next outcomes."""
        self._gone += names

    def close(self) -> None:
        """Write what is left to be noted, and give the thread back."""
        self._thread.shutdown()
        try:
            if self._gone:
                self._write(_gone_line(self._gone))
        except OSError as error:
            log.debug("the log of outcomes: %s", error)
        if self._fd >= 0:
            os.close(self._fd)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            gone, self._gone = self._gone, []
            late = await loop.run_in_executor(self._thread, self.keep, batch, gone)
            names = {outcome.name for outcome in late}
            for outcome in batch:
                if outcome.name not in names:
                    outcome.then()
            if late:
                await asyncio.sleep(RETRY_S)
                self._waiting[:0] = late
        self._is_running = False

    # --- in the thread ---

    def keep(self, batch: Sequence[EndToKeep], gone: Sequence[str] = ()) -> list[EndToKeep]:
        """Make outcomes durable; return those that cannot be now."""
        failpoint("node.exit.before_keep")
        lines = b"".join(_ended_line(each.name, each.text) for each in batch if each.text)
        alone = [each for each in batch if not each.text]
        if lines:
            try:
                self._write(_gone_line(gone) + lines)
                failpoint("node.exit.before_flush")
                os.fdatasync(self._fd)
            except OSError as error:
                log.warning("the log of outcomes cannot be written: %s", error)
                alone = list(batch)
        late = [each for each in alone if not self._keep_alone(each)]
        failpoint("node.exit.after_flush")
        return late

    def _keep_alone(self, outcome: EndToKeep) -> bool:
        try:
            self._flush_exit(outcome.name)
        except OSError as error:
            log.error(
                "attempt %s: its exit record cannot be flushed, so the head does not hear of it "
                "yet; trying again every %.0f s: %s",
                outcome.name,
                RETRY_S,
                error,
            )
            return False
        return True

    def _write(self, lines: bytes) -> None:
        if self._fd < 0:
            self._open()
        elif self._size >= self._bytes_max:
            self._turn_over()
        if is_armed("node.exit.half_kept"):
            os.write(self._fd, lines[: len(lines) // 2])
            failpoint("node.exit.half_kept")
        if os.write(self._fd, lines) < len(lines):
            raise OSError("there is no space")
        self._size += len(lines)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.paths[0], flags, 0o600)
        self._size = os.fstat(self._fd).st_size
        flush_directory(self._state_dir)

    def _turn_over(self) -> None:
        """Begin another file, and flush the journals of which only the one before the last has."""
        path, older = self.paths
        kept: dict[str, bytes] = {}
        _take_lines(records.read_file(older) or b"", kept)
        there = kept.keys() & set(os.listdir(os.path.join(self._state_dir, "attempts")))
        for name in sorted(there):
            self._flush_exit(name)
        os.replace(path, older)
        os.close(self._fd)
        self._fd = -1
        self._open()


def _ended_line(name: str, text: bytes) -> bytes:
    content = b"%s %s" % (name.encode(), text)
    return b"\n%s%08x %s\n" % (_ENDED, zlib.crc32(content), content)


def _gone_line(names: Sequence[str]) -> bytes:
    return b"\n%s%s\n" % (_GONE, " ".join(names).encode()) if names else b""


def _take_lines(content: bytes, kept: dict[str, bytes]) -> None:
    for line in content[: content.rfind(b"\n") + 1].split(b"\n"):
        if line.startswith(_ENDED):
            check, _, rest = line[len(_ENDED) :].partition(b" ")
            if check == b"%08x" % zlib.crc32(rest):
                name, _, text = rest.partition(b" ")
                kept[name.decode()] = text
        elif line.startswith(_GONE):
            for gone in line[len(_GONE) :].decode("ascii", "replace").split(" "):
                kept.pop(gone, None)
