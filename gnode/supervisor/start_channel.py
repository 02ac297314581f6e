"""What a supervisor and the process that becomes the job say to each other during its start.

The process sends ``IDENTIFIED`` with the groups of an owner whom it has to become; ``STAGING`` with
the paths of its output if files are copied first; then ``READY`` with these paths, or ``FAILED``
with the evidence. It continues when it gets ``GO``. Where the node lacks the directory of
submission, ``OUTBOX`` comes first, also answered by ``GO``, and `AWAY` follows the paths. Its end
closes by the exec: it has started.
"""

import errno
import os
import socket
from collections.abc import Callable
from typing import Final, cast

from gnode.supervisor import kernel
from gnode.supervisor.errors import LaunchError, Stage, Subject
from gnode.task import Task

_IDENTIFIED, STAGING, READY, _FAILED, _GO = b"I", b"S", b"R", b"F", b"G"
AWAY: Final = "away"
_OUTBOX = b"O"
_STARTED = b""  # no message at all is the last one
_MESSAGE_BYTES_MAX: Final = 16384  # two paths of 4096 bytes, or a message about one
_GROUPS_MAX: Final = 256  # that are known; who has more is looked up each time
_LOOK_S: Final = 0.2  # how often a start that hangs looks for an order to stop


# --- the process that becomes the job; the channel is a descriptor ---


def identified(channel: int, groups: list[int]) -> None:
    """Tell the supervisor the groups of the owner: the name service hangs no more.

    The caller is not the owner yet, who cannot have changed anything of what it tells.
    """
    known = groups if len(groups) <= _GROUPS_MAX else ()
    os.write(channel, _IDENTIFIED + b" ".join(b"%d" % group for group in known))


def may_continue(channel: int, state: bytes, paths: tuple[str, str, str]) -> bool:
    """Tell the supervisor how far this process is; return whether it is to continue."""
    os.write(channel, state + b"\0".join(os.fsencode(path) for path in paths))
    return os.read(channel, 1) == _GO  # else the supervisor is dead, or has been told to stop


def has_outbox(channel: int) -> bool:
    """Have the supervisor make the outbox; return whether this process is to continue."""
    os.write(channel, _OUTBOX)
    return os.read(channel, 1) == _GO


def report(channel: int, error: LaunchError) -> None:
    """Tell the supervisor why the job cannot start."""
    evidence = f"{error.stage}\0{error.subject}\0{error.errno}\0".encode()
    text = f"{error.missing}\0{error.message}".encode("utf-8", "surrogateescape")
    os.write(channel, (_FAILED + evidence + text)[:_MESSAGE_BYTES_MAX])


# --- the supervisor ---


class StartChannel:
    """The supervisor's end.

    Args:
        channel: a SOCK_SEQPACKET socket.
        task: that is started.
        look: called while no message comes; it raises `LaunchError` if the job is to be stopped.
        make_outbox: called where the job needs one; it raises `LaunchError` if there can be none.
        identified: called once with the groups of an owner whom the process has to become.
    """

    def __init__(
        self,
        channel: socket.socket,
        task: Task,
        look: Callable[[], None],
        make_outbox: Callable[[], None],
        identified: Callable[[list[int]], None],
    ) -> None:
        self._make_outbox = make_outbox
        self._identified = identified
        self._is_owner = not task.switch_user
        self._channel = channel
        self._task = task
        self._look = look
        channel.settimeout(_LOOK_S)

    def paths(self, state: bytes, more_s: float = 0.0) -> tuple[str, str, str]:
        """Return the paths of the job's output, and `AWAY` or "", once its process is so far.

        Args:
            state: `STAGING` or `READY`.
            more_s: how much longer than any other step this one may take.

        Raises:
            LaunchError: it reports a failure, does not answer in time or is to be stopped.
        """
        first, second, place = map(os.fsdecode, self._answer(state, more_s).split(b"\0"))
        return first, second, place

    def let_continue(self) -> None:
        """Let the process go on."""
        self._channel.send(_GO)

    def wait_for_program(self) -> None:
        """Return when the process has become the program; errors as those of `paths`."""
        self._answer(_STARTED)

    def _answer(self, expected: bytes, more_s: float = 0.0) -> bytes:
        limit_s = self._task.launch_timeout_s + more_s + 2 * self._task.directory_wait_s
        patience_s = kernel.boottime_s() + limit_s
        message: bytes | None = None
        while message is None:
            try:
                message = self._channel.recv(_MESSAGE_BYTES_MAX)
            except TimeoutError:
                self._look()
                if kernel.boottime_s() < patience_s:
                    continue
                hangs: Stage = "workdir" if self._is_owner else "account"
                raise self._hanging(hangs, limit_s) from None
            if message[:1] == _IDENTIFIED and not self._is_owner:  # once: then it is the user's
                self._is_owner = True
                self._identified([int(word) for word in message[1:].split()])
                message = None
            elif message == _OUTBOX:
                message = None
                self._make_outbox()
                self.let_continue()
        if message.startswith(_FAILED):
            raise _failure_of(message)
        if message[:1] != expected:  # its user may have killed it, or its memory limit
            raise LaunchError(
                "the job's process was killed before it started",
                stage="program",
                subject="job",
                errno=errno.EINTR,
            )
        return message[1:]

    def _hanging(self, stage: Stage, limit_s: float) -> LaunchError:
        """Return the failure of a start that hangs, by how far it has come."""
        if stage == "account":
            message = (
                f"the name service on this node did not answer within {limit_s:.0f} s for user "
                f"{self._task.user}"
            )
            return LaunchError(message, stage=stage, subject="user", errno=errno.ETIMEDOUT)
        message = (
            f"the job could not start within {limit_s:.0f} s: a file system that it needs on this "
            "node may hang"
        )
        return LaunchError(message, stage=stage, subject="job", errno=errno.ETIMEDOUT)


def _failure_of(message: bytes) -> LaunchError:
    stage, subject, number, missing, text = message[len(_FAILED) :].split(b"\0", 4)
    return LaunchError(
        text.decode("utf-8", "surrogateescape"),
        stage=cast("Stage", stage.decode()),
        subject=cast("Subject", subject.decode()),
        errno=int(number),
        missing=missing.decode("utf-8", "surrogateescape"),
    )
