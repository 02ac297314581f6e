"""Program: read a piece of a file as its owner, or append to it. Run by a gnode that is root.

Arguments: user, uid, gid, the attempt's control group (empty: none), path, offset, max_bytes, bytes
to append as hex. Output: a line of JSON with ``offset`` and ``size_bytes``, or with ``error``, then
the bytes. Everything is imported before the privileges go.
"""

import contextlib
import json
import os
import resource
import signal
import stat
import sys

from gnode.supervisor import kernel, privilege
from gnode.supervisor.errors import LaunchError

OPEN_FILES = 64


def enter(group: str, open_files: int = OPEN_FILES) -> None:
    """Join the attempt's control group, and take limits that this program never reaches.

    The attempt may end meanwhile: then it is killed with it. Other signals are for the job.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        is_protected = int(file.read()) < 0
    if is_protected:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("0")
    with contextlib.suppress(OSError):  # it has just ended
        if group:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")


def become(user: str, uid: int, gid: int) -> None:
    """Become the user for good, without any capability; checked, since a miss would be root."""
    if uid == 0 or gid == 0:  # nothing is read as root, whoever asks
        os._exit(254)
    try:
        privilege.become(uid, gid, os.getgrouplist(user, gid))
        kernel.forbid_new_privileges()
    except (LaunchError, OSError):
        os._exit(254)


def read_piece(path: str, offset: int, max_bytes: int) -> tuple[dict[str, object], bytes]:
    """Return what to say about the piece, and the piece; a negative offset counts from the end."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return {"error": f"{path}: {reason(error)}"}, b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return {"error": f"{path}: is not a plain file, so it cannot be read back"}, b""
        first = max(0, status.st_size + offset) if offset < 0 else offset
        data = os.pread(fd, max_bytes, first)
    except (OSError, OverflowError) as error:  # OverflowError: an offset beyond any file
        return {"error": f"{path}: {reason(error)}"}, b""
    finally:
        os.close(fd)
    return {"offset": first, "size_bytes": status.st_size}, data


def append_to(path: str, data: bytes) -> dict[str, object]:
    """Write to the end of a file that is there; return what to say about it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return {"error": f"{path}: {reason(error)}"}
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {"error": f"{path}: is not a plain file, so nothing is written to it"}
        os.write(fd, data)
    except OSError as error:
        return {"error": f"{path}: {reason(error)}"}
    finally:
        os.close(fd)
    return {}


def do(path: str, offset: int, max_bytes: int, data: bytes) -> tuple[dict[str, object], bytes]:
    """Append data to a file, or read a piece of it if there is none."""
    return (append_to(path, data), b"") if data else read_piece(path, offset, max_bytes)


def reason(error: Exception) -> str:
    """Return why a file could not be read, in the system's words."""
    return getattr(error, "strerror", None) or str(error)


def main() -> None:
    """Do as the arguments say."""
    user, uid, gid, group, path, offset, max_bytes, append = sys.argv[1:]
    enter(group)
    become(user, int(uid), int(gid))
    head, data = do(path, int(offset), int(max_bytes), bytes.fromhex(append))
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
