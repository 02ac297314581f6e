"""Whether what gnode reaches on a Unix socket is the head: by the kernel, not by what it says."""

import os
import pwd
import socket
import stat
import struct

from gsched.errors import ConfigError

PREFIX = "unix:"
_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)


class NotTheHeadError(Exception):
    """The socket, or the process that listens on it, is somebody else's."""


def socket_path(head: str) -> str:
    """Return the path in ``unix:/path``; empty for ``host:port``."""
    return head.removeprefix(PREFIX) if head.startswith(PREFIX) else ""


def trusted_uids(head_user: str, *, default: str) -> frozenset[int]:
    """Return whose head is obeyed: root's, one of this gnode's own user, the head account's.

    Raises:
        ConfigError: the configuration names an account that is not there.
    """
    own = frozenset({0, os.geteuid()})
    try:
        return own | {pwd.getpwnam(head_user).pw_uid}
    except KeyError:
        if head_user in {"", default}:
            return own
        raise ConfigError(
            f"node.head_user: there is no user {head_user!r} on this machine",
            hint="name the account that gschedd runs as",
        ) from None


def check_directory(path: str, trusted: frozenset[int]) -> None:
    """Refuse a socket in a directory where others could put one of their own.

    Raises:
        NotTheHeadError: it is so.
        OSError: it cannot be looked at.
    """
    directory = os.path.dirname(path) or "."
    status = os.stat(directory)
    if status.st_uid not in trusted:
        raise NotTheHeadError(
            f"{directory} belongs to uid {status.st_uid}, which is not the head's: see head_user "
            "in [node]"
        )
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise NotTheHeadError(f"others may write into {directory}: chmod go-w {directory}")


def check_peer(connection: object, trusted: frozenset[int]) -> None:
    """Refuse a process of somebody else at the other end of a Unix socket.

    Raises:
        NotTheHeadError: it is so, or the kernel does not say.
    """
    if not hasattr(connection, "getsockopt"):
        raise NotTheHeadError("the kernel does not say who is at the other end")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid = int(_UCRED.unpack(raw)[1])
    if uid not in trusted:
        raise NotTheHeadError(
            f"the process that listens there is of uid {uid}, not the head's: see head_user in "
            "[node]"
        )
