"""The node's directory: what is there of each attempt, and the marks that outlive gnode.

``task.json`` is not flushed: it matters only as long as the machine stays up. After a power loss
another boot id says that whatever was accepted is dead. Half of it is no JSON, so an attempt is
accepted once it is complete.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gnode.core.inputs import SpoolEntry
from gnode.core.mark import HeadMark
from gnode.core.task import AcceptedTask, AttemptKey, Command, parse_key
from gnode.daemon.scratch import DEFAULT_TMP_DIR, LASTING_TMP_DIR, Scratch
from gnode.supervisor import journal, lease
from gnode.supervisor import spool as records
from gnode.supervisor.journal import Story
from gnode.task import SupervisorInfo
from gsched import trust
from gsched.errors import CannotWriteError, ConfigError, InvalidRequestError, TryAgainError
from gsched.files import replace_file
from gsched.model.job import ExitRecord
from gsched.trust import UntrustedError

RecordT = TypeVar("RecordT")

log = logging.getLogger(__name__)

TASK = records.TASK
LOCK = "gnode.lock"
LAUNCHED = records.LAUNCHED
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_NONE_KEPT: Mapping[str, bytes] = MappingProxyType({})

_encoder = msgspec.json.Encoder()
_task_decoder = msgspec.json.Decoder(AcceptedTask)
_info_decoder = msgspec.json.Decoder(SupervisorInfo)
_exit_decoder = msgspec.json.Decoder(ExitRecord)


class NodeSpool:
    """The files of one node below its state directory.

    Args:
        state_dir: of the node.
        tmp_dir: below which jobs get directories of their own.
    """

    def __init__(self, state_dir: str, tmp_dir: str = DEFAULT_TMP_DIR) -> None:
        self.state_dir = os.path.abspath(state_dir)
        self.attempts_dir = os.path.join(self.state_dir, "attempts")
        self.scratch = Scratch(self.state_dir, tmp_dir)
        # what waits for its delivery outlives a restart of the machine
        lasting = LASTING_TMP_DIR if tmp_dir == DEFAULT_TMP_DIR else tmp_dir
        self.outboxes = Scratch(self.state_dir, lasting, "-outbox")
        self._mark_path = os.path.join(self.state_dir, "head.json")

    def prepare(self) -> None:
        """Make the directories.

        Whoever can write them, or put others in their place, can have programs run as any user:
        so directories that somebody else can change are refused, those on the way included.

        Raises:
            CannotWriteError: the state directory cannot be made or written.
            ConfigError: somebody else can change it.
        """
        try:
            trust.check_way(self.state_dir)
            os.makedirs(self.state_dir, mode=0o711, exist_ok=True)
            trust.check_directory(self.state_dir)
            os.makedirs(self.attempts_dir, exist_ok=True)
            trust.check_directory(self.attempts_dir)
            os.chmod(self.attempts_dir, 0o700)
            if os.geteuid() == 0:
                mode = os.stat(self.state_dir).st_mode & 0o7777
                os.chmod(self.state_dir, mode | 0o011)  # noqa: S103 - training jobs reach their socket
        except UntrustedError as error:
            raise ConfigError(
                f"the state directory {self.state_dir} cannot be used: {error}, "
                "so that account could have programs run as other users",
                hint=f"{error.hint}, or set state_dir in [node] to a directory of gnode's own",
            ) from error
        except OSError as error:
            raise CannotWriteError(
                f"state directory {self.state_dir}: {error.strerror}",
                hint="set state_dir in [node] to a directory that gnode may write",
            ) from error
        self.scratch.prepare()

    def is_locked_by(self, lock_fd: int) -> bool:
        """Return whether this is still the state directory of which `lock` gave the descriptor."""
        return records.is_same_file(os.path.join(self.state_dir, LOCK), lock_fd)

    def directory(self, key: AttemptKey) -> str:
        """Return the directory of an attempt's records."""
        return os.path.join(self.attempts_dir, key.name)

    # --- write ---

    def write_task(self, task: AcceptedTask) -> None:
        """Accept a task: once this returns, a restarted gnode knows the attempt.

        It is never written twice: the supervisor's lock is on the file itself. With it the space
        for the exit record is reserved, so that a full disk never keeps an outcome.

        Raises:
            OSError: there is no space; nothing is left of the attempt.
        """
        directory = self.directory(task.key)
        self.scratch.ensure()
        if task.away is not None:
            self.outboxes.ensure()
        os.mkdir(directory, 0o700)
        try:
            made = journal.make_journal(directory)
            try:
                made.reserve(journal.RESERVED_BYTES)
            finally:
                made.close()
            if task.lease_s:
                lease.prepare(directory, task.lease_from_s)
            _write_new(os.path.join(directory, TASK), _encoder.encode(task))
        except OSError:
            for name in os.listdir(directory):
                os.unlink(os.path.join(directory, name))
            os.rmdir(directory)
            raise

    def write_launched(self, task: AcceptedTask) -> None:
        """Note that a prepared attempt is launched, as this task; twice is as once.

        Raises:
            OSError: there is no space; it is not launched yet.
        """
        directory = self.directory(task.key)
        if task.lease_s and lease.read(directory) is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, lease.LEASE))
            lease.prepare(directory, task.lease_from_s)
        replace_file(os.path.join(directory, LAUNCHED), _encoder.encode(task))

    def append_command(self, key: AttemptKey, command: Command) -> None:
        """Add a line to the orders to an attempt's supervisor.

        Raises:
            OSError: there is no space, or no such attempt; nothing was added.
        """
        opened = journal.open_journal(self.directory(key))
        try:
            opened.write_order(_encoder.encode(command))
        finally:
            opened.close()

    def write_renewal(self, key: AttemptKey, renewed_s: float) -> None:
        """Keep when an attempt's lease was renewed last, seconds of CLOCK_BOOTTIME.

        Raises:
            OSError: it cannot be written; what was kept before holds.
        """
        lease.write(self.directory(key), renewed_s)

    def write_exit(self, record: ExitRecord) -> None:
        """Keep an exit record that no supervisor could write."""
        made = journal.make_journal(self.directory(AttemptKey(record.job, record.attempt)))
        try:
            records.write_exit(made, msgspec.to_builtins(record))
        finally:
            made.close()

    def write_mark(self, mark: HeadMark) -> None:
        """Keep the marks of the head."""
        replace_file(self._mark_path, _encoder.encode(mark), durable=True)

    # --- read ---

    def read_mark(self) -> HeadMark:
        """Return the marks of the head, empty ones if there are none (or they are broken).

        Raises:
            ConfigError: they cannot be read, or somebody else could have written them.
        """
        try:
            content = _read(self._mark_path)
        except UntrustedError as error:
            raise ConfigError(
                f"the marks of the head {self._mark_path} cannot be used: {error}", hint=error.hint
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the marks of the head {self._mark_path} cannot be read: {error.strerror}",
                hint="check the file system that state_dir in [node] is on",
            ) from error
        if content is None:
            return HeadMark()
        try:
            return msgspec.json.decode(content, type=HeadMark)
        except msgspec.MsgspecError as error:
            log.warning("%s is broken and ignored: %s", self._mark_path, error)
            return HeadMark()

    def read_task(self, key: AttemptKey) -> AcceptedTask | None:
        """Return an attempt's task, None if there is none that can be read."""
        return _decode(_task_decoder, os.path.join(self.directory(key), TASK))

    def read_info(self, key: AttemptKey, known: bytes = b"") -> SupervisorInfo | None:
        """Return who runs an attempt, None if no supervisor has said so yet.

        Args:
            key: of the attempt.
            known: the record, if its supervisor has just told it; then nothing is read.
        """
        if known:
            return _decoded(_info_decoder, f"the start of {key.name}", known)
        try:
            return self._info(key, journal.read_story(self.directory(key)))
        except OSError as error:
            log.warning("a record is ignored: %s", error)
            return None

    def read_answer(self, key: AttemptKey, request: int) -> bool | None:
        """Return whether the signal of a migration was sent to a job; None: not known yet."""
        try:
            story = journal.read_story(self.directory(key))
        except OSError as error:
            log.warning("a record is ignored: %s", error)
            return None
        if story.signalled >= request:
            return True
        return False if story.unhandled >= request else None

    def was_cleaned(self, key: AttemptKey) -> bool:
        """Return whether nothing is left of the container of an attempt; no if that is unknown."""
        try:
            return journal.read_story(self.directory(key)).cleaned
        except OSError:
            return False

    def read_epilog(self, key: AttemptKey) -> str | None:
        """Return what went wrong in an attempt's epilog; None: it has not ended.

        Raises:
            OSError: that cannot be read now.
        """
        return journal.read_story(self.directory(key)).epilog

    def _info(self, key: AttemptKey, story: Story) -> SupervisorInfo | None:
        return _decoded(_info_decoder, f"the start of {key.name}", story.started)

    def read_exit(self, key: AttemptKey) -> ExitRecord | None:
        """Return an attempt's exit record, None if there is none, or what is there is no record.

        It is flushed: whoever wrote it may not have come to that.

        Raises:
            OSError: it cannot be read, or not be trusted, now: that does not say that it is absent.
        """
        record = self._exit(key, journal.read_story(self.directory(key)))
        if record is not None:
            self.flush_exit(key.name)
        return record

    def decoded_exit(self, key: AttemptKey, text: bytes | None) -> ExitRecord | None:
        """Return the exit record that a supervisor has written, None if it is none."""
        return _decoded(_exit_decoder, f"the record of {key.name}", text)

    def _exit(self, key: AttemptKey, story: Story) -> ExitRecord | None:
        return self.decoded_exit(key, story.ended)

    def attempts(self) -> list[AttemptKey]:
        """Return the attempts in the spool; what has no attempt's name is set aside."""
        found: list[AttemptKey] = []
        for name in sorted(os.listdir(self.attempts_dir)):
            try:
                found.append(parse_key(name))
            except InvalidRequestError:
                try:
                    self._set_aside(name)
                except OSError as error:  # a full disk: at the next start
                    log.warning("%s is no attempt, and stays: %s", name, error)
        return found

    def look(self, key: AttemptKey, kept: Mapping[str, bytes] = _NONE_KEPT) -> SpoolEntry:
        """Return what lies in the spool of an attempt.

        Args:
            key: of the attempt.
            kept: exit records that are durable, by attempt: one that the journal has as well need
                not be flushed, and one that it has lost with the machine's power is not lost.
        """
        task, info, record, doubt = self.read_task(key), None, None, ""
        size, epilog = 0, None
        try:
            story = journal.read_story(self.directory(key))
            size, epilog = story.size_bytes, story.epilog
            info, record = self._info(key, story), self._exit(key, story)
            if key.name in kept:
                record = record or self.decoded_exit(key, kept[key.name])
            elif record is not None:
                self.flush_exit(key.name)
        except OSError as error:
            record, doubt = None, str(error)
        launched = None
        if task is not None and task.gate:
            launched = _decode(_task_decoder, os.path.join(self.directory(key), LAUNCHED))
        leased = task is not None and (launched or task).lease_s
        return SpoolEntry(
            key=key,
            task=task,
            info=info,
            record=record,
            doubt=doubt,
            renewed_s=lease.read(self.directory(key)) if leased else None,
            launched=launched,
            journal_bytes=size,
            epilog=epilog,
        )

    def flush_exit(self, name: str) -> None:
        """Have an attempt's exit record outlive a power loss; nothing if it has no files any more.

        Raises:
            OSError: it cannot be flushed.
        """
        records.flush_exit(os.path.join(self.attempts_dir, name))

    # --- remove ---

    def remove(self, key: AttemptKey) -> str | None:
        """Remove an attempt's records; return a directory that has to be removed entry by entry."""
        directory = self.directory(key)
        try:
            _unlink(directory, TASK, journal.NAME)
            try:
                os.rmdir(directory)
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    raise
                _unlink(directory, lease.LEASE, LAUNCHED)
                os.rmdir(directory)
        except FileNotFoundError:
            return None
        except OSError:
            return directory
        return None

    def set_aside(self, key: AttemptKey) -> None:
        """Move an unreadable attempt to ``lost+found``."""
        self._set_aside(key.name)

    def _set_aside(self, name: str) -> None:
        aside = os.path.join(self.state_dir, "lost+found")
        os.makedirs(aside, mode=0o700, exist_ok=True)
        target = os.path.join(aside, name)
        number = 0
        while os.path.lexists(target):
            number += 1
            target = os.path.join(aside, f"{name}~{number}")
        os.rename(os.path.join(self.attempts_dir, name), target)
        log.warning("%s cannot be read: moved to %s", name, target)


