"""Program: read and write pieces of files as their owner, for `gsched.owner_files`.

Arguments: whether jobs of root run here (``1``), the lowest uid of users (0: that of the system).
Input: orders, each a line of JSON, the fields of a `gsched.protocol.deliveries.FileOrder` without
its data and their ``count``, then the data. Output: for each a line of JSON with the fields of a
`FileDone` and ``count``, then what was read. All orders are of the owner of the first one.
Everything is imported before the privileges go.

Symbolic links are followed, as where a job's output is opened: the owner's rights alone count;
but none below a tree that is staged (`gnode.daemon.owner_tree`). A file must be a regular one. What
it holds already of a piece is not written again, so that a piece whose answer was lost can be
repeated; behind what others have written it continues at the end.
"""

import base64
import contextlib
import errno
import json
import os
import pwd
import stat
import sys
from itertools import islice
from typing import Any, Final

from gnode.daemon.owner_tree import (
    BATCH_ENTRIES,
    MODES,
    EntryPlace,
    below_of,
    read_tree,
    since_first,
    unpack,
)
from gnode.daemon.read_as_owner import enter, read_piece, reason
from gnode.supervisor import kernel, privilege
from gnode.supervisor.errors import LaunchError
from gsched.errors import PASSING

BEGIN: Final = -1  # as in gsched.protocol.deliveries
_FLAGS: Final = os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OPEN_FILES: Final = BATCH_ENTRIES + 100


def become_owner(order: dict[str, Any], rules: privilege.PrivilegeRules) -> None:
    """Become the owner for good, if this host knows the same one and runs or takes files of such.

    Raises:
        LaunchError: it does not.
    """
    uid, gid = int(order["uid"]), int(order["gid"])
    switch_user = os.geteuid() == 0 and uid != 0
    privilege.check_owner(uid, gid, rules, switch_user=switch_user)
    if switch_user:
        privilege.become(uid, gid, privilege.resolve_groups(str(order["user"]), uid, gid))
        kernel.forbid_new_privileges()


def path_of(order: dict[str, Any]) -> str:
    """Return the path of an order, absolute."""
    path = str(order["path"])
    if path.startswith("~/"):
        path = f"{pwd.getpwuid(int(order['uid'])).pw_dir}{path[1:]}"
    return path + str(order.get("name", "")) if path.endswith("/") else path


def read(order: dict[str, Any]) -> tuple[dict[str, object], bytes]:
    """Return what to say about a piece that is read, and the piece."""
    path = path_of(order)
    if order.get("tree"):
        try:
            return {"path": path}, read_tree(path, order)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            return _failed(getattr(error, "filename", None) or path, error), b""
    if os.path.isdir(path):
        path = os.path.join(path, str(order.get("name", "")))
    found, data = read_piece(path, int(order.get("offset", 0)), int(order.get("max_bytes", 0)))
    return {**found, "path": path}, data


def write(order: dict[str, Any], data: bytes) -> dict[str, object]:
    """Write a piece; return what to say about it."""
    path = path_of(order)
    try:
        os.umask(int(order.get("umask", 0o022)))
        if order.get("kind") == "batch":
            return _write_batch(order, path, data)
        if order.get("temporary"):
            return _write_entry(order, path, data)
        fd, path = _opened(order, path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return _failed(path, error)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {"path": path, "error": f"{path}: is not a plain file", "errno": errno.EINVAL}
        return {"path": path, **_written(order, fd, data)}
    except OSError as error:
        return _failed(path, error)
    finally:
        os.close(fd)


def _write_batch(order: dict[str, Any], path: str, data: bytes) -> dict[str, object]:
    """Write entries of a tree, up to the first that cannot be; ``taken`` is their number.

    They are durable together, which costs much less than each by itself.
    """
    done: dict[str, object] = {"path": _words(path)}
    taken = 0
    written: list[int] = []
    try:
        for header, content in islice(unpack(data), BATCH_ENTRIES):
            below = base64.b64encode(os.fsencode(str(header["name"]))).decode()
            fields: dict[str, Any] = {
                name: header[name] for name in ("kind", "mode") if name in header
            }
            entry = {**order, "below": below, "at": BEGIN, "last": True, **fields}
            done = _write_entry(entry, path, content, written)
            if "error" in done:
                break
            taken += 1
        for fd in written:
            os.fsync(fd)
    except OSError as error:
        return {**_failed(path, error), "taken": 0}
    except (ValueError, LookupError, TypeError):
        done = {"path": _words(path), "error": "the batch cannot be read", "errno": errno.EBADMSG}
    finally:
        for fd in written:
            os.close(fd)
    return {**done, "end": 0, "taken": taken}


def _write_entry(
    order: dict[str, Any], path: str, data: bytes, written: list[int] | None = None
) -> dict[str, object]:
    """Write a piece of an entry of a tree, which gets its name when it is there in full.

    With ``written`` its descriptor is put there, and it is not durable yet.
    """
    below, owner, kind = below_of(order), str(order["temporary"]), order.get("kind", "file")
    shown = f"{path}/{below}" if below else path
    makes = not order.get("drops")
    try:
        if makes:
            _make_directories(path, int(order.get("makes", 0)))
        with EntryPlace(path, below, makes=makes) as place:
            done: dict[str, object] = {}
            if not makes:
                place.remove(place.temporary(owner))
            elif kind == "directory":
                place.make_directory(int(order.get("mode", 0)))
            elif kind == "link":
                place.make_link(data, owner)
                done = {"end": len(data), "taken": len(data)}
            else:
                done = _write_file(order, place, data, written)
            return {"path": _words(shown), **done}
    except (OSError, ValueError) as error:
        return {**_failed(shown, error), "whole": _is_closed(path, below)}


def _write_file(
    order: dict[str, Any], place: EntryPlace, data: bytes, written: list[int] | None
) -> dict[str, object]:
    """Write a piece of a file under another name, until it is there in full."""
    owner = str(order["temporary"])
    temporary = place.temporary(owner)
    if order.get("at", BEGIN) == BEGIN:
        for each in since_first(owner):  # an attempt before may have been given up
            place.remove(place.temporary(each))
    fd = os.open(temporary, _FLAGS | os.O_RDWR | os.O_NOFOLLOW, 0o600, dir_fd=place.directory)
    try:
        done = _written(order, fd, data, durable=written is None)
        if order.get("last") and done.get("taken") == len(data):
            place.take_name(temporary)
    except OSError as error:
        if error.errno not in PASSING:  # else the next try resumes it
            place.remove(temporary)
        raise
    finally:
        if written is None:
            os.close(fd)
        else:
            written.append(fd)
    return done


def _is_closed(path: str, below: str) -> bool:
    """Return whether nothing below a tree can be written, as its top is what fails."""
    return not below or not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK)


