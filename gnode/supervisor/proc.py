"""What /proc says about processes: who lives, who descends from whom.

A process is named by (pid, start ticks), since the kernel hands pids out again.
"""

import os
import signal
from collections.abc import Iterable

_PPID, _SESSION, _START_TICKS = 1, 3, 19  # places after the command's closing bracket in stat
#: With this the names of gsched's own processes begin, in jobs, too.
OWN_NAME = b"gsv "
_MASKS = frozenset({b"SigBlk", b"SigIgn", b"SigCgt"})


class ProcessStat:
    """One line of /proc: who it is and whom it belongs to."""

    __slots__ = ("parent", "pid", "session", "start_ticks", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        fields = stat[stat.rindex(b")") + 2 :].split(maxsplit=_START_TICKS + 1)
        self.pid = pid
        self.state = fields[0].decode()
        self.parent = int(fields[_PPID])
        self.session = int(fields[_SESSION])
        self.start_ticks = int(fields[_START_TICKS])


def read_process(pid: int | str) -> ProcessStat | None:
    """Return the process of that pid (or ``"self"``), None if there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        stat = os.read(fd, 1024)
    except OSError:  # ESRCH: it ended after the open
        return None
    finally:
        os.close(fd)
    return ProcessStat(os.getpid() if pid == "self" else int(pid), stat) if stat else None


def start_ticks(pid: int | str) -> int:
    """Return when a process started (clock ticks since boot), 0 if there is none."""
    process = read_process(pid)
    return 0 if process is None else process.start_ticks


def lives(pid: int, ticks: int) -> bool:
    """Return whether this very process is there and more than a zombie."""
    process = read_process(pid)
    return process is not None and process.start_ticks == ticks and process.state not in "ZX"


def open_process(pid: int, ticks: int) -> int | None:
    """Return a pidfd of this very process, None if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if lives(pid, ticks):  # the number is not given out again while we hold its process
        return pidfd
    os.close(pidfd)
    return None


def snapshot() -> dict[int, ProcessStat]:
    """Return every process of the machine that is more than a zombie, by pid."""
    found = (read_process(name) for name in os.listdir("/proc") if name.isdigit())
    return {one.pid: one for one in found if one is not None and one.state not in "ZX"}


def descendants(roots: Iterable[int], processes: dict[int, ProcessStat]) -> set[int]:
    """Return ``roots`` and all below them that are in ``processes``."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    open_ends = list(roots)
    while open_ends:
        pid = open_ends.pop()
        if pid not in found:
            found.add(pid)
            open_ends.extend(children.get(pid, ()))
    return found & processes.keys()


def has_environment_text(pid: int, text: bytes) -> bool:
    """Return whether a process was started with ``text`` somewhere in its environment."""
    return text in _environment(pid)


def environment_text_after(pid: int, start: bytes) -> bytes:
    """Return what follows ``start`` in the variable that begins so, empty if none does."""
    _, found, rest = (b"\0" + _environment(pid)).partition(b"\0" + start)
    return rest.partition(b"\0")[0] if found else b""


def _environment(pid: int) -> bytes:
    """Return the environment that a process was started with, empty if it may not be read."""
    return _content(f"/proc/{pid}/environ")


def command_line(pid: int) -> bytes:
    """Return the words of a process, each followed by NUL; empty if it is gone."""
    return _content(f"/proc/{pid}/cmdline")


def _content(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone, or another user's
        return b""
    try:
        content = b""
        while chunk := os.read(fd, 1 << 16):
            content += chunk
    except OSError:
        return b""
    finally:
        os.close(fd)
    return content


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process; those that are gone or may not be signalled are left out.

    The oldest comes first: a shell whose child has ended goes on with its next command, and could
    end with exit code 0 before the signal reaches it.

    The caller reaps the processes or has just read them, so that a pid cannot have been handed out
    again in between.
    """
    for pid in pids if number == signal.SIGKILL else oldest_first(pids):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def oldest_first(pids: Iterable[int]) -> list[int]:
    """Return processes in the order of their starts, to a clock tick."""
    return sorted(pids, key=lambda pid: (start_ticks(pid), pid))


def handlers_of(pids: Iterable[int], number: int) -> set[int]:
    """Return the processes that have a handler for a signal; it would end most of the others.

    Not gsched's own among them, which catch the signals of a job to leave them to its programs.
    """
    found = {pid for pid in pids if b"SigCgt" in _masks_with(f"/proc/{pid}", number)}
    return {pid for pid in found if not _is_own(pid)}


def blockers_of(pids: Iterable[int], number: int) -> set[int]:
    """Return the processes that a signal does not end now, as each of their threads blocks it."""
    found = {pid for pid in pids if _is_blocked(f"/proc/{pid}/task", number)}
    return {pid for pid in found if not _is_own(pid)}


def _is_own(pid: int) -> bool:
    """Return whether a process is one of gsched's within a job: of its ranks, steps or terminal."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().startswith(OWN_NAME)
    except OSError:  # it has ended
        return False


def _is_blocked(directory: str, number: int) -> bool:
    """Return whether the threads below a directory block a signal and do not ignore it.

    The kernel shows no signal as blocked by a thread for which that waits in ``sigwait``.
    """
    found = False
    try:
        for thread in os.listdir(directory):
            masks = _masks_with(f"{directory}/{thread}", number)
            if masks & {b"SigBlk", b"SigIgn"} == {b"SigBlk"}:
                found = True
            elif b"SigIgn" in masks or not _waits_for_signal(f"{directory}/{thread}"):
                return False
    except OSError:  # it has ended
        return False
    return found


def _waits_for_signal(thread: str) -> bool:
    with open(f"{thread}/wchan", "rb") as file:
        return b"sigtimedwait" in file.read()


def _masks_with(directory: str, number: int) -> set[bytes]:
    """Return the names of the masks of signals of a process or thread that have this one."""
    found: set[bytes] = set()
    try:
        with open(f"{directory}/status", "rb") as file:
            for line in file:
                name, _, mask = line.partition(b":")
                if name in _MASKS and int(mask, 16) >> number - 1 & 1:
                    found.add(name)
    except OSError:  # it has ended
        return set()
    return found


def ask_to_end(pids: Iterable[int]) -> None:
    """Send TERM, and CONT so that stopped processes get to hear it."""
    pids = tuple(pids)
    send(pids, signal.SIGTERM)
    send(pids, signal.SIGCONT)
