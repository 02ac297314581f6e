"""The node's identity: made once, when its state directory is new, and kept in it.

It is what the head knows the node by, beside its name. A state directory that was copied must not
make two nodes of one identity, so the file says which file it is: on the same machine a copy is
another file, and is refused. A copied disk is the head's matter: see `gnode.hw.machine`.
"""

import os
import secrets
import stat

import msgspec
from msgspec import Struct

from gsched.errors import CannotWriteError, ConfigError
from gsched.files import flush_directory
from gsched.model.machine import is_identity

FILE = "identity.json"
IDENTITY_BYTES = 16
MAX_BYTES = 4096


class IdentityFile(Struct, frozen=True, kw_only=True):
    """``identity.json``.

    Attributes:
        identity: 32 hex digits.
        inode: of the file itself.
    """

    identity: str
    inode: int


def own_identity(state_dir: str) -> str:
    """Return the identity of the node that lives in this state directory; make it if there is none.

    Raises:
        ConfigError: the file is broken, another user's, or a copy.
        CannotWriteError: it cannot be made.
    """
    path = os.path.join(state_dir, FILE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return _make(path)
    except OSError as error:
        raise ConfigError(f"the node's identity {path}: {error.strerror}", hint=_HINT) from error
    try:
        status = os.fstat(fd)
        content = os.read(fd, MAX_BYTES)
    finally:
        os.close(fd)
    _check_owner(path, status)
    try:
        known = msgspec.json.decode(content, type=IdentityFile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the node's identity {path} is broken: {error}", hint=_HINT) from error
    if not is_identity(known.identity):
        raise ConfigError(f"the node's identity {path} is broken: not 32 hex digits", hint=_HINT)
    if known.inode != status.st_ino:
        raise ConfigError(
            f"the state directory {state_dir} is a copy of another node's, or was restored: "
            f"{path} is not the file that gnode made",
            hint=f"empty it for a new node; if it is the node's only one: {_HINT}",
        )
    return known.identity


_HINT = "remove the file and start gnode; then, on the head: gnodes replace NODE"


def _check_owner(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(
            f"the node's identity {path} is not a file of uid {os.geteuid()}", hint=_HINT
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"the node's identity {path} is readable by other users (mode "
            f"{stat.S_IMODE(status.st_mode):04o})",
            hint=f"chmod 600 {path}",
        )


def _make(path: str) -> str:
    """Make an identity that is there, whole and durable, or not at all."""
    identity = secrets.token_hex(IDENTITY_BYTES)
    temporary = f"{path}.tmp"
    try:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            inode = os.fstat(fd).st_ino
            os.write(fd, msgspec.json.encode(IdentityFile(identity=identity, inode=inode)))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
        flush_directory(os.path.dirname(path))
    except OSError as error:
        raise CannotWriteError(
            f"the node's identity {path} cannot be made: {error.strerror}",
            hint="set state_dir in [node] to a directory that gnode may write",
        ) from error
    return identity