def _opened(order: dict[str, Any], path: str) -> tuple[int, str]:
    flags = _FLAGS
    if order.get("at", BEGIN) == BEGIN and not order.get("append"):
        flags |= os.O_TRUNC
    _make_directories(path, int(order.get("makes", 0)))
    try:
        return _open(path, flags), path
    except IsADirectoryError:
        path = os.path.join(path, str(order.get("name", "")))
        return _open(path, flags), path


def _make_directories(path: str, count: int) -> None:
    """Make the missing parent directories of a file, up to a number of them."""
    missing = []
    for _ in range(count):
        path = os.path.dirname(path)
        if os.path.isdir(path):
            break
        missing.append(path)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each)


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_RDWR, 0o666)
    except PermissionError:  # of a file that its owner only writes
        return os.open(path, flags | os.O_WRONLY, 0o666)


def _written(
    order: dict[str, Any], fd: int, data: bytes, *, durable: bool = True
) -> dict[str, object]:
    at, size = int(order.get("at", BEGIN)), os.fstat(fd).st_size
    if at == BEGIN and order.get("append"):
        return {"end": size}
    at = max(at, 0)
    if size < at:
        return {"end": size}  # what was acknowledged is not there: the host lost it, or its user
    begin = _common(fd, at, data, size)
    if order.get("follows") and size != at and not (order.get("temporary") and begin == len(data)):
        return {"end": size}  # it is not where it was sent to: others have written, too
    if begin is None:
        at, begin = size, 0
    rest = memoryview(data)[begin:]
    place = at + begin
    while rest:
        count = os.pwrite(fd, rest, place)
        rest, place = rest[count:], place + count
    if order.get("last"):
        if order.get("mode"):
            os.fchmod(fd, int(order["mode"]) & MODES)
        if durable:
            os.fsync(fd)
        else:  # on its way to the disk at least
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return {"end": at + len(data), "taken": len(data)}


def _common(fd: int, at: int, data: bytes, size: int) -> int | None:
    """Return how much of a piece the file has; None: there is something else."""
    if size == at:
        return 0
    try:
        there = os.pread(fd, len(data), at)
    except OSError:  # it is open for writing only
        return None
    return len(there) if there == data[: len(there)] else None


def _failed(path: str, error: Exception) -> dict[str, object]:
    number = getattr(error, "errno", None) or errno.EINVAL
    path = _words(path)
    return {"path": path, "error": f"{path}: {reason(error)}", "errno": number}


def _words(path: str) -> str:
    """Return a path as text that can be sent: a name may hold any bytes."""
    return path.encode("utf-8", "backslashreplace").decode()


def main() -> None:
    """Do as the orders say."""
    allow_root, uid_min = sys.argv[1:]
    rules = privilege.PrivilegeRules(allow_root=allow_root == "1", uid_min=int(uid_min))
    enter("", open_files=OPEN_FILES)
    owner: tuple[object, ...] = ()
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        content = sys.stdin.buffer.read(order["count"])
        try:
            named = order["user"], order["uid"], order["gid"]
            if not owner:
                become_owner(order, rules)
                os.chdir("/")
                owner = named
        except LaunchError as error:
            _answer({"error": error.message, "errno": error.errno or errno.EPERM}, b"")
            return
        if named != owner:
            return
        if order.get("writes"):
            _answer(write(order, content), b"")
        else:
            _answer(*read(order))


def _answer(done: dict[str, object], data: bytes) -> None:
    line = json.dumps({**done, "count": len(data)}).encode()
    sys.stdout.buffer.write(line + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
