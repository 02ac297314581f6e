"""Typed errors: what was asked, what is so, what to do.

Every error that a user can meet derives from `GschedError` and carries three things a program can
use: a stable ``code``, the ``exit_code`` of the command and a ``hint`` that says what to do.
"""

import errno
from typing import ClassVar, Final

#: Error numbers of a full disk, or of a quota of the file system.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Those that pass, of a file system or a machine.
PASSING: Final = NO_ROOM | {
    *(errno.EIO, errno.ETIMEDOUT, errno.EAGAIN, errno.ESTALE),
    *(errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EBUSY, errno.EINTR),
}


class GschedError(Exception):
    """The base of every error a user can meet.

    Attributes:
        code: stable identifier for programs, the same in JSON answers.
        exit_code: what a command that ends with this error returns (sysexits or PBSE & 255).
        hint: what the user can do about it, or the empty string.
    """

    code: ClassVar[str] = "error"
    exit_code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GschedError):
    """The command line or the request says something impossible."""

    code = "usage"
    exit_code = 2


class BadResourceError(UsageError):
    """A resource list that cannot be read, or names an unknown resource."""

    code = "bad_resource"


class RequestTooLargeError(UsageError):
    """No node, or not enough nodes, can ever satisfy this request, however long the user waits."""

    code = "request_too_large"


class BadScriptError(GschedError):
    """A script or a directive in it that cannot be used (sysexits EX_DATAERR)."""

    code = "bad_script"
    exit_code = 65


class UnreadableScriptError(GschedError):
    """The script is not there or may not be read (sysexits EX_NOINPUT)."""

    code = "unreadable_script"
    exit_code = 66


class UnknownUserError(GschedError):
    """The user is unknown on this machine (sysexits EX_NOUSER)."""

    code = "unknown_user"
    exit_code = 67


class UnknownNodeError(GschedError):
    """No node of that name (sysexits EX_NOHOST)."""

    code = "unknown_node"
    exit_code = 68


class HeadUnreachableError(GschedError):
    """Nobody answers at the head's address (sysexits EX_UNAVAILABLE)."""

    code = "head_unreachable"
    exit_code = 69


class StandsByError(HeadUnreachableError):
    """This head stands by, and another one rules: it was requested more than to read."""

    code = "stands_by"


class InternalError(GschedError):
    """A fault of gsched itself (sysexits EX_SOFTWARE)."""

    code = "internal"
    exit_code = 70


class CannotWriteError(GschedError):
    """A file or directory that cannot be created or written (sysexits EX_CANTCREAT)."""

    code = "cannot_write"
    exit_code = 73


class TryAgainError(GschedError):
    """A passing condition: full disk, a busy database, safe mode (sysexits EX_TEMPFAIL)."""

    code = "try_again"
    exit_code = 75


class StorageFullError(TryAgainError):
    """There is no room on the head's disk, or a quota on it is used up (HTTP status 507)."""

    status = 507


class NotPermittedError(GschedError):
    """The caller may not do this (PBSE_PERM & 255)."""

    code = "not_permitted"
    exit_code = 159


class ConfigError(GschedError):
    """A configuration that cannot be used (sysexits EX_CONFIG)."""

    code = "config"
    exit_code = 78


class FencedError(GschedError):
    """Another head has taken the nodes over; this one must not go on (as a configuration error)."""

    code = "fenced"
    exit_code = 78


class UnknownJobError(GschedError):
    """No job of that id (PBSE_UNKJOBID & 255)."""

    code = "unknown_job"
    exit_code = 153


class InvalidRequestError(GschedError):
    """A request that cannot be carried out as it stands (PBSE_IVALREQ & 255)."""

    code = "invalid_request"
    exit_code = 156


class BadStateError(GschedError):
    """The job's state does not allow this (Torque's PBSE_BADSTATE & 255)."""

    code = "bad_state"
    exit_code = 170


class UnknownQueueError(GschedError):
    """No queue of that name (Torque's PBSE_UNKQUE & 255)."""

    code = "unknown_queue"
    exit_code = 172


class BadDependencyError(GschedError):
    """A dependency that cannot be read, or can never be satisfied (Torque's PBSE_BADDEPEND)."""

    code = "bad_dependency"
    exit_code = 208


class InvalidTransitionError(GschedError):
    """Our own fault: a fact that cannot follow the present state."""

    code = "invalid_transition"
    exit_code = 70

    def __init__(self, *, subject: str, state: str, fact: str) -> None:
        super().__init__(f"{subject} is {state}: {fact} cannot follow that state")
        self.subject, self.state, self.fact = subject, state, fact


class StorageError(GschedError):
    """The database failed; whoever gets this stops (reliability: fail stop)."""

    code = "storage"
    exit_code = 3


ALL_ERRORS: tuple[type[GschedError], ...] = (
    UsageError,
    BadResourceError,
    RequestTooLargeError,
    BadScriptError,
    UnreadableScriptError,
    UnknownUserError,
    UnknownNodeError,
    HeadUnreachableError,
    StandsByError,
    InternalError,
    CannotWriteError,
    TryAgainError,
    NotPermittedError,
    ConfigError,
    FencedError,
    UnknownJobError,
    InvalidRequestError,
    BadStateError,
    UnknownQueueError,
    BadDependencyError,
    StorageError,
)

EXIT_CODES: dict[str, int] = {error.code: error.exit_code for error in ALL_ERRORS}


def forget_frames(error: BaseException | None) -> None:
    """Forget where an error, and those before it, were raised.

    Frames have what they work on, and that may have the error: such a cycle, with the buffers of a
    connection, stays until a full collection of garbage.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
