"""Which processes a test has started, however they were started, and how to end them."""

import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

#: Set in the environment of each system and cli test; processes inherit it unless they clean up.
MARKER = "GSCHED_TEST_MARKER"
#: Where the workers of a run find its servers of forks (`tests.support.forks`).
FORKS = "GSCHED_TEST_FORKS"
LONGEST_PAUSE_S = 0.1
#: How long a test waits for what must come, seconds. It is no measure of speed: a machine that does
#: ten other things at once must pass, too.
PATIENCE_S = 60.0
ENVIRONMENT_BYTES = 1 << 20


def pids() -> frozenset[str]:
    """Return the ids of all processes."""
    return frozenset(filter(str.isdigit, os.listdir("/proc")))


def processes_of(
    marker: str, directory: Path, others: frozenset[str] = frozenset()
) -> list[psutil.Process]:
    """Return the live processes that belong to a test, other than this one and its ancestors.

    A process belongs to it if its environment has the test's marker, if it works in the test's
    directory or writes its output there (jobs get a fresh environment, but run and write
    somewhere), or if it descends from one that does. ``others`` were there before the test: a
    look at a process takes 40 µs, and there are hundreds.
    """
    ours = _with_ancestors(os.getpid())
    mark, below = f"\0{MARKER}={marker}\0".encode(), f"{directory}/"
    names = [name for name in pids() if int(name) not in ours]
    found = {int(name) for name in names if name not in others and _belongs(name, mark, below)}
    if not found:
        return []
    parents = {int(name): _parent(name) for name in names}  # once for all: there are hundreds
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [process for pid in sorted(found) if (process := _living(pid)) is not None]


def kill_all(find: Callable[[], list[psutil.Process]], timeout_s: float = PATIENCE_S) -> None:
    """Kill what ``find`` returns until it returns nothing; a fork between two looks is met again.

    Raises:
        TimeoutError: something is still there after ``timeout_s``.
    """
    for _ in attempts(timeout_s):
        left = find()
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
    raise TimeoutError(f"still alive after {timeout_s:.0f} s of KILL: {describe(find())}")


def describe(processes: list[psutil.Process]) -> str:
    """Return pids and command lines, for a failure's message."""
    lines: list[str] = []
    for process in processes:
        try:
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            lines.append(f"{process.pid}: gone")
    return "\n".join(lines)


def attempts(timeout_s: float = PATIENCE_S, interval_s: float = 0.02) -> Iterator[int]:
    """Yield 0, 1, 2, … with a pause between, at least twice, until ``timeout_s`` have passed.

    The pause grows to a tenth of the time so far, and 0.1 s at most: a look is often a request to
    a daemon, which would take a large part of a processor while a test waits for seconds.
    """
    started_s = time.monotonic()
    number, passed_s = 0, 0.0
    while number < 2 or passed_s < timeout_s:
        yield number
        number += 1
        passed_s = time.monotonic() - started_s
        time.sleep(max(interval_s, min(LONGEST_PAUSE_S, passed_s / 10)))


@functools.cache
def _with_ancestors(pid: int) -> frozenset[int]:
    return frozenset({pid} | {parent.pid for parent in psutil.Process(pid).parents()})


def environment_of(pid: str) -> bytes:
    """Return the variables of a process, each between NUL bytes; none if it is gone or foreign."""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
        try:
            return b"\0" + os.read(fd, ENVIRONMENT_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return b""


def _belongs(pid: str, mark: bytes, below: str) -> bool:
    environment = environment_of(pid)
    if not environment:
        return False
    if mark in environment:
        return True
    return any(_is_below(f"/proc/{pid}/{link}", below) for link in ("cwd", "fd/1", "fd/2"))


def _is_below(link: str, below: str) -> bool:
    try:
        return f"{os.readlink(link)}/".startswith(below)
    except OSError:
        return False


def _parent(pid: str) -> int:
    """Return the parent of a process; 0 if that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _living(pid: int) -> psutil.Process | None:
    """Return a process; None if it has ended."""
    try:
        process = psutil.Process(pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