def _unlink(directory: str, *names: str) -> None:
    for name in names:
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            continue


def _decode(decoder: "msgspec.json.Decoder[RecordT]", path: str) -> RecordT | None:
    try:
        content = _read(path)
    except OSError as error:
        log.warning("a record is ignored: %s", error)
        return None
    return _decoded(decoder, path, content)


def _decoded(
    decoder: "msgspec.json.Decoder[RecordT]", path: str, content: bytes | None
) -> RecordT | None:
    if content is None:
        return None
    try:
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def _read(path: str) -> bytes | None:
    try:
        fd = trust.open_file(path)
    except FileNotFoundError:
        return None
    try:
        parts: list[bytes] = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
            if len(part) < 1 << 16:
                break
        return b"".join(parts)
    finally:
        os.close(fd)


def _write_new(path: str, content: bytes) -> None:
    """Write a file that is not there yet; half of one is no JSON, and counts as none."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def lock(state_dir: str) -> int:
    """Take the node's lock and write ``gnode.pid``.

    Returns:
        The lock's descriptor: the lock is held until it is closed, or the process ends.

    Raises:
        TryAgainError: another gnode has it; the message names its process.
    """
    path = os.path.join(state_dir, LOCK)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise TryAgainError(
            f"a gnode already runs on {state_dir}: process {pid}",
            hint="stop it first, or give this one another state_dir",
        ) from None
    own = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(fd, own, 0)
        os.truncate(fd, len(own))
        replace_file(os.path.join(state_dir, "gnode.pid"), own)
    except OSError as error:
        # The lock holds all the same; the number only says who has it.
        log.warning("%s: cannot write this process's number: %s", state_dir, error.strerror)
    return fd
