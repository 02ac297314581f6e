"""Unix sockets: addresses in directories with long names, and peers; the standard library only."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESS_BYTES_MAX = 107  # sun_path of unix(7), less its closing zero
BACKLOG = 1024
_UCRED = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)


@contextmanager
def address_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield an address for a socket at a path, however long that is, while the block lasts.

    A path that does not fit is reached by a descriptor of its directory.

    Raises:
        OSError: the directory of a long path cannot be opened.
    """
    text = os.fspath(path)
    if len(os.fsencode(text)) <= ADDRESS_BYTES_MAX:
        yield text
        return
    directory, name = os.path.split(text)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}/{name}"
    finally:
        os.close(place)


def peer_ids(connection: "socket.socket") -> tuple[int, int]:
    """Return uid and gid at the other end of a Unix socket, as the kernel saw them at connect().

    Raises:
        OSError: it is no Unix socket.
    """
    _, uid, gid = _peer(connection)
    return uid, gid


def listener_pid(path: str) -> int:
    """Return the process that listens at a path, also one that is stopped; 0: it is not seen here.

    Raises:
        OSError: nobody listens there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        with address_of(path) as address:
            connection.connect(address)
        return _peer(connection)[0]


def _peer(connection: "socket.socket") -> tuple[int, int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def listen_at(path: str, *, mode: int) -> "socket.socket":
    """Return a Unix socket of this mode that listens at a path; its directory is made.

    It gets its mode under another name and is renamed when it listens: whoever finds it may open
    it, and one is there at any moment while a daemon is replaced.

    Raises:
        OSError: it cannot be made there.
    """
    path = os.path.abspath(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.new")  # of a daemon that was killed just then
        with address_of(f"{path}.new") as address:
            listener.bind(address)
        os.chmod(f"{path}.new", mode)
        listener.listen(BACKLOG)
        os.rename(f"{path}.new", path)
    except OSError:
        listener.close()
        raise
    return listener
