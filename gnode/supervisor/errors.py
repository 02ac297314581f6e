"""Why a job could not be started."""

import errno
import os

#: Errors of a file system or a machine, not of what the user asked for: worth another try.
_PASSING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.ENOMEM,
        errno.ENFILE,
        errno.EMFILE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ECONNREFUSED,
        errno.EINTR,
    }
)


class LaunchError(Exception):
    """A step between the fork and the program failed.

    Attributes:
        message: for people: what was tried, what is so, what to do.
        user_error: the job's own fault, so that another try would fail too.
    """

    def __init__(self, message: str, *, user_error: bool) -> None:
        super().__init__(message)
        self.message = message
        self.user_error = user_error


def blame(error: OSError) -> bool:
    """Return whether ``error`` about something a user named is the user's own fault."""
    return error.errno not in _PASSING


def reason(error: OSError) -> str:
    """Return the error in the system's words, without number and file name."""
    return os.strerror(error.errno) if error.errno else str(error)
